"""Validates every object against each version of Kubernetes that has sidecar containers."""

import jsonschema
import kubernetes_validate
from cloudcoil.models.cert_manager import v1 as certificates
from cloudcoil.models.prometheus_operator import v1 as monitoring

from problems import expect

VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
# The resources of operators.
KINDS = {
    "cert-manager.io/v1": (certificates, "Certificate", "Issuer"),
    "monitoring.coreos.com/v1": (monitoring, "PodMonitor", "ServiceMonitor"),
}


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


_schemas = {
    (version, kind): _strict(getattr(models, kind).model_json_schema())
    for version, (models, *kinds) in KINDS.items()
    for kind in kinds
}


def check(name: str, objects: list[dict]) -> None:
    for found in objects:
        where = f"{name}: {found['kind']} {found['metadata']['name']}"
        if found["apiVersion"] in KINDS:
            validator = jsonschema.Draft202012Validator(_schemas[found["apiVersion"], found["kind"]])
            for error in validator.iter_errors(found):
                expect(False, where, f"{'.'.join(map(str, error.path))}: {error.message}")
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(found, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                expect(False, where, f"{version}: {'.'.join(map(str, error.path))}: {error.message}")
                break
