"""The pod of one replica.

It is the same for every pod of a revision, for ever: a changed template starts all pods anew, also
those whose users changed nothing, when a new release of the operator comes to a cluster. So whatever
is added here belongs behind something that users write and that is part of the revision. The image is
passed in: where no runtime names one, the installation decides, and its next release decides anew.
"""

import math
from typing import Any, Final

from msgspec import Struct

from omnistage_common.pipeline.published import STAGE_LABEL
from omnistage_common.pipeline.resources import StageRuntimeSpec
from omnistage_common.pipeline.standing import StandingStage
from omnistage_operator.planning.labels import GangRole, gang_label, replica_labels
from omnistage_operator.planning.names import account_name
from omnistage_operator.planning.requirements import (
    quantity_of,
    requirements,
    shared_memory_bytes,
)

__all__ = ["ASSIGNMENT_KEY", "CONTAINER", "GRPC_PORT", "METRICS_PORT", "Image", "pod_template"]

CONTAINER: Final = "stage"
GRPC_PORT: Final = 7001
METRICS_PORT: Final = 9001
ASSIGNMENT_KEY: Final = "assignment.json"
"""Key of a revision's ConfigMap, and the file that its replicas read."""

_USER: Final = 65532
_LIVENESS_SERVICE: Final = "omnistage.liveness"
"""Of a stage's health: SERVING as long as the process listens, also while it loads and drains."""
_ASSIGNMENT_FOLDER: Final = "/etc/omnistage"
_CACHE_FOLDER: Final = "/var/cache/omnistage"
_SCRATCH_FOLDER: Final = "/tmp"  # noqa: S108 - a volume of the pod's own
_GANG_ARGUMENTS: Final = (
    "--gang-leader",
    "$(LWS_LEADER_ADDRESS)",
    "--gang-rank",
    "$(LWS_WORKER_INDEX)",
)
"""LeaderWorkerSet puts both variables into its pods."""
_LEAVE_SECONDS: Final = 2
"""Until gateways have heard that a replica goes; it still answers then."""
_END_SECONDS: Final = 10
"""From the end of a drain to the end of the process."""


class Image(Struct, frozen=True, kw_only=True):
    """What a replica runs."""

    reference: str
    pull_policy: str | None
    """None for what a cluster does by itself."""


def pod_template(
    stage: str, standing: StandingStage, image: Image, config: str, role: GangRole | None = None
) -> dict[str, Any]:
    """The `template` of a workload.

    Args:
        stage: Name of the `Stage`.
        standing: The stage with every value final.
        image: What it runs.
        config: Name of the ConfigMap that holds its assignment.
        role: What it is to the others of its replica; None where it is the replica.
    """
    assignment = standing.assignment
    runtime = standing.runtime or StageRuntimeSpec(engine=assignment.stage.engine)
    shared_memory = shared_memory_bytes(runtime, assignment.stage.limits)
    spec = {
        "serviceAccountName": account_name(stage),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(assignment.drain)
        + _LEAVE_SECONDS
        + _END_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [_spread(stage)],
        "containers": [_container(standing, runtime, image, shared_memory, role)],
        "volumes": _volumes(config, shared_memory),
    }
    if runtime.node_selector:
        spec["nodeSelector"] = dict(runtime.node_selector)
    if runtime.tolerations:
        spec["tolerations"] = [
            each.model_dump(mode="json", by_alias=True, exclude_none=True)
            for each in runtime.tolerations
        ]
    labels = replica_labels(stage, assignment.stage.revision)
    return {
        "metadata": {"labels": {**labels, **(gang_label(role) if role is not None else {})}},
        "spec": spec,
    }


def _container(
    standing: StandingStage,
    runtime: StageRuntimeSpec,
    image: Image,
    shared_memory: int,
    role: GangRole | None,
) -> dict[str, Any]:
    pull = {"imagePullPolicy": image.pull_policy} if image.pull_policy is not None else {}
    return {
        "name": CONTAINER,
        "image": image.reference,
        **pull,
        "args": [
            "--assignment",
            f"{_ASSIGNMENT_FOLDER}/{ASSIGNMENT_KEY}",
            "--replica",
            "$(POD_NAME)",
            "--listen",
            f"[$(POD_IP)]:{GRPC_PORT}",
            "--metrics",
            f"0.0.0.0:{METRICS_PORT}",
            *(_GANG_ARGUMENTS if role is not None else ()),
        ],
        "env": _environment(standing),
        "ports": [
            {"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        "resources": requirements(runtime, shared_memory),
        **_probes(),
        "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVE_SECONDS}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "assignment", "mountPath": _ASSIGNMENT_FOLDER, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - as above
            {"name": "scratch", "mountPath": _SCRATCH_FOLDER},
            {"name": "cache", "mountPath": _CACHE_FOLDER},
        ],
    }


def _environment(standing: StandingStage) -> list[dict[str, Any]]:
    """Variables by name: what users write wins over folders, and not over who the pod is."""
    variables: dict[str, dict[str, Any]] = {
        "HOME": {"value": _SCRATCH_FOLDER},
        "OMNISTAGE_CACHE": {"value": _CACHE_FOLDER},
    }
    for name, value in standing.assignment.stage.env.items():
        variables[name] = {"value": _literal(value)}
    for secret in standing.secrets:
        if secret.secret_key is not None:
            key = secret.secret_key.model_dump(by_alias=True)
            variables[secret.name] = {"valueFrom": {"secretKeyRef": key}}
    variables["POD_NAME"] = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    variables["POD_IP"] = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [{"name": name, **variables[name]} for name in sorted(variables)]


def _literal(value: str) -> str:
    """A value that a cluster does not take for a reference to another variable."""
    return value.replace("$", "$$")


def _probes() -> dict[str, Any]:
    """Alive is who listens; ready is who has computed something real.

    It has five minutes to import its engine and to listen, and is ended after a minute without an
    answer: an engine that loads may hold the interpreter for a while.
    """
    listens = {"port": GRPC_PORT, "service": _LIVENESS_SERVICE}
    return {
        "startupProbe": {
            "grpc": listens,
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 150,
        },
        "livenessProbe": {
            "grpc": listens,
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        "readinessProbe": {
            "grpc": {"port": GRPC_PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
    }


def _spread(stage: str) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {STAGE_LABEL: stage}},
        "matchLabelKeys": ["pod-template-hash"],
    }


def _volumes(config: str, shared_memory: int) -> list[dict[str, Any]]:
    return [
        {"name": "assignment", "configMap": {"name": config}},
        {
            "name": "shared-memory",
            "emptyDir": {"medium": "Memory", "sizeLimit": quantity_of(shared_memory)},
        },
        {"name": "scratch", "emptyDir": {}},
        {"name": "cache", "emptyDir": {}},
    ]
