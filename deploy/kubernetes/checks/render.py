"""Renders the manifests with kubectl and helm."""

import json
import pathlib
import re
import subprocess
import tempfile

import yaml

from problems import expect

HERE = pathlib.Path(__file__).resolve().parent.parent
CHART = HERE / "helm/keygate"
# The kustomizations that have pods. Each includes the component.
KUSTOMIZATIONS = ("base", "sidecar", "overlays/example", "admission")
# Arguments that the chart must reject, by a part of its error message.
REJECTED = {
    "config has no filter or list with a source": ["--set-string", "config=[[filters]]"],
    "claimName: which claim": ["--set", "filter.source=claim"],
    "'not' failed": ["--set-string", "config=[admin]\nlisten = \"0.0.0.0:1\""],
    "additional properties 'replicaCount'": ["--set", "replicaCount=3"],
    "value must be one of 'fetch'": ["--set", "filter.source=git"],
    "at '/admin/port'": ["--set", "admin.port=80"],
}


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys. PyYAML would take the last one."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate keys {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def every() -> dict[str, list[dict]]:
    """The objects of each kustomization, and of the chart with each values file, by name."""
    found = {}
    for name in KUSTOMIZATIONS:
        found[name] = _rendered(name, "kubectl", "kustomize", str(HERE / name))
        _check_patch_targets(name, found[name])
    for values in sorted(CHART.glob("ci/*.yaml")):
        found[values.name] = _released(values.name, values)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as values:
        [text] = blocks(CHART / "README.md", "yaml")
        values.write(text)
        values.flush()
        found["the page on the chart"] = _released("the page on the chart", values.name)
    for message, arguments in REJECTED.items():
        rejected = _run("helm", "template", "front", str(CHART), *arguments)
        expect(rejected.returncode != 0 and message in rejected.stderr, "the chart", f"does not fail with: {message}")
    return found


def _check_patch_targets(name: str, objects: list[dict]) -> None:
    """Checks the targets of patches, because kubectl ignores a patch without a target."""
    for patch in yaml.safe_load((HERE / name / "kustomization.yaml").read_text()).get("patches", []):
        if target := patch.get("target"):
            targets = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])]
            expect(targets, name, f"the patch target {target} does not exist")


def secrets_of(page: pathlib.Path, directory: pathlib.Path) -> dict[str, set[str]]:
    """The Secrets that the commands of a page create from the files of a directory, with their keys."""
    [commands] = [block for block in blocks(page, "sh") if "create secret" in block]
    secrets = {}
    for command in commands.splitlines():
        if command.startswith("kubectl create secret"):
            run = _run(*command.split(), "--dry-run=client", "--output=json", cwd=directory)
            expect(run.returncode == 0, str(page), run.stderr)
            secret = json.loads(run.stdout or '{"metadata": {"name": ""}, "data": {}}')
            secrets[secret["metadata"]["name"]] = set(secret["data"])
    return secrets


def blocks(page: pathlib.Path, language: str) -> list[str]:
    """The code blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def _released(name: str, values: str | pathlib.Path) -> list[dict]:
    with_values = (str(CHART), "--values", str(values))
    lint = _run("helm", "lint", "--strict", *with_values)
    expect(lint.returncode == 0, name, lint.stdout + lint.stderr)
    return _rendered(name, "helm", "template", "front", *with_values, "--namespace", "shop", "--kube-version", "1.29")


def _rendered(name: str, *command: str) -> list[dict]:
    run = _run(*command)
    expect(run.returncode == 0, name, run.stderr)
    expect("warning" not in run.stderr.lower(), name, run.stderr)
    try:
        return [found for found in yaml.load_all(run.stdout, _Loader) if found]
    except yaml.YAMLError as error:
        expect(False, name, str(error))
        return []


def _run(*command: str, cwd: pathlib.Path = HERE) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
