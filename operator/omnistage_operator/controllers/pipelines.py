"""The pipeline controller: which objects concern a pipeline, and the way from its plan to the cluster.

Everything that is decided is decided in `omnistage_operator.planning.pipelines`. Here is only who is
woken by what, found by indexes, so that a change costs the pipelines that it concerns and no others.
"""

from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from typing import Final

from omnistage_common.ids import ModelName
from omnistage_operator.cluster.applying import Applier
from omnistage_operator.cluster.caching import Caches
from omnistage_operator.control.controller import DONE, Result, Source, own_key, owner_keys
from omnistage_operator.control.kinds import (
    CONFIG_MAPS,
    INFERENCE_PIPELINES,
    NETWORK_POLICIES,
    PIPELINE_TEMPLATES,
    PODS,
    STAGE_RUNTIMES,
    STAGES,
    kind_of,
)
from omnistage_operator.control.manifests import Manifest, ObjectKey, key_of, uid_of
from omnistage_operator.controllers.clock import now
from omnistage_operator.planning.gateways import elder, live_gateways, served_names
from omnistage_operator.planning.pipelines import (
    ObservedPipeline,
    plan_pipeline,
    runtimes_needed,
)
from omnistage_operator.planning.settings import OperatorSettings

__all__ = ["PIPELINE_INDEXES", "STAGE_INDEXES", "PipelineReconciler"]


class _Index(Enum):
    """What pipelines and stages are found by."""

    TEMPLATE = "template"
    RUNTIME = "runtime"
    SHARED = "shared"
    SERVED = "served"


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


PIPELINE_INDEXES: Final = {
    _Index.TEMPLATE.value: _template,
    _Index.RUNTIME.value: _runtimes,
    _Index.SHARED.value: _shared,
    _Index.SERVED.value: served_names,
}
STAGE_INDEXES: Final = {_Index.RUNTIME.value: _stage_runtime}


class PipelineReconciler:
    """Brings one pipeline to what its spec says, as far as it goes now."""

    def __init__(self, caches: Caches, applier: Applier, settings: OperatorSettings) -> None:
        self._pipelines = caches.store(INFERENCE_PIPELINES)
        self._templates = caches.store(PIPELINE_TEMPLATES)
        self._runtimes = caches.store(STAGE_RUNTIMES)
        self._stages = caches.store(STAGES)
        self._plans = caches.store(CONFIG_MAPS)
        self._policies = caches.store(NETWORK_POLICIES)
        self._pods = caches.store(PODS)
        self._applier = applier
        self._settings = settings

    def sources(self, caches: Caches) -> tuple[Source, ...]:
        """Whose changes concern which pipelines."""
        of_pipeline = owner_keys(INFERENCE_PIPELINES)
        return (
            Source(caches.informer(INFERENCE_PIPELINES), self._rivals),
            Source(caches.informer(PIPELINE_TEMPLATES), self._by_template),
            Source(caches.informer(STAGE_RUNTIMES), self._by_runtime),
            Source(caches.informer(STAGES), self._by_stage),
            Source(caches.informer(CONFIG_MAPS), of_pipeline),
            Source(caches.informer(NETWORK_POLICIES), of_pipeline),
            Source(caches.informer(PODS), self._by_gateway),
        )

    async def reconcile(self, key: ObjectKey) -> Result:
        """Plans the pipeline and does what was decided."""
        pipeline = self._pipelines.get(key)
        if pipeline is None:
            return DONE
        observed = self._observed(pipeline)
        decision = plan_pipeline(observed, now=now())
        await self._applier.apply_all([dict(each) for each in decision.apply])
        seen = {
            uid_of(each): each for each in (*observed.plans, *observed.stages, *observed.policies)
        }
        for gone in decision.delete:
            await self._applier.delete(dict(seen[gone.uid]))
        if decision.status is not None:
            await self._applier.write_status(
                pipeline, dict(decision.status), foreign=frozenset({"gateways"})
            )
        return DONE

    def _observed(self, pipeline: Manifest) -> ObservedPipeline:
        namespace, uid = pipeline["metadata"]["namespace"], uid_of(pipeline)
        stages = self._stages.in_namespace(namespace)
        template = pipeline["spec"].get("template", {}).get("name", "")
        runtimes = (
            self._runtimes.get(ObjectKey("", name))
            for name in sorted(runtimes_needed(pipeline, stages))
        )
        return ObservedPipeline(
            pipeline=pipeline,
            template=self._templates.get(ObjectKey("", template)),
            runtimes=tuple(each for each in runtimes if each is not None),
            stages=tuple(stages),
            plans=tuple(self._plans.owned_by(uid)),
            policies=tuple(self._policies.owned_by(uid)),
            gateways=self._gateways(),
            taken=self._taken(pipeline),
            url=self._settings.gateway_url,
        )

    def _gateways(self) -> tuple[str, ...]:
        return live_gateways(filter(self._is_gateway, self._pods.all()))

    def _is_gateway(self, pod: Manifest) -> bool:
        metadata = pod["metadata"]
        labels = metadata.get("labels", {})
        return bool(
            metadata["namespace"] == self._settings.gateway_namespace
            and labels.get("app.kubernetes.io/name") == "omnistage-gateway"
        )

    def _taken(self, pipeline: Manifest) -> dict[ModelName, str]:
        found = {}
        for name in served_names(pipeline):
            first = elder(pipeline, self._pipelines.find(_Index.SERVED.value, name))
            if first is not None:
                found[name] = str(key_of(dict(first)))
        return found

    def _rivals(self, old: Manifest | None, new: Manifest | None) -> Iterable[ObjectKey]:
        """The pipeline itself, and those that ask for the same model names."""
        yield from own_key(old, new)
        for each in (old, new):
            for name in served_names(each) if each is not None else ():
                yield from map(key_of, self._pipelines.find(_Index.SERVED.value, name))

    def _by_template(self, old: Manifest | None, new: Manifest | None) -> Iterable[ObjectKey]:
        for key in own_key(old, new):
            yield from map(key_of, self._pipelines.find(_Index.TEMPLATE.value, key.name))

    def _by_runtime(self, old: Manifest | None, new: Manifest | None) -> Iterable[ObjectKey]:
        for key in own_key(old, new):
            yield from map(key_of, self._pipelines.find(_Index.RUNTIME.value, key.name))
            for stage in self._stages.find(_Index.RUNTIME.value, key.name):
                yield from self._sharing(key_of(stage))

    def _by_stage(self, old: Manifest | None, new: Manifest | None) -> Iterable[ObjectKey]:
        yield from owner_keys(INFERENCE_PIPELINES)(old, new)
        for key in own_key(old, new):
            yield from self._sharing(key)

    def _sharing(self, stage: ObjectKey) -> Iterable[ObjectKey]:
        return map(key_of, self._pipelines.find(_Index.SHARED.value, stage))

    def _by_gateway(self, old: Manifest | None, new: Manifest | None) -> Iterable[ObjectKey]:
        """Every pipeline, when a gateway came to life or ended."""
        before = live_gateways([old]) if old is not None and self._is_gateway(old) else ()
        after = live_gateways([new]) if new is not None and self._is_gateway(new) else ()
        return map(key_of, self._pipelines.all()) if before != after else ()
