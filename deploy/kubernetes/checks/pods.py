"""Every pod starts: its init containers bring the filter, keygate serves, its probes say yes, clients get what the policy
says, what changes outside is seen inside, and it ends in time.

What the cluster does is done here: volumes are laid out as the kubelet does it, the names of upstreams are in /etc/hosts,
and a server of ours stands behind each.
"""

import functools
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from agreement import CONFIG_MAPS, SECRETS, Deployed
from problems import end_if_any, expect
from render import CHART, HERE, secrets_of
from sandbox import PATIENCE, Container

KEYGATE = os.path.realpath(os.environ["KEYGATE"])
# The image whose containers run the script; what other images would do is done here.
CURL = "docker.io/curlimages/curl:"


def apart(name: str, objects: list[dict]) -> subprocess.Popen:
    """Starts a pod in a process and a network of its own, where all ports are its own and nobody else reaches them."""
    alone = ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "-", sys.executable, "-B", __file__, name]
    process = subprocess.Popen(alone, stdin=subprocess.PIPE, text=True)
    process.stdin.write(json.dumps(objects))
    process.stdin.close()
    return process


def main() -> None:
    [name] = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        pod = _Pod(Deployed(name, json.load(sys.stdin)), pathlib.Path(directory))
        try:
            pod.live()
        finally:
            pod.end()
    end_if_any()
    print(f"deploy/kubernetes: {name}: ok", flush=True)


class _Pod:
    def __init__(self, deployed: Deployed, directory: pathlib.Path) -> None:
        self.deployed = deployed
        self.directory = directory
        self.running: list[Container] = []
        self.servers: list[http.server.HTTPServer] = []
        names = [name for service in deployed.config["services"] for name in service.get("server_names", ["localhost"])]
        subprocess.run([HERE.parent / "scene", KEYGATE, directory / "scene", *names], check=True)
        self.scene = directory / "scene"
        for made, asked in (("server.pem", "orders.pem"), ("server.key", "orders.key"), ("ca.pem", "clients-ca.pem")):
            shutil.copy(self.scene / made, self.scene / asked)
        for page in (HERE / "README.md", CHART / "README.md"):
            for name, keys in secrets_of(page, self.scene).items():
                expect(keys == set(SECRETS[name]), str(page), f"makes a Secret {name} with {keys}")
        self.filter = pathlib.Path(deployed.config["filters"][0]["path"]).name
        self.published = directory / "published"
        self.published.mkdir()
        self._serve(0, functools.partial(_Quiet, directory=self.published))
        self._publish()
        self.volumes = {volume["name"]: self._volume(volume) for volume in deployed.pod["volumes"]}
        self.options = {"hosts": self._hosts(), "binary": KEYGATE, "applets": self._applets()}

    def live(self) -> None:
        keygate, refresh = self._started()
        applications = [self._application(one) for one in self.deployed.pod["containers"] if "httpd" in str(one)]
        self._clients_are_told_apart(keygate)
        self._a_new_filter_arrives(keygate, refresh)
        self._a_new_configuration_arrives(keygate)
        for application in applications:
            application.signal(signal.SIGTERM)
            expect(application.ends(10) == 0, application.name, "does not end on SIGTERM")
        self._ends(keygate)
        if refresh:
            refresh.signal(signal.SIGTERM)
            expect(refresh.ends() == 0, refresh.name, "does not end on SIGTERM")

    def end(self) -> None:
        for container in self.running:
            container.kill()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    # What the kubelet does.

    def _volume(self, volume: dict) -> pathlib.Path:
        group = self.deployed.pod["securityContext"]["fsGroup"]
        path = self.directory / "volumes" / volume["name"]
        path.mkdir(parents=True)
        if source := volume.get("configMap") or volume.get("secret"):
            files = self._content(source)
            _swap(path, files, source.get("defaultMode", 0o644), group)
            for file in files:
                (path / file).symlink_to(f"..data/{file}")
        else:
            os.chown(path, 0, group)
            path.chmod(0o2770)
        return path

    def _content(self, source: dict) -> dict[str, str]:
        """The files of a ConfigMap or a Secret."""
        made = {"tls.crt": "server.pem", "tls.key": "server.key", "ca.crt": "ca.pem"}
        if name := source.get("secretName"):
            return {key: (self.scene / made[key]).read_text() if key in made else "" for key in SECRETS[name]}
        if source["name"] in CONFIG_MAPS:
            return dict.fromkeys(CONFIG_MAPS[source["name"]], "# nothing\n")
        files = self.deployed.data_of(source["name"])
        return {item["path"]: files[item["key"]] for item in source.get("items", [])} or files

    def _container(self, spec: dict, command: list[str]) -> Container:
        mounts = {one["mountPath"]: (str(self.volumes[one["name"]]), one.get("readOnly", False))
                  for one in self.deployed.volumes(spec)}
        environment = [self._variable(variable) for variable in spec.get("env", [])]
        name = f"{self.deployed.name}, container {spec['name']}"
        user = self.deployed.pod["securityContext"] | spec["securityContext"]
        container = Container(name, spec | {"env": environment}, user, mounts, command, **self.options)
        self.running.append(container)
        return container

    def _variable(self, variable: dict) -> dict:
        key = variable.get("valueFrom", {}).get("configMapKeyRef")
        value = self.deployed.data_of(key["name"])[key["key"]] if key else variable["value"]
        if variable["name"] == "FILTER_URL":
            expect(value.startswith("https://"), self.deployed.name, f"the filter comes from {value}")
            value = f"http://127.0.0.1:{self.servers[0].server_port}/filter"
        if variable["name"] == "FILTER_INTERVAL":
            value = "1"
        return {"name": variable["name"], "value": value}

    def _started(self) -> tuple[Container, Container | None]:
        refresh = None
        ours = [spec for spec in self.deployed.pod.get("initContainers", []) if spec["image"].startswith(CURL)]
        if not ours:
            self._write_filter()
        for spec in ours:
            container = self._container(spec, spec["command"])
            if spec.get("restartPolicy") == "Always":
                refresh = container
            else:
                code = container.ends()
                expect(code == 0, container.name, f"brings no filter: {code}, {container.said()}")
        arguments = self.deployed.keygate["args"]
        validate = self._container(self.deployed.keygate, ["/usr/bin/keygate", "validate", *arguments[1:]])
        code = validate.ends()
        expect(code == 0, validate.name, f"keygate validate: {code}, {validate.said()}")
        end_if_any()
        keygate = self._container(self.deployed.keygate, ["/usr/bin/keygate", *arguments])
        keygate.says('"message":"ready"')
        end_if_any()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            expect(self._probe(probe) == 200, keygate.name, f"{probe} fails")
        return keygate, refresh

    def _probe(self, name: str) -> int:
        asked = self.deployed.keygate[name]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in self.deployed.keygate["ports"]}
        connection = http.client.HTTPConnection("127.0.0.1", ports[asked["port"]], timeout=PATIENCE)
        connection.request("GET", asked["path"])
        return connection.getresponse().status

    def _application(self, spec: dict) -> Container:
        container = self._container(spec, spec["command"])
        user = self.deployed.pod["securityContext"] | spec["securityContext"]
        deadline = time.monotonic() + PATIENCE
        while container.run(spec["readinessProbe"]["exec"]["command"], user):  # as often as the kubelet would like to
            if time.monotonic() > deadline:
                expect(False, container.name, "is never ready")
                break
        return container

    # What clients and operators do.

    def _clients_are_told_apart(self, keygate: Container) -> None:
        policy = self.deployed.config.get("policy", {})
        for service in self.deployed.config["services"]:
            where = f"{self.deployed.name}, service {service['name']}"
            action = (policy | service.get("policy", {})).get("on_probable", "reject")
            expect(self._ask(service, "good") == _served(service), where, "a good client is not served")
            seen = self._ask(service, "lost")
            refused = 403 if policy.get("reject_with") == "http-403" else None
            expect(seen == (refused if action == "reject" else _served(service)), where, f"a lost key gets {seen}")
            keygate.says(f'"message":"client key {"refused" if action == "reject" else "flagged"}"')

    def _ask(self, service: dict, client: str) -> int | None:
        """The status of the answer, or nothing if there was none."""
        context = ssl.create_default_context(cafile=self.scene / "ca.pem")
        context.load_cert_chain(self.scene / f"{client}.pem", self.scene / f"{client}.key")
        name = service.get("server_names", ["localhost"])[0]
        port = int(service["listen"].rsplit(":", 1)[1])
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE)
        try:
            plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            connection.sock = context.wrap_socket(plain, server_hostname=name)
            connection.request("GET", "/", headers={"Host": name})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _a_new_filter_arrives(self, keygate: Container, refresh: Container | None) -> None:
        key = self.directory / "another.key"
        generate = ["openssl", "genpkey", "-quiet", "-algorithm", "ED25519", "-out", key]
        subprocess.run(generate, check=True)
        before = self._delivered()
        if refresh:
            (self.published / "filter.sha256").write_text("0" * 64 + "  filter\n")
            refresh.says("does not match its checksum")
            refresh.says("does not match its checksum")  # it has looked again: all that the first look did is done
            expect(self._delivered() == before, refresh.name, "brings a filter that does not match its checksum")
        add = [KEYGATE, "filter", "add", self.scene / "pwnedkeys.pkbf", key]
        subprocess.run(add, check=True, capture_output=True)
        if refresh:
            self._publish()
            refresh.says(" is now ")
        else:
            self._write_filter()
        keygate.says('"message":"filter loaded"')
        keygate.says('"message":"snapshot in use"')

    def _a_new_configuration_arrives(self, keygate: Container) -> None:
        shown = subprocess.run([KEYGATE, "key", "--json", self.scene / "lost.pem"], check=True, capture_output=True, text=True)
        [fingerprint] = re.findall(r'"fingerprint":"([0-9a-f]{64})"', shown.stdout)[:1]
        exception = f'\n[[exceptions]]\nfingerprint = "{fingerprint}"\nuntil = 2099-12-31\nreason = "a check"\n'
        volume = next(one for one in self.deployed.volumes(self.deployed.keygate) if one["mountPath"] == "/etc/keygate")
        files = {"keygate.toml": self.deployed.config_text() + exception}
        _swap(self.volumes[volume["name"]], files, 0o644, self.deployed.pod["securityContext"]["fsGroup"])
        keygate.says('"message":"configuration loaded"')
        keygate.says('"message":"snapshot in use"')
        [*_, service] = self.deployed.config["services"]
        expect(self._ask(service, "lost") == _served(service), self.deployed.name, "the exception is not made")

    def _ends(self, keygate: Container) -> None:
        grace = self.deployed.pod["terminationGracePeriodSeconds"]
        keygate.signal(signal.SIGTERM)
        keygate.says('"message":"no longer ready"')
        if self.deployed.seconds("readiness_delay"):
            expect(self._probe("readinessProbe") == 503, keygate.name, "is ready while it ends")
            expect(self._probe("livenessProbe") == 200, keygate.name, "is dead while it ends")
        expect(keygate.ends(grace) == 0, keygate.name, f"does not end within {grace} s")

    # The world around the pod.

    def _publish(self) -> None:
        """The filter and its checksum, on a server."""
        for name in ("", ".sha256"):
            _replace(self.scene / f"pwnedkeys.pkbf{name}", self.published / f"filter{name}")

    def _filters(self) -> pathlib.Path:
        mounted = self.deployed.volumes(self.deployed.keygate)
        return self.volumes[next(volume["name"] for volume in mounted if volume["mountPath"] == "/filters")]

    def _delivered(self) -> list[bytes]:
        """What is in the volume, for keygate to see."""
        return [file.read_bytes() for file in sorted(self._filters().glob("[!.]*"))]

    def _write_filter(self) -> None:
        """What containers of somebody else would do."""
        _replace(self.scene / "pwnedkeys.pkbf", self._filters() / self.filter)

    def _hosts(self) -> str:
        lines = ["127.0.0.1 localhost"]
        inside = any("httpd" in str(one) for one in self.deployed.pod["containers"])
        for service in self.deployed.config["services"]:
            for server in service["upstream"]["servers"]:
                address = urllib.parse.urlsplit(server if "//" in server else f"//{server}")
                lines.append(f"127.0.0.1 {address.hostname}")
                if not inside:
                    self._serve(address.port, _Greeter)
        (self.directory / "hosts").write_text("\n".join(lines) + "\n")
        return str(self.directory / "hosts")

    def _serve(self, port: int, handler) -> None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.servers.append(server)

    def _applets(self) -> str:
        path = self.directory / "applets"
        path.mkdir()
        shutil.copy("/bin/busybox", path)
        subprocess.run([path / "busybox", "--install", "-s", path], check=True)
        for link in path.iterdir():
            if link.is_symlink():
                link.unlink()
                link.symlink_to("busybox")
        return str(path)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


class _Greeter(http.server.BaseHTTPRequestHandler):
    """An upstream. A PROXY header, version 2, is skipped: it is not HTTP."""

    protocol_version = "HTTP/1.1"

    def parse_request(self) -> bool:
        if self.raw_requestline == b"\r\n":  # the first two bytes of the signature are a line of their own
            head = self.rfile.read(14)
            self.rfile.read(int.from_bytes(head[12:], "big"))
            self.raw_requestline = self.rfile.readline()
        return super().parse_request()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_) -> None:
        pass


def _served(service: dict) -> int:
    """The status that a client gets who is let through: nobody here speaks HTTP/2 to keygate."""
    return 502 if str(service["upstream"]["servers"]).startswith("['h2c:") else 200


def _replace(source: pathlib.Path, target: pathlib.Path) -> None:
    incoming = target.with_name(".incoming")
    shutil.copy(source, incoming)
    os.rename(incoming, target)


def _swap(volume: pathlib.Path, files: dict[str, str], mode: int, group: int) -> None:
    """As the kubelet writes a ConfigMap or a Secret: a new directory, then a link that is renamed over the old one."""
    content = pathlib.Path(tempfile.mkdtemp(prefix="..", dir=volume))
    content.chmod(0o755)
    for name, text in files.items():
        (content / name).write_text(text)
        os.chown(content / name, 0, group)
        (content / name).chmod(mode)
    (volume / "..data_tmp").symlink_to(content.name)
    os.rename(volume / "..data_tmp", volume / "..data")


if __name__ == "__main__":
    main()
