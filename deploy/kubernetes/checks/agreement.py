"""Checks that names and ports agree among the objects, and with the configuration in them."""

import tomllib

from problems import expect
from security import containers

# The Secrets and ConfigMaps that an operator creates, with their keys. The pages create the first two, and
# cert-manager the last two.
SECRETS = {
    "orders-tls": ("tls.crt", "tls.key"),
    "clients-ca": ("ca.crt",),
    "database": ("tls.crt", "tls.key", "ca.crt"),
    "keygate-admission-tls": ("tls.crt", "tls.key"),
    "keygate-readers": ("tls.crt", "tls.key", "ca.crt"),
}
CONFIG_MAPS = {"incident": ("deny.txt",)}


class Deployed:
    """A Deployment with keygate in its pods, and the objects that belong to it."""

    def __init__(self, name: str, objects: list[dict]) -> None:
        self.name = name
        self.objects = objects
        [deployment] = self.of("Deployment")
        self.deployment = deployment
        self.template = deployment["spec"]["template"]
        self.pod = self.template["spec"]
        self.keygate = next(one for one in containers(self.pod) if one["name"] == "keygate")
        self.config = tomllib.loads(self.config_text())
        self.authorizers = self.config.get("authorizers", [])
        self.services = self.config.get("services", [])
        self.admin_port = int(self.config["admin"]["listen"].rsplit(":", 1)[1])
        readers = self.config["admin"].get("readers")
        self.readers_port = readers and int(readers["listen"].rsplit(":", 1)[1])
        # The port for metrics, and its name.
        self.metrics = (self.readers_port, "readers") if readers else (self.admin_port, "admin")

    def of(self, *kinds: str) -> list[dict]:
        return [one for one in self.objects if one["kind"] in kinds]

    def config_text(self) -> str:
        """The configuration, found by the arguments of keygate and the volume that they name."""
        path = self.keygate["args"][self.keygate["args"].index("--config") + 1]
        volume = next(volume for volume in self.volumes(self.keygate) if path.startswith(volume["mountPath"] + "/"))
        return self.data_of(volume["configMap"]["name"])[path.rsplit("/", 1)[1]]

    def volumes(self, container: dict) -> list[dict]:
        """The volumes of a container, each merged with its mount."""
        by_name = {volume["name"]: volume for volume in self.pod["volumes"]}
        return [by_name[mount["name"]] | mount for mount in container.get("volumeMounts", [])]

    def data_of(self, config_map: str) -> dict[str, str]:
        return next(one["data"] for one in self.of("ConfigMap") if one["metadata"]["name"] == config_map)

    def seconds(self, key: str) -> int:
        return int(self.config["shutdown"][key].removesuffix("s"))


def check(deployed: Deployed) -> None:
    _references(deployed)
    _selectors(deployed)
    _ports(deployed)
    _probes(deployed)
    _files(deployed)
    _grace_period(deployed)
    _webhooks(deployed)


def _references(deployed: Deployed) -> None:
    where = deployed.name
    volumes = {volume["name"]: volume for volume in deployed.pod["volumes"]}
    maps = {one["metadata"]["name"]: one["data"] for one in deployed.of("ConfigMap")}
    mounted = set()
    for container in containers(deployed.pod):
        for mount in container.get("volumeMounts", []):
            expect(mount["name"] in volumes, where, f"{container['name']} mounts {mount['name']}, which is not a volume")
            expect("subPath" not in mount, where, f"{mount['name']} has a subPath, which is never updated")
            mounted.add(mount["name"])
        for variable in container.get("env", []):
            key = variable.get("valueFrom", {}).get("configMapKeyRef")
            expect(not key or key["key"] in maps.get(key["name"], {}), where, f"{variable['name']} refers to a missing ConfigMap key")
    expect(mounted == set(volumes), where, f"not mounted: {set(volumes) - mounted}")
    for volume in volumes.values():
        if name := volume.get("configMap", {}).get("name"):
            expect(name in maps or name in CONFIG_MAPS, where, f"there is no ConfigMap {name}")
        if name := volume.get("secret", {}).get("secretName"):
            expect(name in SECRETS, where, f"there is no Secret {name}")
    accounts = [one["metadata"]["name"] for one in deployed.of("ServiceAccount")]
    account = deployed.pod["serviceAccountName"]
    expect(account in accounts or account == "database", where, f"there is no ServiceAccount {account}")
    for one in [deployed.pod, *deployed.of("ServiceAccount")]:
        expect(one["automountServiceAccountToken"] is False, where, "a token is mounted")


def _selectors(deployed: Deployed) -> None:
    labels = deployed.template["metadata"]["labels"]
    picked = [deployed.deployment["spec"]["selector"]["matchLabels"]]
    picked += [one["spec"]["selector"] for one in deployed.of("Service")]
    picked += [one["spec"]["selector"]["matchLabels"] for one in deployed.of("PodDisruptionBudget", "PodMonitor")]
    picked += [one["spec"]["podSelector"]["matchLabels"] for one in deployed.of("NetworkPolicy")]
    picked += [one["labelSelector"]["matchLabels"] for one in deployed.pod.get("topologySpreadConstraints", [])]
    for selector in picked:
        expect(selector and selector.items() <= labels.items(), deployed.name, f"{selector} does not select the pods")
    for monitor in deployed.of("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        services = [one for one in deployed.of("Service") if selector <= one["metadata"]["labels"].items()]
        names = [port["name"] for service in services for port in service["spec"]["ports"]]
        expect(names == [monitor["spec"]["endpoints"][0]["port"]], deployed.name, f"the monitor finds the ports {names}")


def _ports(deployed: Deployed) -> None:
    where = deployed.name
    by_name = {port["name"]: port["containerPort"] for port in deployed.keygate["ports"]}
    listening = {}
    for service in [*deployed.services, *deployed.authorizers]:
        host, port = service["listen"].rsplit(":", 1)
        expect(host == "0.0.0.0", where, f"{service['name']} listens on {host}, which other pods cannot reach")
        expect(int(port) >= 1024, where, f"{service['name']} needs a privilege for port {port}")
        listening[int(port)] = service["name"]
    expect(deployed.config["admin"]["listen"].startswith("0.0.0.0:"), where, "probes do not reach the admin address")
    expect(set(by_name.values()) == {*listening, deployed.admin_port, deployed.metrics[0]}, where, f"{by_name} are not the ports that keygate listens on")
    expect(by_name.get("admin") == deployed.admin_port, where, "the port admin is not the admin address")
    reached = set()
    for service in deployed.of("Service"):
        for port in service["spec"]["ports"]:
            target = by_name.get(port["targetPort"], port["targetPort"])
            is_admin = service["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "metrics"
            expect(target in ([deployed.metrics[0]] if is_admin else listening), where, f"a Service forwards to port {target}")
            reached.add(target)
    expect(set(listening) <= reached, where, "a port of keygate has no Service")
    for monitor in deployed.of("PodMonitor"):
        _endpoint(deployed, *monitor["spec"]["podMetricsEndpoints"])
    for monitor in deployed.of("ServiceMonitor"):
        _endpoint(deployed, *monitor["spec"]["endpoints"])
    for policy in deployed.of("NetworkPolicy"):
        rules = [({port["port"] for port in rule["ports"]}, rule.get("from")) for rule in policy["spec"]["ingress"]]
        expect(rules[0][0] == set(listening), where, f"clients may reach {rules[0][0]}")
        for ports, peers in rules[1:]:
            expect(ports == {deployed.metrics[0]} and peers, where, f"{peers or 'every pod'} may reach {ports}")


def _endpoint(deployed: Deployed, endpoint: dict) -> None:
    port, name = deployed.metrics
    is_right = endpoint["port"] == name and endpoint["path"] == "/metrics"
    expect(is_right, deployed.name, "the monitor scrapes another port or path")
    is_tls = endpoint.get("scheme", "http") == "https"
    expect(is_tls == (port == deployed.readers_port), deployed.name, "the monitor scrapes with another scheme")


def _probes(deployed: Deployed) -> None:
    paths = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for probe, path in paths.items():
        request = deployed.keygate.get(probe, {}).get("httpGet")
        expect(request == {"path": path, "port": "admin"}, deployed.name, f"{probe} is {request}")


def _files(deployed: Deployed) -> None:
    where = deployed.name
    mounts = {volume["mountPath"]: volume for volume in deployed.volumes(deployed.keygate)}
    for filter in deployed.config["filters"]:
        volume = mounts.get(filter["path"].rsplit("/", 1)[0])
        expect(volume and volume.get("readOnly"), where, f"{filter['path']} is not on a volume that is mounted read-only")
    state = deployed.config.get("state", {}).get("dir")
    writable = [path for path, volume in mounts.items() if not volume.get("readOnly") and volume["name"] != "scratch"]
    expect(writable == ([state] if state else []), where, f"keygate can write to {writable}")
    names = [container["name"] for container in containers(deployed.pod)]
    if "fetch-once" in names and "keygate" in [one["name"] for one in deployed.pod["initContainers"]]:
        expect(names.index("fetch-once") < names.index("keygate"), where, "keygate starts before it has a filter")


def _grace_period(deployed: Deployed) -> None:
    """Checks that keygate can drain before the grace period of the pod ends."""
    drain = deployed.seconds("readiness_delay") + deployed.seconds("drain_timeout")
    if deployed.keygate in deployed.pod.get("initContainers", []):
        # Kubernetes stops the other containers first. The application may take ten seconds to stop.
        hooks = [one.get("lifecycle", {}).get("preStop", {}).get("sleep", {}) for one in deployed.pod["containers"]]
        expect(all(hooks), deployed.name, "an application stops while clients still connect")
        drain += max((hook.get("seconds", 0) for hook in hooks), default=0) + 10
    grace = deployed.pod["terminationGracePeriodSeconds"]
    expect(grace > drain, deployed.name, f"after {grace} s the pod is killed, and needs {drain} s")


def _webhooks(deployed: Deployed) -> None:
    """Checks that the API server reaches keygate, trusts its certificate, and stores nothing without its answer, and that
    keygate can start without it."""
    where = deployed.name
    for configuration in deployed.of("ValidatingWebhookConfiguration"):
        namespace, name = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"].split("/")
        [certificate] = [one for one in deployed.of("Certificate") if one["metadata"]["name"] == name]
        mounted = {volume.get("secret", {}).get("secretName") for volume in deployed.pod["volumes"]}
        expect(certificate["metadata"]["namespace"] == namespace, where, f"{name} is not in {namespace}")
        expect(certificate["spec"]["secretName"] in mounted, where, f"the certificate of {name} is not mounted")
        issuers = [one["metadata"]["name"] for one in deployed.of("Issuer")]
        for one in deployed.of("Certificate"):
            expect(one["spec"]["issuerRef"]["name"] in issuers, where, f"there is no issuer of {one['metadata']['name']}")
        for webhook in configuration["webhooks"]:
            called = webhook["clientConfig"]["service"]
            services = [one for one in deployed.of("Service") if one["metadata"]["name"] == called["name"]]
            ports = [port["port"] for service in services for port in service["spec"]["ports"]]
            expect(called["port"] in ports, where, f"{webhook['name']} calls port {called['port']} of {ports}")
            expect(called["namespace"] == namespace, where, f"{webhook['name']} calls another namespace")
            host = f"{called['name']}.{called['namespace']}.svc"
            expect(host in certificate["spec"]["dnsNames"], where, f"the certificate is not for {host}")
            expect(webhook["failurePolicy"] == "Fail", where, f"{webhook['name']} stores what keygate has not judged")
            [rule] = webhook["rules"]
            if rule["scope"] == "Namespaced":
                [excluded] = webhook["namespaceSelector"]["matchExpressions"]
                expect(excluded["operator"] == "NotIn" and {namespace, "kube-system"} <= set(excluded["values"]),
                       where, f"{webhook['name']} matches what keygate needs to start")
            else:
                expect("kubelet" in str(webhook["matchConditions"]), where, f"{webhook['name']} keeps nodes out")
