"""Checks the Pod Security Standard "restricted", including the rules of "baseline".

Source: <https://kubernetes.io/docs/concepts/security/pod-security-standards/>
"""

from problems import expect

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def containers(pod: dict) -> list[dict]:
    return pod.get("initContainers", []) + pod["containers"]


def check(where: str, template: dict) -> None:
    pod = template["spec"]
    whole = pod.get("securityContext", {})
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        expect(not pod.get(field), where, f"{field} is set")
    for volume in pod.get("volumes", []):
        kinds = set(volume) - {"name"}
        expect(kinds <= VOLUMES, where, f"volume {volume['name']} is {kinds}")
    for annotation in template["metadata"].get("annotations", {}):
        expect("apparmor" not in annotation and "seccomp" not in annotation, where, f"annotation {annotation}")
    expect(not whole.get("sysctls"), where, "sysctls")
    expect(whole.get("supplementalGroups", [1]) and 0 not in whole.get("supplementalGroups", []), where, "group 0")
    _context(where, whole)
    for container in containers(pod):
        _container(f"{where}, container {container['name']}", container, whole)


def _container(where: str, container: dict, whole: dict) -> None:
    own = container.get("securityContext", {})
    _context(where, own)
    expect(not own.get("privileged"), where, "is privileged")
    expect(own.get("allowPrivilegeEscalation") is False, where, "allowPrivilegeEscalation is not false")
    capabilities = own.get("capabilities", {})
    expect("ALL" in capabilities.get("drop", []), where, "does not drop ALL capabilities")
    expect(set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}, where, "adds capabilities")
    expect(own.get("procMount", "Default") == "Default", where, "procMount")
    expect(own.get("runAsNonRoot", whole.get("runAsNonRoot")) is True, where, "may run as root")
    profile = own.get("seccompProfile", whole.get("seccompProfile", {})).get("type")
    expect(profile in ("RuntimeDefault", "Localhost"), where, f"seccompProfile is {profile}")
    for port in container.get("ports", []):
        expect(not port.get("hostPort"), where, "hostPort")
    handlers = [container.get(name, {}) for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    handlers += container.get("lifecycle", {}).values()
    for handler in handlers:
        for kind in ("httpGet", "tcpSocket"):
            expect(not handler.get(kind, {}).get("host"), where, f"{kind} names a host")
    # Stricter than the standard.
    expect(own.get("readOnlyRootFilesystem") is True, where, "has a writable root file system")
    expect(container.get("resources"), where, "no resources")


def _context(where: str, context: dict) -> None:
    for field in ("runAsUser", "runAsGroup", "fsGroup"):
        expect(context.get(field) != 0, where, f"{field} is 0")
    expect(not context.get("seLinuxOptions", {}).get("user"), where, "seLinuxOptions.user")
    expect(not context.get("seLinuxOptions", {}).get("role"), where, "seLinuxOptions.role")
    expect(not context.get("windowsOptions", {}).get("hostProcess"), where, "hostProcess")
    expect(context.get("appArmorProfile", {}).get("type") != "Unconfined", where, "appArmorProfile")
    expect(context.get("seccompProfile", {}).get("type") != "Unconfined", where, "seccompProfile")
