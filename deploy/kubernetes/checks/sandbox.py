"""Runs a container as its manifest describes it: with its volumes only, as its user without capabilities, on a
read-only file system, in a new process namespace.

The containers of a pod share the network. Debian's busybox replaces the image of an application.
"""

import json
import os
import pathlib
import queue
import subprocess
import threading

from problems import expect

# In seconds, for each step of a container.
TIMEOUT = 30
_PATH = {"PATH": "/bin:/usr/bin"}


class Container:
    """A running container and its lines on standard error."""

    def __init__(self, name: str, spec: dict, user: dict, mounts: dict[str, tuple], command: list[str], **options) -> None:
        self.name = name
        self._output = []
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
        threading.Thread(target=self._read_lines, daemon=True).start()

    def _read_lines(self) -> None:
        for line in self._process.stderr:
            self._lines.put(line.rstrip())
        self._lines.put(None)

    def wait_for_line(self, part: str) -> None:
        """Waits for a line that contains `part` after the line that the previous call found."""
        while True:
            try:
                line = self._lines.get(timeout=TIMEOUT)
            except queue.Empty:
                line = None
            if line is None:
                expect(False, self.name, f"does not print {part!r}, but {self._output}")
                return
            self._output.append(line)
            if part in line:
                return

    def output(self) -> list[str]:
        """All lines. Waits until the container has ended."""
        while (line := self._lines.get(timeout=TIMEOUT)) is not None:
            self._output.append(line)
        return self._output

    def exit_code(self, within: float = TIMEOUT) -> int | None:
        """The exit code, or None if the container still runs after `within` seconds."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        os.kill(self._first, number)

    def run(self, command: list[str], user: dict) -> int:
        """Runs another command in the container, as a probe does, and returns its exit code."""
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
    """The bwrap command, without --unshare-user, so that real users access files with real owners."""
    command = ["bwrap", "--unshare-pid", "--as-pid-1", "--die-with-parent", "--info-fd", str(write)]
    binds = {
        "/usr/lib": ("/usr/lib", True),
        "/usr/bin/setpriv": ("/usr/bin/setpriv", True),
        "/usr/bin/keygate": (binary, True),
        "/etc/hosts": (hosts, True),
        "/bin": (applets, True),
        **mounts,
    }
    if os.path.isdir("/usr/lib64"):
        binds["/usr/lib64"] = ("/usr/lib64", True)
        command += ["--symlink", "usr/lib64", "/lib64"]
    # bwrap would create parent directories that only root can enter.
    for parent in sorted({str(parent) for path in binds for parent in pathlib.PurePath(path).parents} - {"/"}):
        command += ["--perms", "0755", "--dir", parent]
    for path, (source, read_only) in binds.items():
        command += ["--ro-bind" if read_only else "--bind", source, path]
    return [*command, "--symlink", "usr/lib", "/lib", "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/"]
