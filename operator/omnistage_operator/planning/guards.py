"""What keeps a stage safe, whatever its revision: identity, network, disruptions, and its scale."""

from typing import Any, Final

from omnistage_common.pipeline.published import GATEWAY_NAME, NAME_LABEL, STAGE_LABEL
from omnistage_common.pipeline.quantities import seconds_of
from omnistage_common.pipeline.resources import Autoscaling
from omnistage_common.pipeline.standing import StandingStage
from omnistage_operator.planning.decisions import Json
from omnistage_operator.planning.labels import stage_labels
from omnistage_operator.planning.names import account_name
from omnistage_operator.planning.pods import METRICS_PORT
from omnistage_operator.planning.settings import OperatorSettings
from omnistage_operator.planning.workloads import child

__all__ = [
    "QUEUE_WAIT_METRIC",
    "autoscaler",
    "disruption_budget",
    "network_policy",
    "service_account",
]

QUEUE_WAIT_METRIC: Final = "omnistage_stage_queue_wait_seconds"
"""Metric of a pod that an autoscaler reads from the custom metrics API: the mean wait for a place in
the engine over the last minute or so, in seconds. Replicas export it as a histogram; whoever serves
that API (e.g. a Prometheus adapter) divides the rate of its `_sum` by that of its `_count`."""


def service_account(stage: Json, settings: OperatorSettings) -> dict[str, Any]:
    """An identity without rights and without a token.

    What its images are pulled with stands here and not in the pods, which would all start anew.
    """
    secrets = [{"name": name} for name in settings.pull_secrets]
    return _of_stage(
        stage,
        ("v1", "ServiceAccount"),
        name=account_name(stage["metadata"]["name"]),
        automountServiceAccountToken=False,
        **({"imagePullSecrets": secrets} if secrets else {}),
    )


def disruption_budget(stage: Json) -> dict[str, Any]:
    """One replica at a time may be evicted; one that does not serve, always."""
    return _of_stage(
        stage,
        ("policy/v1", "PodDisruptionBudget"),
        spec={
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": _every_replica(stage)},
        },
    )


def network_policy(
    stage: Json, standing: StandingStage, settings: OperatorSettings
) -> dict[str, Any]:
    """Gateways may reach the replicas, on any port: a transfer engine listens where it likes.

    So may the pods of a gang each other. Metrics may be read by anybody. Which stages may, the pipelines add. What replicas reach is left
    open: they fetch models from where users say.
    """
    gateways = {
        "namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": settings.gateway_namespace}
        },
        "podSelector": {"matchLabels": {NAME_LABEL: GATEWAY_NAME}},
    }
    gang = standing.assignment.stage.parallelism.nodes > 1
    members = [{"podSelector": {"matchLabels": _every_replica(stage)}}] if gang else []
    return _of_stage(
        stage,
        ("networking.k8s.io/v1", "NetworkPolicy"),
        spec={
            "podSelector": {"matchLabels": _every_replica(stage)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [gateways, *members]},
                {"ports": [{"port": METRICS_PORT, "protocol": "TCP"}]},
            ],
        },
    )


def autoscaler(stage: Json, scaling: Autoscaling) -> dict[str, Any]:
    """What scales the `Stage` itself, so that a new revision begins with as many replicas."""
    return _of_stage(
        stage,
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
        spec={
            "scaleTargetRef": {
                "apiVersion": stage["apiVersion"],
                "kind": stage["kind"],
                "name": stage["metadata"]["name"],
            },
            "minReplicas": scaling.min_replicas,
            "maxReplicas": scaling.max_replicas,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": QUEUE_WAIT_METRIC},
                        "target": {
                            "type": "AverageValue",
                            "averageValue": _seconds(scaling.target_queue_wait),
                        },
                    },
                }
            ],
        },
    )


def _seconds(duration: str) -> str:
    """A duration as a quantity above zero, in the form that a cluster gives back."""
    milliseconds = max(1, round(seconds_of(duration) * 1000))
    whole, rest = divmod(milliseconds, 1000)
    return f"{milliseconds}m" if rest else str(whole)


def _every_replica(stage: Json) -> dict[str, str]:
    return {STAGE_LABEL: stage["metadata"]["name"]}


def _of_stage(
    stage: Json, kind: tuple[str, str], *, name: str = "", **content: Any
) -> dict[str, Any]:
    own = stage["metadata"]["name"]
    return child(stage, *kind, name or own, stage_labels(own), **content)
