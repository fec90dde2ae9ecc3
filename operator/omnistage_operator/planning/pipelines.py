"""From a pipeline and what is there to what should be there: the pure half of its controller.

A pipeline becomes `Stage` objects, one plan per revision and network policies along its edges. What is
wrong with it becomes a condition and changes nothing that serves. Everything is worked out anew from
what was observed; the only memory is the status's current revision and its turn.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omnistage_common.ids import ModelName, Revision, StageName
from omnistage_common.pipeline.loading import load_objects
from omnistage_common.pipeline.problems import Place, ResourceProblems
from omnistage_common.pipeline.published import PIPELINE_LABEL, PublishedService
from omnistage_common.pipeline.resources import RolloutStrategy
from omnistage_common.pipeline.resources.status import (
    GatewayStatus,
    InferencePipelineStatus,
    StageReason,
    StageStatus,
)
from omnistage_common.pipeline.standing import StagePlacement, StandingPipeline, stand_alone
from omnistage_operator.planning.decisions import Decision, Json, reference_to
from omnistage_operator.planning.names import child_name, service_name
from omnistage_operator.planning.peering import peer_policies
from omnistage_operator.planning.pipeline_status import (
    Seen,
    StageSeen,
    invalid_status,
    pipeline_status,
)
from omnistage_operator.planning.plans import (
    owner_reference,
    plan_object,
    plan_revision,
    stage_objects,
)
from omnistage_operator.planning.rollout import Rollout, RolloutStep, next_step

__all__ = [
    "REPLICAS_ANNOTATION",
    "ObservedPipeline",
    "plan_pipeline",
    "runtimes_needed",
    "stages_needed",
]

REPLICAS_ANNOTATION: Final = "omnistage.io/replicas"
"""On a pipeline's own `Stage`: how many replicas the pipeline asked for when it was written last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedPipeline:
    """What there is for one pipeline, as JSON values."""

    pipeline: Json
    template: Json | None
    """The one that it names, if that exists."""
    runtimes: tuple[Json, ...]
    """Those that it and its shared stages name; see `runtimes_needed`."""
    stages: tuple[Json, ...]
    """`Stage` objects of its namespace: those that it owns, and those that have a name that it needs,
    whoever owns them; see `stages_needed`. Others may be among them."""
    plans: tuple[Json, ...]
    """Its plan ConfigMaps."""
    policies: tuple[Json, ...]
    """Its network policies."""
    gateways: tuple[str, ...]
    """Names of the gateways that live."""
    taken: Mapping[ModelName, str]
    """Model names that an older pipeline serves -> that pipeline."""
    url: str
    """Where clients reach the gateways; empty when that is not known."""


def plan_pipeline(observed: ObservedPipeline, *, now: str) -> Decision:
    """What should be there for a pipeline, and what to say about it.

    Args:
        observed: What is there.
        now: The time, as a cluster writes it.
    """
    if observed.pipeline["metadata"].get("deletionTimestamp"):
        return Decision()
    try:
        resources = load_objects(_objects(observed))
        standing = stand_alone(resources)
        _check_names(observed, standing, resources.pipelines[0].place)
    except ResourceProblems as invalid:
        return Decision(status=invalid_status(observed.pipeline, invalid, _reason(observed), now))
    return _valid(observed, standing, resources.pipelines[0].resource.spec.rollout.strategy, now)


def runtimes_needed(pipeline: Json, stages: Iterable[Json]) -> frozenset[str]:
    """Names of the runtimes that a pipeline depends on, by itself or by a stage that it shares."""
    by_name = {stage["metadata"]["name"]: stage for stage in stages}
    settings = list(pipeline["spec"].get("stages", []))
    shared = [each["stageRef"]["name"] for each in settings if "stageRef" in each]
    settings += [by_name[name]["spec"] for name in shared if name in by_name]
    return frozenset(each["runtime"]["name"] for each in settings if "runtime" in each)


def stages_needed(pipeline: Json, template: Json | None) -> frozenset[str]:
    """Names of the `Stage` objects that a pipeline shares or would make, as far as its graph is known."""
    spec = pipeline["spec"]
    topology = spec.get("topology") or (template["spec"] if template is not None else {})
    own = {each["name"] for each in topology.get("stages", [])}
    shared = {each["stageRef"]["name"] for each in spec.get("stages", []) if "stageRef" in each}
    return frozenset(shared | {child_name(pipeline["metadata"]["name"], name) for name in own})


def _objects(observed: ObservedPipeline) -> list[Json]:
    """The resources that the pipeline is made of: itself, and nothing that it does not name."""
    shared = {
        each["stageRef"]["name"]
        for each in observed.pipeline["spec"].get("stages", [])
        if "stageRef" in each
    }
    return [
        observed.pipeline,
        *([observed.template] if observed.template is not None else []),
        *observed.runtimes,
        *(stage for stage in observed.stages if stage["metadata"]["name"] in shared),
    ]


def _reason(observed: ObservedPipeline) -> StageReason:
    """Why a pipeline cannot be resolved, in one word."""
    spec = observed.pipeline["spec"]
    if "template" in spec and observed.template is None:
        return StageReason.TEMPLATE_MISSING
    names = {stage["metadata"]["name"] for stage in observed.stages}
    if any(
        "stageRef" in each and each["stageRef"]["name"] not in names
        for each in spec.get("stages", [])
    ):
        return StageReason.STAGE_MISSING
    runtimes = {runtime["metadata"]["name"] for runtime in observed.runtimes}
    if runtimes_needed(observed.pipeline, observed.stages) - runtimes:
        return StageReason.RUNTIME_MISSING
    return StageReason.GRAPH_INVALID


def _check_names(observed: ObservedPipeline, standing: StandingPipeline, place: Place) -> None:
    """Returns when the names that the pipeline needs are its own.

    Raises:
        ResourceProblems: A `Stage` of somebody else has the name that one of its own would get.
    """
    uid = observed.pipeline["metadata"]["uid"]
    owners = {stage["metadata"]["name"]: _owner_uid(stage) for stage in observed.stages}
    problems = [
        place.at("metadata", "name").problem(
            f"needs a Stage {name} for its stage {placement.name}, but there is another one of that name",
            f"give one of them another name, or name that Stage in `stageRef` of {placement.name}",
        )
        for placement in standing.stages
        if placement.shared is None
        and owners.get(name := _stage_name(observed.pipeline, placement), uid) != uid
    ]
    if problems:
        raise ResourceProblems(problems)


def _owner_uid(obj: Json) -> str:
    owners = obj["metadata"].get("ownerReferences", [])
    return next((each["uid"] for each in owners if each.get("controller")), "")


def _stage_name(pipeline: Json, placement: StagePlacement) -> str:
    """Name of the `Stage` that serves here."""
    return placement.shared or child_name(pipeline["metadata"]["name"], placement.name)


def _valid(
    observed: ObservedPipeline, standing: StandingPipeline, strategy: RolloutStrategy, now: str
) -> Decision:
    pipeline, plan = observed.pipeline, standing.plan
    previous = InferencePipelineStatus.model_validate(pipeline.get("status", {}))
    services = {
        placement.name: _service(pipeline, placement, plan.stage(placement.name).revision)
        for placement in standing.stages
    }
    seen = _seen(observed, standing, services)
    step = _step(observed, standing, strategy, previous, seen)
    live = {stage["metadata"]["name"]: stage for stage in observed.stages}
    written = {plan_revision(each) for each in observed.plans}
    kept = [each for each in observed.plans if plan_revision(each) not in step.retired]
    apply = [
        _stage_object(pipeline, placement, live.get(_stage_name(pipeline, placement)))
        for placement in standing.stages
        if placement.spec is not None
    ]
    if plan.revision not in written:
        apply.append(plan_object(pipeline, plan, services))
    policies = peer_policies(pipeline, plan, services)
    apply += policies
    gone = [each for each in observed.plans if plan_revision(each) in step.retired]
    gone += _unused(observed, services, kept)
    gone += _others(observed.policies, policies)
    return Decision(
        apply=tuple(apply),
        delete=tuple(reference_to(each) for each in gone),
        status=pipeline_status(
            Seen(
                pipeline=pipeline,
                plan=plan,
                stages=seen,
                step=step,
                silent=_silent(previous, observed.gateways),
                gateways=observed.gateways,
                taken=observed.taken,
                url=observed.url,
            ),
            now,
        ),
    )


def _service(pipeline: Json, placement: StagePlacement, revision: Revision) -> PublishedService:
    stage = _stage_name(pipeline, placement)
    return PublishedService(stage=stage, revision=revision, service=service_name(stage, revision))


def _seen(
    observed: ObservedPipeline,
    standing: StandingPipeline,
    services: Mapping[StageName, PublishedService],
) -> tuple[StageSeen, ...]:
    statuses = {
        stage["metadata"]["name"]: StageStatus.model_validate(stage.get("status", {}))
        for stage in observed.stages
    }
    specs = {stage["metadata"]["name"]: stage["spec"] for stage in observed.stages}
    return tuple(
        StageSeen(
            name=placement.name,
            service=services[placement.name],
            wanted=specs.get(services[placement.name].stage, {}).get("replicas", 1),
            status=statuses.get(services[placement.name].stage, StageStatus()),
        )
        for placement in standing.stages
    )


def _step(
    observed: ObservedPipeline,
    standing: StandingPipeline,
    strategy: RolloutStrategy,
    previous: InferencePipelineStatus,
    seen: Sequence[StageSeen],
) -> RolloutStep:
    return next_step(
        Rollout(
            target=standing.plan.revision,
            current=previous.current_revision,
            turn=previous.turn,
            plans=frozenset(plan_revision(each) for each in observed.plans),
            target_ready=all(stage.ready for stage in seen),
            strategy=strategy,
            gateways=_living(previous, observed.gateways),
            silent=_silent(previous, observed.gateways),
        )
    )


def _living(
    previous: InferencePipelineStatus, gateways: Iterable[str]
) -> tuple[GatewayStatus, ...]:
    living = set(gateways)
    return tuple(entry for entry in previous.gateways if entry.name in living)


def _silent(previous: InferencePipelineStatus, gateways: Iterable[str]) -> tuple[str, ...]:
    said = {entry.name for entry in previous.gateways}
    return tuple(sorted(set(gateways) - said))


def _unused(
    observed: ObservedPipeline, services: Mapping[StageName, PublishedService], kept: Iterable[Json]
) -> list[Json]:
    """Its own `Stage` objects that neither its spec nor a plan names any more."""
    uid = observed.pipeline["metadata"]["uid"]
    named = {each.stage for each in services.values()} | stage_objects(kept)
    return [
        stage
        for stage in observed.stages
        if _owner_uid(stage) == uid and stage["metadata"]["name"] not in named
    ]


def _others(seen: Iterable[Json], wanted: Iterable[Json]) -> list[Json]:
    """What was seen and is not wanted any more."""
    names = {each["metadata"]["name"] for each in wanted}
    return [each for each in seen if each["metadata"]["name"] not in names]


def _stage_object(pipeline: Json, placement: StagePlacement, live: Json | None) -> dict[str, Any]:
    """The `Stage` of a pipeline's own stage."""
    if placement.spec is None:
        raise ValueError(f"{placement.name} is shared")
    spec = placement.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    annotations = {}
    if placement.replicas_written:
        annotations[REPLICAS_ANNOTATION] = str(placement.spec.replicas)
    if not _says_replicas(placement, live):
        spec.pop("replicas", None)
    metadata = pipeline["metadata"]
    return {
        "apiVersion": pipeline["apiVersion"],
        "kind": "Stage",
        "metadata": {
            "name": _stage_name(pipeline, placement),
            "namespace": metadata["namespace"],
            "labels": {
                "app.kubernetes.io/managed-by": "omnistage-operator",
                PIPELINE_LABEL: metadata["name"],
            },
            "annotations": annotations,
            "ownerReferences": [owner_reference(pipeline)],
        },
        "spec": spec,
    }


def _says_replicas(placement: StagePlacement, live: Json | None) -> bool:
    """Whether the pipeline says how many replicas there are: the latest word wins.

    A `kubectl scale` or an autoscaler changes the number in the `Stage`; it stands until the pipeline
    itself asks for another number than it did before. A number that nobody wrote is not sent at all.
    """
    if not placement.replicas_written or placement.spec is None:
        return False
    if live is None:
        return True
    asked = live["metadata"].get("annotations", {}).get(REPLICAS_ANNOTATION)
    wanted = placement.spec.replicas
    return bool(live["spec"].get("replicas") == wanted or asked != str(wanted))
