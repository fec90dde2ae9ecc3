"""From an empty namespace to the report, and back to nothing: the course of `omnistage bench operator`.

The API server, scheduler and controllers are a cluster's own, the operator is a real process; nodes and
gateway are simulated by this one. All of it may share the processors of one machine: the report says
who used how much of them. Whatever happens, what was made is removed.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import psutil
from msgspec import Struct
from prometheus_client import CollectorRegistry

from omnistage_cli.bench.operator.figures import (
    Machine,
    OperatorReport,
    changed_pods,
    is_ready,
    pod_states,
    report_of,
)
from omnistage_cli.bench.operator.operator_process import (
    OperatorOrder,
    OperatorProcess,
    running_operator,
)
from omnistage_cli.bench.operator.scene import DEFINED, DEFINITIONS, Scene, new_scene
from omnistage_cli.bench.operator.setting import standing
from omnistage_cli.bench.operator.simulated_gateway import SimulatedGateway
from omnistage_cli.bench.operator.simulated_nodes import simulated_nodes
from omnistage_cli.runtime.interrupts import interrupts
from omnistage_common.cluster.api import Api, Limits
from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.connecting import Address, Connection, connect
from omnistage_common.cluster.errors import ObjectNotFound
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.informing import WatchOptions
from omnistage_common.cluster.kinds import INFERENCE_PIPELINES, PODS, STAGES
from omnistage_common.cluster.manifests import Manifest, ObjectKey, key_of
from omnistage_common.cluster.metrics import ClusterMetrics
from omnistage_common.errors import OmnistageError, ServerError, SetupError

__all__ = ["Shown", "Wanted", "measure"]

_MANAGER: Final = "omnistage-bench"
_LIMITS: Final = Limits(per_second=2000.0, burst=4000, tries=8)
_QUIET_S: Final = 2.0
"""Nothing has changed for so long: everybody is done."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What to measure, and where."""

    pipelines: int
    limit_s: float
    """Seconds for the pipelines to become ready, and for each restart."""
    kubeconfig: Path | None = None
    context: str | None = None


class Shown(Protocol):
    """Where it is told what happens."""

    def step(self, words: str) -> None:
        """Something else begins."""

    def ready(self, count: int) -> None:
        """So many pipelines are ready."""


def measure(wanted: Wanted, show: Shown) -> OperatorReport | None:
    """Measures until all is known, or the user interrupts; nothing is left afterwards.

    Args:
        wanted: What to measure.
        show: Told of every step.

    Returns:
        The report; None when the user has interrupted.

    Raises:
        SetupError: The definitions are not installed, or there is no way to an API server.
        ServerError: The pipelines did not become ready in time, or the operator ended.
        ApiError: The API server refused something.
    """
    try:
        return asyncio.run(_until_interrupted(wanted, show))
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors


async def _until_interrupted(wanted: Wanted, show: Shown) -> OperatorReport | None:
    with interrupts() as interrupted:
        measuring = asyncio.create_task(_measured(wanted, show), name="measuring")
        stopping = asyncio.create_task(interrupted.stop.wait(), name="interrupt")
        await asyncio.wait((measuring, stopping), return_when=asyncio.FIRST_COMPLETED)
        done = measuring.done()
        for task in (measuring, stopping):
            task.cancel()
        await asyncio.wait((measuring, stopping))
        # Interrupted is only what ended as it was told to: a removal that failed is an error.
        return None if measuring.cancelled() and not done else await measuring


async def _measured(wanted: Wanted, show: Shown) -> OperatorReport:
    address = Address(kubeconfig=wanted.kubeconfig, context=wanted.context)
    scene = new_scene(wanted.pipelines)
    async with connect(address) as connection:
        api = _api(connection, _MANAGER)
        await _check_definitions(api)
        nodes = scene.nodes()
        show.step(f"{len(nodes)} simulated nodes")
        async with (
            simulated_nodes(connection, *nodes),
            standing(api, scene, removing=lambda: show.step("removing everything")),
            _followed(connection, scene, show) as followed,
        ):
            return await _Course(wanted, scene, api, followed, show).run()


def _api(connection: Connection, manager: str) -> Api:
    return Api(
        connection,
        field_manager=manager,
        fence=Fence.always_open(),
        metrics=ClusterMetrics(CollectorRegistry()).api(),
        limits=_LIMITS,
    )


async def _check_definitions(api: Api) -> None:
    for key in DEFINED:
        try:
            await api.get(DEFINITIONS, key)
        except ObjectNotFound as missing:
            raise SetupError(
                f"the cluster does not know {key.name}; install the definitions: "
                "kubectl apply --server-side -f charts/omnistage/definitions"
            ) from missing


@asynccontextmanager
async def _followed(
    connection: Connection, scene: Scene, show: Shown
) -> AsyncIterator["_Followed"]:
    """What happens in the run's namespaces, and a gateway that has its say in them."""
    metrics = ClusterMetrics(CollectorRegistry())
    caches = Caches(_api(connection, _MANAGER), metrics=metrics, namespaces=scene.spaces)
    pipelines = caches.watch(INFERENCE_PIPELINES)
    followed = _Followed(caches, scene.count, show)
    gateway = SimulatedGateway(
        _api(connection, f"omnistage-gateway/{scene.gateway}"), pipelines, scene.gateway
    )
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(caches.run(), name="caches"),
            tasks.create_task(gateway.run(), name="gateway"),
        ]
        try:
            await caches.wait_synced()
            yield followed
        finally:
            for task in running:
                task.cancel()


class _Followed:
    """The run's pipelines, stages and pods, as the API server tells of them."""

    def __init__(self, caches: Caches, count: int, show: Shown) -> None:
        self._pipelines = caches.watch(INFERENCE_PIPELINES)
        self._pods = caches.watch(PODS, WatchOptions(shrink=_head))
        self._stages = caches.watch(STAGES, WatchOptions(shrink=_head))
        self._count = count
        self._show = show
        self._ready: set[ObjectKey] = set()
        self._changed = asyncio.Event()
        self.all_ready = asyncio.Event()
        self._pipelines.on_change(self._count_ready)
        for informer in (self._pipelines, self._pods, self._stages):
            informer.on_change(lambda *_: self._changed.set())

    async def settled(self) -> None:
        """Returns once nothing has changed for a while."""
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(_QUIET_S):
                    await self._changed.wait()
            except TimeoutError:
                return

    def pods(self) -> list[Manifest]:
        """The pods as they are."""
        return list(self._pods.store.all())

    def laggards(self) -> str:
        """How many pipelines are not ready, and why one of them is not."""
        waiting = [each for each in self._pipelines.store.all() if not is_ready(each)]
        why = next(
            (
                each.get("message", "")
                for pipeline in waiting
                for each in pipeline.get("status", {}).get("conditions", [])
                if each["type"] == "Ready"
            ),
            "no status yet",
        )
        return f"{len(self._ready)} of {self._count} pipelines are ready; of another: {why}"

    def _count_ready(self, _: Manifest | None, after: Manifest | None) -> None:
        if after is None or not is_ready(after) or key_of(after) in self._ready:
            return
        self._ready.add(key_of(after))
        self._show.ready(len(self._ready))
        if len(self._ready) == self._count:
            self.all_ready.set()


def _head(manifest: Manifest) -> Manifest:
    return {"metadata": manifest["metadata"]}


class _Course:
    """The measurement, step by step."""

    def __init__(
        self, wanted: Wanted, scene: Scene, api: Api, followed: _Followed, show: Shown
    ) -> None:
        self._wanted = wanted
        self._scene = scene
        self._api = api
        self._followed = followed
        self._show = show
        self._order = OperatorOrder(
            namespace=scene.name,
            watched=scene.spaces,
            kubeconfig=wanted.kubeconfig,
            context=wanted.context,
        )

    async def run(self) -> OperatorReport:
        self._show.step("starting the operator")
        async with running_operator(self._order) as operator:
            await self._within(operator, operator.looked_at_everything, "the start")
            self._show.step(f"{self._scene.count} pipelines")
            busy, own, began = _busy_seconds(), _own_seconds(), time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                for pipeline in self._scene.pipelines():
                    tasks.create_task(self._api.apply(pipeline, INFERENCE_PIPELINES))
                await self._within(operator, self._followed.all_ready, "the pipelines")
            seconds_to_ready = time.monotonic() - began
            spent, figures = operator.spent(), await operator.figures()
            machine = Machine(
                cores=os.cpu_count() or 1,
                busy_seconds=round(_busy_seconds() - busy, 1),
                bench_seconds=round(_own_seconds() - own, 1),
            )
            self._show.step("waiting until nothing changes any more")
            await self._followed.settled()
        before = pod_states(self._followed.pods())
        self._show.step("starting the operator anew")
        began = time.monotonic()
        async with running_operator(self._order) as again:
            await self._within(again, again.looked_at_everything, "the restart")
            restart_seconds = time.monotonic() - began
            await self._followed.settled()
            idle_writes = (await again.figures()).writes
        return report_of(
            pipelines=self._scene.count,
            seconds_to_ready=seconds_to_ready,
            figures=figures,
            spent=spent,
            machine=machine,
            idle_writes=idle_writes,
            restart_pod_changes=changed_pods(before, pod_states(self._followed.pods())),
            restart_seconds=restart_seconds,
        )

    async def _within(self, operator: OperatorProcess, event: asyncio.Event, what: str) -> None:
        """Waits for something that the operator brings about.

        Raises:
            ServerError: It takes too long; with what is known.
        """
        try:
            async with asyncio.timeout(self._wanted.limit_s):
                await event.wait()
        except TimeoutError as late:
            known = "; ".join(filter(None, (self._followed.laggards(), operator.last_words)))
            raise ServerError(
                f"{what} took longer than {self._wanted.limit_s:g} s (--limit): {known}"
            ) from late


def _busy_seconds() -> float:
    """CPU seconds that this machine has worked since it was started."""
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice + times.irq + times.softirq)


def _own_seconds() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of ours in a group; the group itself where there is something else in it."""
    rest = errors.subgroup(lambda error: not isinstance(error, OmnistageError | BaseExceptionGroup))
    if rest is not None:
        return rest
    inner: BaseException = errors
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner
