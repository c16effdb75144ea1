"""Runs every pod: init containers fetch the filter, keygate serves, probes succeed, the policy decides about clients,
keygate reloads changed files and stops within the grace period.

This module replaces the cluster. It lays out volumes as the kubelet does, writes the names of upstreams to /etc/hosts,
and runs a server for each upstream.
"""

import base64
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
from sandbox import TIMEOUT, Container

KEYGATE = os.path.realpath(os.environ["KEYGATE"])
# The source of a file in a configuration.
SOURCE = re.compile(r'(source = \{ url = )"(https?://[^"]+)"')


def start(name: str, objects: list[dict]) -> subprocess.Popen:
    """Runs a pod in new process and network namespaces, where all ports are free."""
    command = ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "-", sys.executable, "-B", __file__, name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    process.stdin.write(json.dumps(objects))
    process.stdin.close()
    return process


def main() -> None:
    [name] = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        pod = _Pod(Deployed(name, json.load(sys.stdin)), pathlib.Path(directory))
        try:
            pod.check()
        finally:
            pod.stop()
    end_if_any()
    print(f"deploy/kubernetes: {name}: ok", flush=True)


class _Pod:
    def __init__(self, deployed: Deployed, directory: pathlib.Path) -> None:
        self.deployed = deployed
        self.directory = directory
        self.running: list[Container] = []
        self.servers: list[http.server.HTTPServer] = []
        names = [name for service in deployed.services for name in service.get("server_names", ["localhost"])]
        names += [name for one in deployed.of("Certificate") for name in one["spec"].get("dnsNames", [])]
        subprocess.run([HERE.parent / "scene", KEYGATE, directory / "scene", *names], check=True)
        self.scene = directory / "scene"
        for created, named in (("server.pem", "orders.pem"), ("server.key", "orders.key"), ("ca.pem", "clients-ca.pem")):
            shutil.copy(self.scene / created, self.scene / named)
        for page in (HERE / "README.md", CHART / "README.md"):
            for name, keys in secrets_of(page, self.scene).items():
                expect(keys == set(SECRETS[name]), str(page), f"creates a Secret {name} with {keys}")
        self.filter = pathlib.Path(deployed.config["filters"][0]["path"]).name
        self.published = directory / "published"
        self.published.mkdir()
        self._serve(0, functools.partial(_Quiet, directory=self.published))
        self._publish()
        self.volumes = {volume["name"]: self._volume(volume) for volume in deployed.pod["volumes"]}
        self.options = {"hosts": self._hosts(), "binary": KEYGATE, "applets": self._applets()}

    def check(self) -> None:
        keygate, refresh = self._start()
        applications = [self._application(one) for one in self.deployed.pod["containers"] if "httpd" in str(one)]
        self._check_policy(keygate)
        self._check_readers()
        self._check_filter_reload(keygate, refresh)
        self._check_configuration_reload(keygate)
        for application in applications:
            application.signal(signal.SIGTERM)
            expect(application.exit_code(10) == 0, application.name, "does not stop on SIGTERM")
        self._check_shutdown(keygate)
        if refresh:
            refresh.signal(signal.SIGTERM)
            expect(refresh.exit_code() == 0, refresh.name, "does not stop on SIGTERM")

    def stop(self) -> None:
        for container in self.running:
            container.kill()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    # The kubelet.

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
        files = {"tls.crt": "server.pem", "tls.key": "server.key", "ca.crt": "ca.pem"}
        if name := source.get("secretName"):
            return {key: (self.scene / files[key]).read_text() if key in files else "" for key in SECRETS[name]}
        if source["name"] in CONFIG_MAPS:
            return dict.fromkeys(CONFIG_MAPS[source["name"]], "# nothing\n")
        data = self.deployed.data_of(source["name"])
        files = {item["path"]: data[item["key"]] for item in source.get("items", [])} or data
        return {name: self._with_source(text) for name, text in files.items()}

    def _with_source(self, configuration: str) -> str:
        """The configuration with the server of this module as the source of every file, and its address as an asker."""
        configuration = configuration.replace("askers = { from = [", 'askers = { from = ["127.0.0.0/8", ')
        for _, url in SOURCE.findall(configuration):
            expect(url.startswith("https://"), self.deployed.name, f"the URL of the filter is {url}")
        return SOURCE.sub(rf'\1"http://127.0.0.1:{self.servers[0].server_port}/filter"', configuration)

    def _container(self, spec: dict, command: list[str]) -> Container:
        mounts = {one["mountPath"]: (str(self.volumes[one["name"]]), one.get("readOnly", False))
                  for one in self.deployed.volumes(spec)}
        name = f"{self.deployed.name}, container {spec['name']}"
        user = self.deployed.pod["securityContext"] | spec["securityContext"]
        container = Container(name, spec, user, mounts, command, **self.options)
        self.running.append(container)
        return container

    def _start(self) -> tuple[Container, Container | None]:
        refresh = None
        fetchers = [spec for spec in self.deployed.pod.get("initContainers", []) if spec.get("args", [""])[0] == "fetch"]
        if not fetchers:
            self._write_filter()
        for spec in fetchers:
            arguments = [*spec["args"]]
            if "--every" in arguments:
                arguments[arguments.index("--every") + 1] = "1s"
            container = self._container(spec, ["/usr/bin/keygate", *arguments])
            if spec.get("restartPolicy") == "Always":
                refresh = container
            else:
                code = container.exit_code()
                expect(code == 0, container.name, f"fetches no filter: exit code {code}, {container.output()}")
        arguments = self.deployed.keygate["args"]
        validate = self._container(self.deployed.keygate, ["/usr/bin/keygate", "validate", *arguments[1:]])
        code = validate.exit_code()
        expect(code == 0, validate.name, f"keygate validate: exit code {code}, {validate.output()}")
        end_if_any()
        keygate = self._container(self.deployed.keygate, ["/usr/bin/keygate", *arguments])
        keygate.wait_for_line('"message":"ready"')
        end_if_any()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            expect(self._probe(probe) == 200, keygate.name, f"{probe} fails")
        return keygate, refresh

    def _probe(self, name: str) -> int:
        probe = self.deployed.keygate[name]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in self.deployed.keygate["ports"]}
        connection = http.client.HTTPConnection("127.0.0.1", ports[probe["port"]], timeout=TIMEOUT)
        connection.request("GET", probe["path"])
        return connection.getresponse().status

    def _application(self, spec: dict) -> Container:
        container = self._container(spec, spec["command"])
        user = self.deployed.pod["securityContext"] | spec["securityContext"]
        deadline = time.monotonic() + TIMEOUT
        while container.run(spec["readinessProbe"]["exec"]["command"], user):
            if time.monotonic() > deadline:
                expect(False, container.name, "does not become ready")
                break
            time.sleep(0.1)
        return container

    # Clients and operators.

    def _check_policy(self, keygate: Container) -> None:
        policy = self.deployed.config.get("policy", {})
        for service in self.deployed.services:
            where = f"{self.deployed.name}, service {service['name']}"
            action = (policy | service.get("policy", {})).get("on_probable", "reject")
            expect(self._get(service, "good") == _admitted(service), where, "a good client is not admitted")
            status = self._get(service, "lost")
            rejected = 403 if policy.get("reject_with") == "http-403" else None
            expect(status == (rejected if action == "reject" else _admitted(service)), where, f"a compromised key gets {status}")
            keygate.wait_for_line(f'"message":"client key {"rejected" if action == "reject" else "flagged"}"')
        for authorizer in self.deployed.authorizers:
            where = f"{self.deployed.name}, authorizer {authorizer['name']}"
            action = (policy | authorizer.get("policy", {})).get("on_probable", "reject")
            good, lost = (self._review(authorizer, client) for client in ("good", "lost"))
            expect(good == {"uid": "a-uid", "allowed": True}, where, f"a good key gets {good}")
            expect(lost["allowed"] == (action != "reject"), where, f"a compromised key gets {lost}")
            expect(("warnings" in lost) == (action != "reject"), where, f"a compromised key gets {lost}")
            keygate.wait_for_line(f'"message":"client key {"rejected" if action == "reject" else "flagged"}"')

    def _check_readers(self) -> None:
        if port := self.deployed.readers_port:
            where = f"{self.deployed.name}, readers"
            read = {client: self._request(port, client, "GET", "/metrics") for client in ("good", "lost")}
            expect(read == {"good": 200, "lost": None}, where, f"the responses are {read}")
            status = self._request(port, "good", "POST", "/reload")
            expect(status == 403, where, f"a command gets {status}")

    def _review(self, authorizer: dict, client: str) -> dict:
        """The response of keygate to the API server about a request for a certificate."""
        request = base64.b64encode((self.scene / f"{client}.csr").read_bytes()).decode()
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "a-uid", "operation": "CREATE", "name": client, "userInfo": {"username": "alice"},
            "resource": {"group": "certificates.k8s.io", "version": "v1", "resource": "certificatesigningrequests"},
            "object": {"spec": {"request": request, "signerName": "example.com/clients"}},
        }}
        [name] = [name for one in self.deployed.of("Certificate") for name in one["spec"].get("dnsNames", [])]
        context = ssl.create_default_context(cafile=self.scene / "ca.pem")
        port = int(authorizer["listen"].rsplit(":", 1)[1])
        plain = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        connection = http.client.HTTPSConnection(name, port, context=context, timeout=TIMEOUT)
        connection.sock = context.wrap_socket(plain, server_hostname=name)
        connection.request("POST", "/", json.dumps(review), {"Content-Type": "application/json"})
        return json.load(connection.getresponse())["response"]

    def _get(self, service: dict, client: str) -> int | None:
        """The status of the response, or None without a response."""
        name = service.get("server_names", ["localhost"])[0]
        return self._request(int(service["listen"].rsplit(":", 1)[1]), client, "GET", "/", name)

    def _request(self, port: int, client: str, method: str, path: str, name: str = "localhost") -> int | None:
        context = ssl.create_default_context(cafile=self.scene / "ca.pem")
        context.load_cert_chain(self.scene / f"{client}.pem", self.scene / f"{client}.key")
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=TIMEOUT)
        try:
            plain = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
            connection.sock = context.wrap_socket(plain, server_hostname=name)
            connection.request(method, path, headers={"Host": name})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _check_filter_reload(self, keygate: Container, refresh: Container | None) -> None:
        key = self.directory / "another.key"
        generate = ["openssl", "genpkey", "-quiet", "-algorithm", "ED25519", "-out", key]
        subprocess.run(generate, check=True)
        before = self._filter_files()
        if refresh:
            (self.published / "filter.sha256").write_text("0" * 64 + "  filter\n")
            refresh.wait_for_line("its SHA-256 is")
            refresh.wait_for_line("its SHA-256 is")  # the second attempt starts after the first one has ended
            expect(self._filter_files() == before, refresh.name, "installs a filter that does not match its checksum")
        add = [KEYGATE, "filter", "add", self.scene / "pwnedkeys.pkbf", key]
        subprocess.run(add, check=True, capture_output=True)
        if refresh:
            self._publish()
        else:
            self._write_filter()
        keygate.wait_for_line('"message":"filter loaded"')
        keygate.wait_for_line('"message":"snapshot in use"')

    def _check_configuration_reload(self, keygate: Container) -> None:
        shown = subprocess.run([KEYGATE, "key", "--json", self.scene / "lost.pem"], check=True, capture_output=True, text=True)
        [fingerprint] = re.findall(r'"fingerprint":"([0-9a-f]{64})"', shown.stdout)[:1]
        exception = f'\n[[exceptions]]\nfingerprint = "{fingerprint}"\nuntil = 2099-12-31\nreason = "a check"\n'
        volume = next(one for one in self.deployed.volumes(self.deployed.keygate) if one["mountPath"] == "/etc/keygate")
        files = {"keygate.toml": self._with_source(self.deployed.config_text()) + exception}
        _swap(self.volumes[volume["name"]], files, 0o644, self.deployed.pod["securityContext"]["fsGroup"])
        keygate.wait_for_line('"message":"configuration loaded"')
        keygate.wait_for_line('"message":"snapshot in use"')
        for service in self.deployed.services[-1:]:
            expect(self._get(service, "lost") == _admitted(service), self.deployed.name, "the exception has no effect")
        for authorizer in self.deployed.authorizers:
            lost = self._review(authorizer, "lost")
            expect(lost == {"uid": "a-uid", "allowed": True}, self.deployed.name, f"the exception has no effect: {lost}")

    def _check_shutdown(self, keygate: Container) -> None:
        grace = self.deployed.pod["terminationGracePeriodSeconds"]
        keygate.signal(signal.SIGTERM)
        keygate.wait_for_line('"message":"no longer ready"')
        if self.deployed.seconds("readiness_delay"):
            expect(self._probe("readinessProbe") == 503, keygate.name, "is ready during shutdown")
            expect(self._probe("livenessProbe") == 200, keygate.name, "is not live during shutdown")
        expect(keygate.exit_code(grace) == 0, keygate.name, f"does not stop within {grace} s")

    # The surroundings of the pod.

    def _publish(self) -> None:
        """Publishes the filter and its checksum on a server."""
        for name in ("", ".sha256"):
            _replace(self.scene / f"pwnedkeys.pkbf{name}", self.published / f"filter{name}")

    def _filters(self) -> pathlib.Path:
        mounted = self.deployed.volumes(self.deployed.keygate)
        return self.volumes[next(volume["name"] for volume in mounted if volume["mountPath"] == "/filters")]

    def _filter_files(self) -> list[bytes]:
        """The visible files of the filter volume."""
        return [file.read_bytes() for file in sorted(self._filters().glob("[!.]*"))]

    def _write_filter(self) -> None:
        """Installs the filter, instead of a container with another image."""
        _replace(self.scene / "pwnedkeys.pkbf", self._filters() / self.filter)

    def _hosts(self) -> str:
        lines = ["127.0.0.1 localhost"]
        inside = any("httpd" in str(one) for one in self.deployed.pod["containers"])
        for service in self.deployed.services:
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
    """An upstream. It skips a PROXY header of version 2."""

    protocol_version = "HTTP/1.1"

    def parse_request(self) -> bool:
        if self.raw_requestline == b"\r\n":  # the signature begins with an empty line
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


def _admitted(service: dict) -> int:
    """The status that an admitted client gets: 502 from upstreams that need HTTP/2, which _Greeter lacks."""
    return 502 if str(service["upstream"]["servers"]).startswith("['h2c:") else 200


def _replace(source: pathlib.Path, target: pathlib.Path) -> None:
    incoming = target.with_name(".incoming")
    shutil.copy(source, incoming)
    os.rename(incoming, target)


def _swap(volume: pathlib.Path, files: dict[str, str], mode: int, group: int) -> None:
    """Writes files as the kubelet writes a ConfigMap: into a new directory, then renames a link over the old one."""
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
