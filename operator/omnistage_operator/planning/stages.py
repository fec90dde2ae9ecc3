"""From a stage and what is there to what should be there: the pure half of its controller.

A stage has a revision, a hash of everything that makes its pods, and each revision its own workload.
The one that the spec describes is brought up and scaled. An older one is left exactly as it is while a
plan of a pipeline names it, for requests run on it; when none does any more, it goes. What is wrong
with a stage becomes a condition, and then nothing is changed: what serves goes on to serve.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from omnistage_common.ids import Revision
from omnistage_common.pipeline.loading import load_objects
from omnistage_common.pipeline.problems import ResourceProblems, raise_errors
from omnistage_common.pipeline.published import STAGE_LABEL
from omnistage_common.pipeline.resources.status import StageReason
from omnistage_common.pipeline.standing import StandingStage, resolve_stage_alone
from omnistage_operator.planning.decisions import Decision, Json, reference_to
from omnistage_operator.planning.guards import (
    autoscaler,
    disruption_budget,
    network_policy,
    service_account,
)
from omnistage_operator.planning.labels import REVISION_LABEL
from omnistage_operator.planning.plans import services_of
from omnistage_operator.planning.pod_states import Finding, is_ready
from omnistage_operator.planning.pods import Image
from omnistage_operator.planning.reasons import MAX_REASON_MESSAGE, explain
from omnistage_operator.planning.settings import OperatorSettings
from omnistage_operator.planning.stage_status import RevisionSeen, StageSeen, stage_status
from omnistage_operator.planning.workloads import (
    WORKLOADS,
    config_map,
    image_in,
    service,
    workload,
)

__all__ = ["ObservedStage", "PlanReference", "plan_references", "plan_stage", "runtime_needed"]

PlanReference = tuple[str, Revision]
"""Name of a `Stage`, and one of its revisions."""

_HOPELESS: Final = frozenset(
    {
        StageReason.CRASH_LOOP,
        StageReason.ENGINE_ARGS_REJECTED,
        StageReason.IMAGE_PULL,
        StageReason.MISSING_DEPENDENCY,
    }
)
"""What another image may mend."""
_NO_GANGS: Final = Finding(
    reason=StageReason.LEADER_WORKER_SET_MISSING,
    message="parallelism.nodes is more than 1, and the cluster does not know LeaderWorkerSet",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedStage:
    """What there is for one stage, as JSON values."""

    stage: Json
    runtime: Json | None
    """The one that it names, if that exists; see `runtime_needed`."""
    references: frozenset[PlanReference]
    """What the plans of its namespace name; see `plan_references`."""
    children: tuple[Json, ...]
    """What it owns: at least its ConfigMaps, workloads, Services, budgets and autoscalers."""
    pods: tuple[Json, ...]
    """Those with its label, of its namespace."""
    events: tuple[Json, ...] = ()
    """About these pods; others may be among them."""


def plan_references(plans: Iterable[Json]) -> frozenset[PlanReference]:
    """The stage revisions that plan ConfigMaps keep alive."""
    return frozenset(
        (each.stage, each.revision) for plan in plans for each in services_of(plan).values()
    )


def runtime_needed(stage: Json) -> str | None:
    """Name of the runtime that a stage names."""
    runtime: Json = stage["spec"].get("runtime") or {}
    return runtime.get("name")


def plan_stage(observed: ObservedStage, settings: OperatorSettings, *, now: str) -> Decision:
    """What should be there for a stage, and what to say about it.

    Args:
        observed: What is there.
        settings: What the installation decides.
        now: The time, as a cluster writes it.
    """
    if observed.stage["metadata"].get("deletionTimestamp"):
        return Decision()
    try:
        standing = _resolved(observed)
    except ResourceProblems as invalid:
        return _unchanged(observed, invalid, now)
    runnable = settings.leader_worker_sets or standing.assignment.stage.parallelism.nodes == 1
    revision = standing.assignment.stage.revision
    desired = _replicas(observed.stage)
    live = _Live.of(observed.children)
    own_pods = _pods_of(observed, revision)
    finding = _NO_GANGS
    if runnable:
        finding = explain(
            desired=desired,
            workload=live.workloads.get(revision),
            pods=own_pods,
            events=observed.events,
        )
    seen = StageSeen(
        stage=observed.stage,
        revision=revision,
        finding=finding,
        revisions=_revisions(observed, live, {revision: desired}),
    )
    if not runnable:
        return Decision(status=stage_status(seen, now))
    hopeless = finding.reason in _HOPELESS and not any(map(is_ready, own_pods))
    began = None if hopeless or not own_pods else live.workloads.get(revision)
    image = _image(standing, settings, began)
    return Decision(
        apply=tuple(_children(observed.stage, standing, settings, live, image)),
        delete=tuple(reference_to(each) for each in _unused(observed, standing)),
        status=stage_status(seen, now),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Live:
    """The children that are looked at again, by revision."""

    config_maps: Mapping[Revision, Json]
    workloads: Mapping[Revision, Json]

    @classmethod
    def of(cls, children: Iterable[Json]) -> "_Live":
        every = tuple(children)
        return cls(
            config_maps=_by_revision(every, {"ConfigMap"}),
            workloads=_by_revision(every, WORKLOADS),
        )


def _by_revision(children: Iterable[Json], kinds: Container[str]) -> dict[Revision, Json]:
    return {
        revision: each
        for each in children
        if each["kind"] in kinds and (revision := _revision_of(each)) is not None
    }


def _revision_of(obj: Json) -> Revision | None:
    found = (obj["metadata"].get("labels") or {}).get(REVISION_LABEL)
    return Revision(found) if found is not None else None


def _resolved(observed: ObservedStage) -> StandingStage:
    """The stage with every value final.

    Raises:
        ResourceProblems: With everything that is wrong with it.
    """
    runtimes = [observed.runtime] if observed.runtime is not None else []
    resources = load_objects([observed.stage, *runtimes])
    raise_errors(resources.problems)
    runtime = resources.runtimes[0].resource if resources.runtimes else None
    return resolve_stage_alone(resources.stages[0].resource, runtime)


def _replicas(stage: Json) -> int:
    """Replicas that should be there: people and autoscalers write the same field."""
    return int(stage["spec"].get("replicas", 1))


def _image(standing: StandingStage, settings: OperatorSettings, began: Json | None) -> Image:
    """What the replicas run.

    What users do not write stays as a revision began with it: the next release of an installation
    comes with other images, and starts no pod anew.

    Args:
        standing: The stage with every value final.
        settings: What the installation decides now.
        began: The workload of this revision; None where nothing runs, or nothing that could be kept.
    """
    runtime, policy = standing.runtime, settings.pull_policy
    kept = image_in(began) if began is not None else None
    if runtime is not None and runtime.image is not None:
        reference = runtime.image
    else:
        reference = settings.image_of(standing.assignment.stage.engine)
        reference = kept.reference if kept is not None else reference
    if policy is None:
        return Image(reference=reference, pull_policy=None)
    return Image(reference=reference, pull_policy=kept.pull_policy if kept else policy.value)


def _children(
    stage: Json, standing: StandingStage, settings: OperatorSettings, live: _Live, image: Image
) -> list[dict[str, Any]]:
    """Everything of a stage and of the revision that its spec describes, what is needed first."""
    revision = standing.assignment.stage.revision
    children = [
        service_account(stage, settings),
        network_policy(stage, standing, settings),
        config_map(stage, standing, live.config_maps.get(revision)),
        service(stage, standing),
        workload(stage, standing, image, _replicas(stage)),
    ]
    if _may_be_several(stage, standing):
        children.append(disruption_budget(stage))
    if standing.autoscaling is not None:
        children.append(autoscaler(stage, standing.autoscaling))
    return children


def _may_be_several(stage: Json, standing: StandingStage) -> bool:
    """Whether there is anything to spread an eviction over; a budget for one replica keeps none."""
    scaling = standing.autoscaling
    return _replicas(stage) > 1 or (scaling is not None and scaling.max_replicas > 1)


def _unused(observed: ObservedStage, standing: StandingStage) -> list[Json]:
    """Children of revisions that nobody names any more, and guards that are not wanted."""
    name = observed.stage["metadata"]["name"]
    unwanted = {
        kind
        for kind, wanted in (
            ("HorizontalPodAutoscaler", standing.autoscaling is not None),
            ("PodDisruptionBudget", _may_be_several(observed.stage, standing)),
        )
        if not wanted
    }
    own = standing.assignment.stage.revision
    kept = {own} | {revision for stage, revision in observed.references if stage == name}
    return [
        each
        for each in observed.children
        if ((revision := _revision_of(each)) is not None and revision not in kept)
        or each["kind"] in unwanted
    ]


def _unchanged(observed: ObservedStage, invalid: ResourceProblems, now: str) -> Decision:
    """What follows when a stage cannot be resolved: a status, and nothing else."""
    message = "; ".join(str(problem) for problem in invalid.problems)
    missing = runtime_needed(observed.stage) is not None and observed.runtime is None
    seen = StageSeen(
        stage=observed.stage,
        revision=None,
        finding=Finding(
            reason=StageReason.RUNTIME_MISSING if missing else StageReason.GRAPH_INVALID,
            message=message[:MAX_REASON_MESSAGE],
        ),
        revisions=_revisions(observed, _Live.of(observed.children), {}),
    )
    return Decision(status=stage_status(seen, now))


def _revisions(
    observed: ObservedStage, live: _Live, own: Mapping[Revision, int]
) -> tuple[RevisionSeen, ...]:
    """What is there of each revision: a workload, or pods that are left of one."""
    desired = {
        revision: int(each["spec"].get("replicas", 1)) for revision, each in live.workloads.items()
    }
    left = {revision: 0 for pod in observed.pods if (revision := _revision_of(pod)) is not None}
    return tuple(
        RevisionSeen(revision=revision, desired=count, pods=_pods_of(observed, revision))
        for revision, count in {**left, **desired, **own}.items()
    )


def _pods_of(observed: ObservedStage, revision: Revision) -> tuple[Json, ...]:
    name = observed.stage["metadata"]["name"]
    return tuple(
        pod
        for pod in observed.pods
        if _revision_of(pod) == revision
        and pod["metadata"].get("labels", {}).get(STAGE_LABEL) == name
    )
