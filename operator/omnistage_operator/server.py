"""An operator process from start to end: connect, watch, wait for leadership, work, give it back.

Watches run from the beginning, so that the next leader knows everything when it begins. Only the
leader writes, and the fence holds that for each single write.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import structlog

from omnistage_common.cluster.api import Api
from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.connecting import Address, connect
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.kinds import INFERENCE_PIPELINES, LEADER_WORKER_SETS, STAGES
from omnistage_common.cluster.manifests import ObjectKey
from omnistage_common.cluster.messages import Identity
from omnistage_common.signals import StopSignals
from omnistage_common.telemetry import new_registry
from omnistage_operator.cluster.applying import Applier
from omnistage_operator.cluster.electing import Election
from omnistage_operator.cluster.recording import Recorder
from omnistage_operator.control.controlling import Controller
from omnistage_operator.control.metrics import OperatorMetrics
from omnistage_operator.controllers.pipelines import PipelineReconciler
from omnistage_operator.controllers.stages import StageReconciler
from omnistage_operator.controllers.watching import watch_everything
from omnistage_operator.planning.settings import OperatorSettings
from omnistage_operator.serving import serve_about
from omnistage_operator.settings import ProcessSettings

__all__ = ["FIELD_MANAGER", "SETTLE_S", "OperatorServer"]

FIELD_MANAGER: Final = "omnistage-operator"
"""Owner of the fields that the operator writes."""

SETTLE_S: Final = 0.1
"""Between a change that nobody wrote by hand and the look at it."""

_log = structlog.get_logger()


class OperatorServer:
    """One operator process."""

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings = settings
        self._registry = new_registry()
        self._metrics = OperatorMetrics(self._registry)
        self._fence = Fence() if settings.lease is not None else Fence.always_open()
        self._metrics.leader.set_function(lambda: float(self._fence.is_open))

    async def run(self) -> None:
        """Works until a stop signal.

        Raises:
            SetupError: There is no way to an API server, or the address cannot be listened on.
            ApiError: The API server is not reached, or does not know us.
        """
        address = Address(kubeconfig=self._settings.kubeconfig, context=self._settings.context)
        async with connect(address) as connection:
            api = Api(
                connection,
                field_manager=FIELD_MANAGER,
                fence=self._fence,
                metrics=self._metrics.cluster.api(),
            )
            identity = await api.check()
            _log.info("connected", server=identity.version, user=identity.user)
            planning = replace(
                self._settings.planning, leader_worker_sets=await api.serves(LEADER_WORKER_SETS)
            )
            caches = self._caches(api, planning)
            recorder = Recorder(
                api=api,
                controller="omnistage.io/operator",
                instance=self._settings.identity,
                metrics=self._metrics,
            )
            controllers = self._controllers(
                Applier(api=api, caches=caches, metrics=self._metrics), caches, recorder, planning
            )
            with StopSignals() as stop:
                async with (
                    serve_about(self._settings.metrics, caches, self._registry),
                    asyncio.TaskGroup() as tasks,
                ):
                    running = [
                        tasks.create_task(caches.run(), name="caches"),
                        tasks.create_task(recorder.run(), name="events"),
                        tasks.create_task(
                            self._work(api, identity, _lead(caches, controllers)),
                            name="leadership",
                        ),
                    ]
                    await stop.wait()
                    for task in running:
                        task.cancel()
        _log.info("stopped")

    def _caches(self, api: Api, planning: OperatorSettings) -> Caches:
        watched = self._settings.watched
        caches = Caches(api, metrics=self._metrics.cluster, namespaces=watched)
        watch_everything(caches, planning)
        return caches

    def _controllers(
        self, applier: Applier, caches: Caches, recorder: Recorder, planning: OperatorSettings
    ) -> tuple[Controller, ...]:
        workers = self._settings.workers
        stages = StageReconciler(caches, applier, recorder, planning)
        pipelines = PipelineReconciler(caches, applier, recorder, planning)
        return (
            Controller(
                name="stage",
                reconcile=stages.reconcile,
                primary=caches.watch(STAGES),
                sources=stages.sources(caches),
                metrics=self._metrics.controller("stage"),
                workers=workers,
                settle_s=SETTLE_S,
            ),
            Controller(
                name="pipeline",
                reconcile=pipelines.reconcile,
                primary=caches.watch(INFERENCE_PIPELINES),
                sources=pipelines.sources(caches),
                metrics=self._metrics.controller("pipeline"),
                workers=workers,
                settle_s=SETTLE_S,
            ),
        )

    async def _work(
        self, api: Api, identity: Identity, lead: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Leads for as long as this process may."""
        lease = self._settings.lease
        if lease is None:
            await lead()
            return
        await Election(
            api=api,
            lease=ObjectKey(self._settings.namespace, lease),
            identity=self._settings.identity,
            fence=self._fence,
            owner=_account(identity, self._settings.namespace),
        ).run(lead)


def _account(identity: Identity, namespace: str) -> dict[str, str] | None:
    """Reference to the ServiceAccount that we are, so that the lease goes when that is uninstalled."""
    front = f"system:serviceaccount:{namespace}:"
    if not identity.uid or not identity.user.startswith(front):
        return None
    name = identity.user.removeprefix(front)
    return {"apiVersion": "v1", "kind": "ServiceAccount", "name": name, "uid": identity.uid}


def _lead(
    caches: Caches, controllers: tuple[Controller, ...]
) -> Callable[[], Coroutine[Any, Any, None]]:
    async def lead() -> None:
        await caches.wait_synced()
        async with asyncio.TaskGroup() as tasks:
            for controller in controllers:
                tasks.create_task(controller.run(), name=controller.name)

    return lead
