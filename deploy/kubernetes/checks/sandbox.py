"""A container as its manifest describes it: its volumes and nothing else, as its user without any right, on a file system
that cannot be written to, as the first process of its own.

The network is that of the whole pod. In the place of an image stands what Debian has: busybox and curl.
"""

import json
import os
import pathlib
import queue
import subprocess
import threading

from problems import expect

PATIENCE = 30
_PATH = {"PATH": "/bin:/usr/bin"}


class Container:
    """One that runs, with what it says on standard error."""

    def __init__(self, name: str, spec: dict, user: dict, mounts: dict[str, tuple], command: list[str], **options) -> None:
        self.name = name
        self._said = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [*_bubblewrap(mounts, write, **options), *_user(user), *command],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, pass_fds=[write],
            env=_PATH | {one["name"]: one["value"] for one in spec.get("env", [])},
        )
        os.close(write)
        with open(read) as information:
            self._first = json.load(information)["child-pid"]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._process.stderr:
            self._lines.put(line.rstrip())
        self._lines.put(None)

    def says(self, part: str) -> None:
        """Waits for a line with this part in it, among those that nobody has waited for yet."""
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE)
            except queue.Empty:
                line = None
            if line is None:
                expect(False, self.name, f"does not say {part!r}, but {self._said}")
                return
            self._said.append(line)
            if part in line:
                return

    def said(self) -> list[str]:
        """Everything that it said, once it has ended."""
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            self._said.append(line)
        return self._said

    def ends(self, within: float = PATIENCE) -> int | None:
        """The exit code, or nothing if it goes on."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        os.kill(self._first, number)

    def run(self, command: list[str], user: dict) -> int:
        """Another command in the same container, as a probe is."""
        inside = ["nsenter", f"--target={self._first}", "--mount", "--pid", f"--root=/proc/{self._first}/root"]
        run = subprocess.run([*inside, *_user(user), *command], env=_PATH, check=False, capture_output=True)
        return run.returncode

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _user(context: dict) -> list[str]:
    identity = [f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}", f"--groups={context['fsGroup']}"]
    return ["/usr/bin/setpriv", *identity, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]


def _bubblewrap(mounts: dict[str, tuple], write: int, hosts: str, binary: str, applets: str) -> list[str]:
    """Without --unshare-user: rights are those of the real user, to files with real owners."""
    command = ["bwrap", "--unshare-pid", "--as-pid-1", "--die-with-parent", "--info-fd", str(write)]
    binds = {
        "/usr/lib": ("/usr/lib", True),
        "/usr/bin/setpriv": ("/usr/bin/setpriv", True),
        "/usr/bin/curl": ("/usr/bin/curl", True),
        "/usr/bin/keygate": (binary, True),
        "/etc/hosts": (hosts, True),
        "/bin": (applets, True),
        **mounts,
    }
    if os.path.isdir("/usr/lib64"):
        binds["/usr/lib64"] = ("/usr/lib64", True)
        command += ["--symlink", "usr/lib64", "/lib64"]
    # Else those in between would be for root alone.
    for parent in sorted({str(parent) for path in binds for parent in pathlib.PurePath(path).parents} - {"/"}):
        command += ["--perms", "0755", "--dir", parent]
    for path, (source, read_only) in binds.items():
        command += ["--ro-bind" if read_only else "--bind", source, path]
    return [*command, "--symlink", "usr/lib", "/lib", "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/"]
