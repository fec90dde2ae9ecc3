"""What runs one revision of a stage: its assignment, its workload, and the Service to find it by.

All three carry the revision in their names, so that an old and a new one stand side by side; none of
them ever changes but for the number of replicas. The workload is a Deployment, and where a replica
spans nodes a LeaderWorkerSet around the same pods, whose leaders are what counts, serves and is found.
"""

from typing import Any, Final

from msgspec.structs import replace

from omnistage_common.pipeline.assignments import encode_assignment
from omnistage_common.pipeline.standing import StandingStage
from omnistage_operator.planning.decisions import Json
from omnistage_operator.planning.labels import GangRole, replica_labels, replica_selector
from omnistage_operator.planning.names import child_name, gang_name, service_name
from omnistage_operator.planning.plans import owner_reference
from omnistage_operator.planning.pods import (
    ASSIGNMENT_KEY,
    CONTAINER,
    GRPC_PORT,
    Image,
    pod_template,
)

__all__ = ["WORKLOADS", "child", "config_map", "image_in", "service", "workload"]

WORKLOADS: Final = frozenset({"Deployment", "LeaderWorkerSet"})
"""Kinds."""

_NO_DEADLINE: Final = 2**31 - 1
"""What a cluster takes for none. Whether a rollout is stuck, and why, is for the `Stage` to say: models
of hundreds of gigabytes are loaded from afar."""


def child(
    stage: Json, api_version: str, kind: str, name: str, labels: dict[str, str], **content: Any
) -> dict[str, Any]:
    """An object that belongs to a stage and goes with it."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": stage["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference(stage)],
        },
        **content,
    }


def config_map(stage: Json, standing: StandingStage, live: Json | None) -> dict[str, Any]:
    """What the replicas of a revision are told; what was written once stays as it is.

    How many they are is none of a revision's business, and is not told.

    Args:
        stage: Its owner.
        standing: The stage with every value final.
        live: The one that is there. An earlier release may have written it with other words.
    """
    assignment = standing.assignment
    one = replace(assignment, stage=replace(assignment.stage, replicas=1))
    written = {ASSIGNMENT_KEY: encode_assignment(one).decode()}
    return _of_revision(
        stage,
        standing,
        ("v1", "ConfigMap"),
        immutable=True,
        data=written if live is None else dict(live.get("data") or {}),
    )


def workload(stage: Json, standing: StandingStage, image: Image, replicas: int) -> dict[str, Any]:
    """What runs the replicas of a revision.

    Args:
        stage: Its owner.
        standing: The stage with every value final.
        image: What they run.
        replicas: How many.
    """
    gang = standing.assignment.stage.parallelism.nodes > 1
    return (_leader_worker_set if gang else _deployment)(stage, standing, image, replicas)


def _deployment(
    stage: Json, standing: StandingStage, image: Image, replicas: int
) -> dict[str, Any]:
    name, revision = stage["metadata"]["name"], standing.assignment.stage.revision
    return _of_revision(
        stage,
        standing,
        ("apps/v1", "Deployment"),
        spec={
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": _NO_DEADLINE,
            "selector": {"matchLabels": replica_selector(name, revision)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": pod_template(name, standing, image, child_name(name, revision)),
        },
    )


def _leader_worker_set(
    stage: Json, standing: StandingStage, image: Image, replicas: int
) -> dict[str, Any]:
    """A gang of pods for each replica; when one of them ends, all of them start anew."""
    own = standing.assignment.stage
    name = stage["metadata"]["name"]

    def template(role: GangRole) -> dict[str, Any]:
        return pod_template(name, standing, image, child_name(name, own.revision), role)

    return child(
        stage,
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        gang_name(name, own.revision),
        replica_labels(name, own.revision),
        spec={
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": own.parallelism.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": template(GangRole.LEADER),
                "workerTemplate": template(GangRole.FOLLOWER),
            },
        },
    )


def service(stage: Json, standing: StandingStage) -> dict[str, Any]:
    """Where gateways find the replicas of a revision, each by its own address."""
    name, revision = stage["metadata"]["name"], standing.assignment.stage.revision
    return child(
        stage,
        "v1",
        "Service",
        service_name(name, revision),
        replica_labels(name, revision),
        spec={
            "clusterIP": "None",
            "selector": replica_selector(
                name, revision, gang=standing.assignment.stage.parallelism.nodes > 1
            ),
            "ports": [
                {"name": "grpc", "port": GRPC_PORT, "targetPort": GRPC_PORT, "protocol": "TCP"}
            ],
        },
    )


def image_in(live: Json) -> Image | None:
    """What the pods of a workload run."""
    spec = live["spec"]
    template = spec.get("template") or spec["leaderWorkerTemplate"]["workerTemplate"]
    for container in template["spec"]["containers"]:
        if container["name"] == CONTAINER:
            return Image(reference=container["image"], pull_policy=container.get("imagePullPolicy"))
    return None


def _of_revision(
    stage: Json, standing: StandingStage, kind: tuple[str, str], **content: Any
) -> dict[str, Any]:
    name, revision = stage["metadata"]["name"], standing.assignment.stage.revision
    labels = replica_labels(name, revision)
    return child(stage, *kind, child_name(name, revision), labels, **content)
