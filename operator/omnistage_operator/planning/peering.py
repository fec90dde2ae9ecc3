"""Network policies along the edges of a pipeline: who may reach whose tensors and streams.

A stage by itself lets in gateways and scrapers only. Where an edge joins two stages, the consumer
fetches from the producer and subscribes to it, and the transfer engine opens ports of its own choice in
both directions; so each side lets in the other, and nobody else.
"""

from collections.abc import Mapping
from typing import Any

from omnistage_common.ids import StageName
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.pipeline.published import PIPELINE_LABEL, STAGE_LABEL, PublishedService
from omnistage_operator.planning.decisions import Json
from omnistage_operator.planning.names import child_name
from omnistage_operator.planning.plans import owner_reference

__all__ = ["peer_policies"]


def peer_policies(
    pipeline: Json, plan: PipelinePlan, services: Mapping[StageName, PublishedService]
) -> list[dict[str, Any]]:
    """One policy for each stage that has an edge."""
    peers: dict[str, set[str]] = {}
    for edge in plan.edges:
        ends = services[edge.producer].stage, services[edge.consumer].stage
        for one, other in (ends, ends[::-1]):
            peers.setdefault(one, set()).add(other)
    return [_policy(pipeline, stage, sorted(peers[stage])) for stage in sorted(peers)]


def _policy(pipeline: Json, stage: str, peers: list[str]) -> dict[str, Any]:
    metadata = pipeline["metadata"]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": child_name(metadata["name"], f"peers-of-{stage}"),
            "namespace": metadata["namespace"],
            "labels": {
                "app.kubernetes.io/managed-by": "omnistage-operator",
                PIPELINE_LABEL: metadata["name"],
            },
            "ownerReferences": [owner_reference(pipeline)],
        },
        "spec": {
            "podSelector": {"matchLabels": {STAGE_LABEL: stage}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {STAGE_LABEL: peer}}} for peer in peers]}
            ],
        },
    }
