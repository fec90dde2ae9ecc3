"""The stage controller: which objects concern a stage, and the way from its plan to the cluster.

Everything that is decided is decided in `omnistage_operator.planning.stages`. A stage is looked at
again when its spec, its runtime, a plan that names it, a child, a pod or a warning about a pod changes.
"""

from collections.abc import Hashable, Iterable
from typing import Final

from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.kinds import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    LEADER_WORKER_SETS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STAGE_RUNTIMES,
    STAGES,
    ResourceKind,
)
from omnistage_common.cluster.manifests import Manifest, ObjectKey, key_of, uid_of
from omnistage_common.pipeline.published import PLAN_LABEL, STAGE_LABEL
from omnistage_operator.cluster.applying import Applier
from omnistage_operator.cluster.recording import Recorder
from omnistage_operator.control.controlling import (
    DONE,
    Result,
    Source,
    label_keys,
    owner_keys,
)
from omnistage_operator.controllers.announcing import announce
from omnistage_operator.controllers.clock import now
from omnistage_operator.planning.plans import services_of
from omnistage_operator.planning.settings import OperatorSettings
from omnistage_operator.planning.stages import (
    ObservedStage,
    plan_references,
    plan_stage,
    runtime_needed,
)

__all__ = ["EVENT_INDEXES", "PLAN_INDEXES", "POD_INDEXES", "StageReconciler", "child_kinds"]

_CHILD_KINDS: Final = (
    CONFIG_MAPS,
    DEPLOYMENTS,
    SERVICES,
    SERVICE_ACCOUNTS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    HORIZONTAL_POD_AUTOSCALERS,
)
"""What a stage owns in every cluster."""

_PLANS: Final = "plans naming a stage"
_OF_STAGE: Final = "pods of a stage"
_ABOUT: Final = "events about an object"


def child_kinds(*, leader_worker_sets: bool) -> tuple[ResourceKind, ...]:
    """What a stage owns.

    Args:
        leader_worker_sets: Whether the cluster knows them.
    """
    return (*_CHILD_KINDS, *((LEADER_WORKER_SETS,) if leader_worker_sets else ()))


def _stages_named(plan: Manifest) -> Iterable[Hashable]:
    """The stages that a ConfigMap names, if it is a plan."""
    if PLAN_LABEL not in (plan["metadata"].get("labels") or {}):
        return ()
    namespace = key_of(plan).namespace
    return {ObjectKey(namespace, each.stage) for each in services_of(plan).values()}


def _stage_of(pod: Manifest) -> Iterable[Hashable]:
    return label_keys(STAGE_LABEL)(pod)


def _about(event: Manifest) -> Iterable[Hashable]:
    return ((event.get("regarding") or {}).get("uid"),)


PLAN_INDEXES: Final = {_PLANS: _stages_named}
POD_INDEXES: Final = {_OF_STAGE: _stage_of}
EVENT_INDEXES: Final = {_ABOUT: _about}


class StageReconciler:
    """Brings one stage to what its spec says, as far as it goes now."""

    def __init__(
        self, caches: Caches, applier: Applier, recorder: Recorder, settings: OperatorSettings
    ) -> None:
        self._stages = caches.store(STAGES)
        self._runtimes = caches.store(STAGE_RUNTIMES)
        self._plans = caches.store(CONFIG_MAPS)
        self._pods = caches.store(PODS)
        self._events = caches.store(EVENTS)
        self._child_kinds = child_kinds(leader_worker_sets=settings.leader_worker_sets)
        self._children = [caches.store(kind) for kind in self._child_kinds]
        self._applier = applier
        self._recorder = recorder
        self._settings = settings

    def sources(self, caches: Caches) -> tuple[Source, ...]:
        """Whose changes concern which stages, besides their own."""
        of_stage = owner_keys(STAGES)
        return (
            Source(caches.watch(STAGE_RUNTIMES), self._by_runtime),
            Source(caches.watch(CONFIG_MAPS), self._by_plan),
            Source(caches.watch(PODS), label_keys(STAGE_LABEL)),
            Source(caches.watch(EVENTS), self._by_event),
            *(Source(caches.watch(kind), of_stage) for kind in self._child_kinds),
        )

    async def reconcile(self, key: ObjectKey) -> Result:
        """Plans the stage and does what was decided."""
        stage = self._stages.get(key)
        if stage is None:
            return DONE
        observed = self._observed(stage)
        decision = plan_stage(observed, self._settings, now=now())
        await self._applier.apply_all([dict(each) for each in decision.apply])
        seen = {each["metadata"]["uid"]: dict(each) for each in observed.children}
        for gone in decision.delete:
            await self._applier.delete(seen[gone.uid])
        if decision.status is not None:
            status = dict(decision.status)
            if await self._applier.write_status(stage, status):
                announce(self._recorder, stage, status)
        return DONE

    def _observed(self, stage: Manifest) -> ObservedStage:
        key, runtime = key_of(stage), runtime_needed(stage)
        pods = tuple(self._pods.find(_OF_STAGE, key))
        return ObservedStage(
            stage=stage,
            runtime=self._runtimes.get(ObjectKey("", runtime)) if runtime else None,
            references=plan_references(self._plans.find(_PLANS, key)),
            children=tuple(
                each for store in self._children for each in store.owned_by(uid_of(stage))
            ),
            pods=pods,
            events=tuple(event for pod in pods for event in self._events.find(_ABOUT, uid_of(pod))),
        )

    def _by_runtime(self, runtime: Manifest) -> Iterable[ObjectKey]:
        return map(key_of, self._stages.find("runtime", key_of(runtime).name))

    def _by_plan(self, plan: Manifest) -> Iterable[ObjectKey]:
        return (each for each in _stages_named(plan) if isinstance(each, ObjectKey))

    def _by_event(self, event: Manifest) -> Iterable[ObjectKey]:
        """The stage of the pod that an event is about, if it is a pod of ours."""
        regarding = event.get("regarding") or {}
        pod = self._pods.get(ObjectKey(regarding.get("namespace", ""), regarding.get("name", "")))
        return label_keys(STAGE_LABEL)(pod) if pod is not None else ()
