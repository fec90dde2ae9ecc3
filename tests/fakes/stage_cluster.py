"""A namespace as far as one stage sees it: objects as an API server would have them, and pod states.

`Namespace` does with a decision what an executor and a cluster would do: children are there, those that
go are gone, and the status is kept. Pods come only when a test says so.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from omnistage_common.ids import Revision
from omnistage_operator.planning.decisions import Decision
from omnistage_operator.planning.labels import replica_labels
from omnistage_operator.planning.settings import OperatorSettings
from omnistage_operator.planning.stages import ObservedStage, PlanReference, plan_stage

__all__ = [
    "NAMESPACE",
    "NOW",
    "SETTINGS",
    "STAGE",
    "Namespace",
    "Object",
    "event_about",
    "plan_naming",
    "pod",
    "running",
    "runtime_object",
    "stage_object",
    "waiting",
]

Object = dict[str, Any]

STAGE: Final = "voice-thinker"
NAMESPACE: Final = "models"
NOW: Final = "2026-12-01T08:00:00Z"
SETTINGS: Final = OperatorSettings(
    stage_image="example.org/omnistage-stage:0.1.0", gateway_namespace="omnistage"
)


def stage_object(*, name: str = STAGE, generation: int = 1, **spec: Any) -> Object:
    """A `Stage` of simulated words; a field that is None is left out."""
    fields = {
        "replicas": 1,
        "execution": "Autoregressive",
        "engine": "simulated",
        "engineArgs": {"outputs": {"text": {"text": " word"}}},
        "consumes": [{"name": "conversation", "kind": "conversation"}],
        "produces": [{"name": "text", "kind": "text"}],
        **spec,
    }
    return {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "Stage",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-of-{name}",
            "generation": generation,
        },
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def runtime_object(name: str = "gpu", *, engine: str = "simulated", **spec: Any) -> Object:
    """A `StageRuntime`."""
    return {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "StageRuntime",
        "metadata": {"name": name, "uid": f"uid-of-{name}"},
        "spec": {"engine": engine, **spec},
    }


def plan_naming(*references: PlanReference) -> Object:
    """A plan ConfigMap that keeps stage revisions alive."""
    services = {
        stage: {"stage": stage, "revision": revision, "service": f"{stage}-{revision}"}
        for stage, revision in references
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "plan", "namespace": NAMESPACE, "uid": "uid-of-plan"},
        "data": {"services.json": msgspec.json.encode(services).decode()},
    }


def pod(
    revision: str,
    name: str = "replica-0",
    *,
    node: str | None = "node-0",
    conditions: Mapping[str, Mapping[str, str]] | None = None,
    container: Mapping[str, Any] | None = None,
    leaving: bool = False,
    **status: Any,
) -> Object:
    """A pod of `STAGE`, waiting for its container unless it is said otherwise.

    Args:
        revision: Which it is of.
        name: Of the pod.
        node: None for one that is on no node yet.
        conditions: Type -> fields of the condition.
        container: State of its container; None for none yet.
        leaving: Whether its end has begun.
        status: More of its status.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-of-{name}",
            "labels": replica_labels(STAGE, Revision(revision)),
            **({"deletionTimestamp": NOW} if leaving else {}),
        },
        "spec": {"nodeName": node} if node is not None else {},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": kind, **each} for kind, each in (conditions or {}).items()],
            **({"containerStatuses": [{"name": "stage", **container}]} if container else {}),
            **status,
        },
    }


def running(
    revision: str, name: str = "replica-0", *, ready: bool = True, leaving: bool = False
) -> Object:
    """A pod whose process runs."""
    return pod(
        revision,
        name,
        conditions={"Ready": {"status": "True" if ready else "False"}},
        container={"ready": ready, "started": True, "state": {"running": {"startedAt": NOW}}},
        leaving=leaving,
        phase="Running",
    )


def waiting(reason: str, message: str = "", **container: Any) -> Object:
    """State of a container that is not there."""
    return {"state": {"waiting": {"reason": reason, "message": message}}, **container}


def event_about(of: Object, reason: str, note: str, *, at: str = NOW) -> Object:
    """An event about a pod, as the kubelet writes it."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{reason}-{at}", "namespace": NAMESPACE},
        "regarding": {"kind": "Pod", "uid": of["metadata"]["uid"]},
        "reason": reason,
        "note": note,
        "deprecatedLastTimestamp": at,
    }


class Namespace:
    """What there is, and what becomes of a decision."""

    def __init__(self, stage: Object, *, settings: OperatorSettings = SETTINGS) -> None:
        self.stage = stage
        self.settings = settings
        self.runtime: Object | None = None
        self.plans: frozenset[PlanReference] = frozenset()
        self.pods: list[Object] = []
        self.events: list[Object] = []
        self.children: dict[tuple[str, str], Object] = {}

    def plan(self, *, now: str = NOW) -> Decision:
        """What follows from what there is."""
        return plan_stage(
            ObservedStage(
                stage=self.stage,
                runtime=self.runtime,
                references=self.plans,
                children=tuple(self.children.values()),
                pods=tuple(self.pods),
                events=tuple(self.events),
            ),
            self.settings,
            now=now,
        )

    def settle(self, *, now: str = NOW) -> Decision:
        """Does what follows, and returns it."""
        decision = self.plan(now=now)
        for intent in decision.apply:
            name = intent["metadata"]["name"]
            child = copy.deepcopy(dict(intent))
            child["metadata"]["uid"] = f"uid-of-{intent['kind']}-{name}"
            self.children[intent["kind"], name] = child
        for gone in decision.delete:
            del self.children[gone.kind, gone.name]
        if decision.status is not None:
            self.stage = {**self.stage, "status": copy.deepcopy(dict(decision.status))}
        return decision

    def change(self, **spec: Any) -> None:
        """Writes fields of the stage's spec; None takes one out."""
        fields = {**self.stage["spec"], **spec}
        metadata = self.stage["metadata"]
        self.stage = {
            **self.stage,
            "metadata": {**metadata, "generation": metadata["generation"] + 1},
            "spec": {key: value for key, value in fields.items() if value is not None},
        }

    def of_kind(self, kind: str) -> list[Object]:
        """Children of a kind."""
        return [child for child in self.children.values() if child["kind"] == kind]

    def revisions(self, kinds: Iterable[str] = ("ConfigMap", "Deployment", "Service")) -> set[str]:
        """Revisions of which every one of these kinds is there."""
        found = [
            {child["metadata"]["labels"]["omnistage.io/revision"] for child in self.of_kind(kind)}
            for kind in kinds
        ]
        return set.intersection(*found)

    @property
    def status(self) -> Object:
        """What was said last."""
        found: Object = self.stage["status"]
        return found

    @property
    def revision(self) -> Revision:
        """The one that the spec describes, as it was said last."""
        return Revision(self.status["revision"])

    def deployment(self, revision: str | None = None) -> Object:
        """The workload of a revision, of the spec's own if none is named."""
        wanted = revision or self.revision
        return next(
            each
            for each in self.of_kind("Deployment")
            if each["metadata"]["labels"]["omnistage.io/revision"] == wanted
        )
