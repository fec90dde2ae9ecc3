"""The pipeline controller: which objects concern a pipeline, and the way from its plan to the cluster.

Everything that is decided is decided in `omnistage_operator.planning.pipelines`. Here is only who is
woken by what, found by indexes, so that a change costs the pipelines that it concerns and no others.
"""

from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Final

from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.errors import ObjectInvalid
from omnistage_common.cluster.kinds import (
    CONFIG_MAPS,
    INFERENCE_PIPELINES,
    NETWORK_POLICIES,
    PIPELINE_TEMPLATES,
    PODS,
    STAGE_RUNTIMES,
    STAGES,
)
from omnistage_common.cluster.manifests import Manifest, ObjectKey, key_of, labels_of, uid_of
from omnistage_common.ids import ModelName
from omnistage_common.pipeline.published import GATEWAY_NAME, NAME_LABEL, gateway_manager
from omnistage_operator.cluster.applying import Applier
from omnistage_operator.cluster.recording import Recorder
from omnistage_operator.control.controlling import DONE, Result, Source, owner_keys
from omnistage_operator.controllers.announcing import announce
from omnistage_operator.controllers.clock import now
from omnistage_operator.planning.gateways import (
    departed_gateways,
    elder,
    live_gateways,
    served_names,
)
from omnistage_operator.planning.pipeline_status import refused_status
from omnistage_operator.planning.pipelines import (
    ObservedPipeline,
    plan_pipeline,
    runtimes_needed,
    stages_needed,
)
from omnistage_operator.planning.settings import OperatorSettings

__all__ = ["GATEWAY_INDEXES", "PIPELINE_INDEXES", "STAGE_INDEXES", "PipelineReconciler"]


_GATEWAYS_OWN: Final = frozenset({"gateways"})
"""Fields of a pipeline's status that gateways write."""


class _Index(Enum):
    """What pipelines and stages are found by."""

    TEMPLATE = "template"
    RUNTIME = "runtime"
    SHARED = "shared"
    SERVED = "served"
    GATEWAYS = "gateways"


def _template(pipeline: Manifest) -> Iterable[Hashable]:
    name = pipeline["spec"].get("template", {}).get("name")
    return (name,) if name else ()


def _runtimes(pipeline: Manifest) -> Iterable[Hashable]:
    return runtimes_needed(pipeline, ())


def _shared(pipeline: Manifest) -> Iterable[Hashable]:
    namespace = pipeline["metadata"]["namespace"]
    return [
        ObjectKey(namespace, stage["stageRef"]["name"])
        for stage in pipeline["spec"].get("stages", [])
        if "stageRef" in stage
    ]


def _stage_runtime(stage: Manifest) -> Iterable[Hashable]:
    name = stage["spec"].get("runtime", {}).get("name")
    return (name,) if name else ()


def _gateways_of(pod: Manifest) -> Iterable[Hashable]:
    """The namespace of a gateway's pod; nothing for other pods."""
    is_gateway = labels_of(pod).get(NAME_LABEL) == GATEWAY_NAME
    return (key_of(pod).namespace,) if is_gateway else ()


PIPELINE_INDEXES: Final = {
    _Index.TEMPLATE.value: _template,
    _Index.RUNTIME.value: _runtimes,
    _Index.SHARED.value: _shared,
    _Index.SERVED.value: served_names,
}
GATEWAY_INDEXES: Final = {_Index.GATEWAYS.value: _gateways_of}
STAGE_INDEXES: Final = {_Index.RUNTIME.value: _stage_runtime}


class PipelineReconciler:
    """Brings one pipeline to what its spec says, as far as it goes now."""

    def __init__(
        self, caches: Caches, applier: Applier, recorder: Recorder, settings: OperatorSettings
    ) -> None:
        self._pipelines = caches.store(INFERENCE_PIPELINES)
        self._templates = caches.store(PIPELINE_TEMPLATES)
        self._runtimes = caches.store(STAGE_RUNTIMES)
        self._stages = caches.store(STAGES)
        self._plans = caches.store(CONFIG_MAPS)
        self._policies = caches.store(NETWORK_POLICIES)
        self._pods = caches.store(PODS)
        self._applier = applier
        self._recorder = recorder
        self._settings = settings

    def sources(self, caches: Caches) -> tuple[Source, ...]:
        """Whose changes concern which pipelines, besides their own."""
        of_pipeline = owner_keys(INFERENCE_PIPELINES)
        return (
            Source(caches.watch(INFERENCE_PIPELINES), self._rivals),
            Source(caches.watch(PIPELINE_TEMPLATES), self._by_template),
            Source(caches.watch(STAGE_RUNTIMES), self._by_runtime),
            Source(caches.watch(STAGES), self._by_stage),
            Source(caches.watch(CONFIG_MAPS), of_pipeline),
            Source(caches.watch(NETWORK_POLICIES), of_pipeline),
            Source(caches.watch(PODS), self._by_gateway),
        )

    async def reconcile(self, key: ObjectKey) -> Result:
        """Plans the pipeline and does what was decided."""
        pipeline = self._pipelines.get(key)
        if pipeline is None:
            return DONE
        observed = self._observed(pipeline)
        decision = plan_pipeline(observed, now=now())
        try:
            await self._applier.apply_all([dict(each) for each in decision.apply])
        except ObjectInvalid as refused:
            said = refused_status(pipeline, refused.message, now())
            await self._applier.write_status(pipeline, said, foreign=_GATEWAYS_OWN)
            raise
        every = (*observed.plans, *observed.stages, *observed.policies)
        seen = {each["metadata"]["uid"]: dict(each) for each in every}
        for gone in decision.delete:
            await self._applier.delete(seen[gone.uid])
        if decision.status is not None:
            status = dict(decision.status)
            if await self._applier.write_status(pipeline, status, foreign=_GATEWAYS_OWN):
                announce(self._recorder, pipeline, status)
        for name in departed_gateways(pipeline.get("status") or {}, self._gateways()):
            await self._applier.empty_status(pipeline, gateway_manager(name), "gateways")
        return DONE

    def _observed(self, pipeline: Manifest) -> ObservedPipeline:
        uid = uid_of(pipeline)
        named = pipeline["spec"].get("template", {}).get("name", "")
        template = self._templates.get(ObjectKey("", named))
        stages = self._stages_of(pipeline, template)
        runtimes = (
            self._runtimes.get(ObjectKey("", name))
            for name in sorted(runtimes_needed(pipeline, stages))
        )
        return ObservedPipeline(
            pipeline=pipeline,
            template=template,
            runtimes=tuple(each for each in runtimes if each is not None),
            stages=tuple(stages),
            plans=tuple(self._plans.owned_by(uid)),
            policies=tuple(self._policies.owned_by(uid)),
            gateways=live_gateways(self._gateways()),
            taken=self._taken(pipeline),
            url=self._settings.gateway_url,
        )

    def _stages_of(self, pipeline: Manifest, template: Manifest | None) -> list[Manifest]:
        """Its own, and those of the names that it needs; found without a walk over all there are."""
        namespace = pipeline["metadata"]["namespace"]
        found = {key_of(each): each for each in self._stages.owned_by(uid_of(pipeline))}
        for name in stages_needed(pipeline, template):
            key = ObjectKey(namespace, name)
            stage = self._stages.get(key)
            if stage is not None:
                found[key] = stage
        return list(found.values())

    def _gateways(self) -> list[Manifest]:
        """Their pods."""
        namespace = self._settings.gateway_namespace
        return self._pods.find(_Index.GATEWAYS.value, namespace)

    def _taken(self, pipeline: Manifest) -> dict[ModelName, str]:
        found = {}
        for name in served_names(pipeline):
            first = elder(pipeline, self._pipelines.find(_Index.SERVED.value, name))
            if first is not None:
                found[name] = str(key_of(dict(first)))
        return found

    def _rivals(self, pipeline: Manifest) -> Iterable[ObjectKey]:
        """The pipelines that ask for the same model names."""
        for name in served_names(pipeline):
            yield from map(key_of, self._pipelines.find(_Index.SERVED.value, name))

    def _by_template(self, template: Manifest) -> Iterable[ObjectKey]:
        return map(key_of, self._pipelines.find(_Index.TEMPLATE.value, key_of(template).name))

    def _by_runtime(self, runtime: Manifest) -> Iterable[ObjectKey]:
        name = key_of(runtime).name
        yield from map(key_of, self._pipelines.find(_Index.RUNTIME.value, name))
        for stage in self._stages.find(_Index.RUNTIME.value, name):
            yield from self._sharing(stage)

    def _by_stage(self, stage: Manifest) -> Iterable[ObjectKey]:
        yield from owner_keys(INFERENCE_PIPELINES)(stage)
        yield from self._sharing(stage)

    def _sharing(self, stage: Manifest) -> Iterable[ObjectKey]:
        return map(key_of, self._pipelines.find(_Index.SHARED.value, key_of(stage)))

    def _by_gateway(self, pod: Manifest) -> Iterable[ObjectKey]:
        """Every pipeline: each waits for every gateway."""
        return map(key_of, self._pipelines.all()) if _gateways_of(pod) else ()
