"""The manifests as kubectl and helm render them."""

import json
import pathlib
import re
import subprocess
import tempfile

import yaml

from problems import expect

HERE = pathlib.Path(__file__).resolve().parent.parent
CHART = HERE / "helm/keygate"
# Those with pods in them; the script of the component is rendered with each.
KUSTOMIZATIONS = ("base", "sidecar", "overlays/example")
# What the chart must not take, and a part of what it says then.
REFUSED = {
    "filter.url: where is the filter?": [],
    "claimName: which claim": ["--set", "filter.source=claim"],
    "'not' failed": ["--set", "filter.url=https://x", "--set-string", "config=[admin]\nlisten = \"0.0.0.0:1\""],
    "additional properties 'replicaCount'": ["--set", "filter.url=https://x", "--set", "replicaCount=3"],
    "value must be one of 'url'": ["--set", "filter.source=git"],
    "at '/admin/port'": ["--set", "filter.url=https://x", "--set", "admin.port=80"],
}


class _Loader(yaml.SafeLoader):
    """A key that is there twice is a mistake, and not the second."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def every() -> dict[str, list[dict]]:
    """What is to be checked, by name: the objects of each kustomization, and of the chart with each file of values."""
    found = {}
    for name in KUSTOMIZATIONS:
        found[name] = _rendered(name, "kubectl", "kustomize", str(HERE / name))
        _patches_reach_something(name, found[name])
    for values in sorted(CHART.glob("ci/*.yaml")):
        found[values.name] = _released(values.name, values)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as values:
        [text] = blocks(CHART / "README.md", "yaml")
        values.write(text)
        values.flush()
        found["the page on the chart"] = _released("the page on the chart", values.name)
    for message, arguments in REFUSED.items():
        refused = _run("helm", "template", "front", str(CHART), *arguments)
        expect(refused.returncode != 0 and message in refused.stderr, "the chart", f"takes what it must not: {message}")
    script, copy = HERE / "components/filter-from-url/fetch-filter", CHART / "files/fetch-filter"
    expect(script.read_text() == copy.read_text(), str(copy), f"is not the same as {script}")
    return found


def _patches_reach_something(name: str, objects: list[dict]) -> None:
    """A patch for what is not there changes nothing, and kubectl says nothing of it."""
    for patch in yaml.safe_load((HERE / name / "kustomization.yaml").read_text()).get("patches", []):
        if target := patch.get("target"):
            reached = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])]
            expect(reached, name, f"a patch is for {target}, which is not there")


def secrets_of(page: pathlib.Path, directory: pathlib.Path) -> dict[str, set[str]]:
    """The Secrets that the commands of a page make, with their keys, where there is a directory with the files."""
    [commands] = [block for block in blocks(page, "sh") if "create secret" in block]
    made = {}
    for command in commands.splitlines():
        if command.startswith("kubectl create secret"):
            run = _run(*command.split(), "--dry-run=client", "--output=json", cwd=directory)
            expect(run.returncode == 0, str(page), run.stderr)
            secret = json.loads(run.stdout or '{"metadata": {"name": ""}, "data": {}}')
            made[secret["metadata"]["name"]] = set(secret["data"])
    return made


def blocks(page: pathlib.Path, language: str) -> list[str]:
    """What stands on a page in this language."""
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
