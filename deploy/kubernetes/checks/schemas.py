"""Validates every object against each version of Kubernetes that has sidecar containers."""

import jsonschema
import kubernetes_validate
from cloudcoil.models.prometheus_operator import v1 as monitoring

from problems import expect

VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
MONITORS = ("PodMonitor", "ServiceMonitor")


def _strict(schema):
    """Rejects unknown fields, because the API server drops them silently."""
    if isinstance(schema, dict):
        strict = {key: _strict(value) for key, value in schema.items()}
        if "properties" in schema:
            strict.setdefault("additionalProperties", False)
        return strict
    if isinstance(schema, list):
        return [_strict(value) for value in schema]
    return schema


_monitors = {kind: _strict(getattr(monitoring, kind).model_json_schema()) for kind in MONITORS}


def check(name: str, objects: list[dict]) -> None:
    for found in objects:
        where = f"{name}: {found['kind']} {found['metadata']['name']}"
        if found["apiVersion"] == "monitoring.coreos.com/v1":
            validator = jsonschema.Draft202012Validator(_monitors[found["kind"]])
            for error in validator.iter_errors(found):
                expect(False, where, f"{'.'.join(map(str, error.path))}: {error.message}")
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(found, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                expect(False, where, f"{version}: {'.'.join(map(str, error.path))}: {error.message}")
                break
