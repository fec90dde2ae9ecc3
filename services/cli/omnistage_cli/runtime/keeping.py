"""Keeps one process alive: the driver of the state machine in `supervision`.

One coroutine per process, from its first start to its last exit. It turns what happens (an exit, a
health change, a request to stop) into events, and does what the phase after each says. Whoever
watches is told of every change in the order in which it happened.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Protocol

from omnistage_cli.runtime.gateway_client import GatewayClient
from omnistage_cli.runtime.launching import Member, Site
from omnistage_cli.runtime.processes import Process, start
from omnistage_cli.runtime.replica_client import ReplicaClient, ReplicaReport
from omnistage_cli.runtime.supervision import (
    CANNOT_START,
    Event,
    Exited,
    Loading,
    ReplicaPhase,
    RestartPolicy,
    RetryDue,
    Serving,
    StopRequested,
    Supervision,
    advance,
)
from omnistage_common.errors import StageUnavailable

__all__ = ["Keeper", "Watcher"]


class Watcher(Protocol):
    """Who is told what happens to the processes."""

    def changed(self, member: Member, state: Supervision, tail: tuple[str, ...]) -> None:
        """Something happened to a process.

        Args:
            member: The process.
            state: What is known of it now.
            tail: The last lines of its log when it has crashed, otherwise nothing.
        """


class Keeper:
    """Keeps one process alive until it is told to stop."""

    def __init__(
        self,
        member: Member,
        site: Site,
        *,
        policy: RestartPolicy,
        watcher: Watcher,
        kill: asyncio.Event,
    ) -> None:
        self.member = member
        self.state = Supervision()
        self.tail: tuple[str, ...] = ()
        self._site = site
        self._policy = policy
        self._watcher = watcher
        self._stop = asyncio.Event()
        self._kill = kill
        self._client: ReplicaClient | None = None

    def stop(self) -> None:
        """Asks for the end of the process and of `keep`."""
        self._stop.set()

    async def keep(self) -> None:
        """Starts the process, again and again if it must, until it is stopped or given up."""
        self._watcher.changed(self.member, self.state, ())
        while not self.state.phase.final:
            if self.state.phase is ReplicaPhase.BACKING_OFF:
                await self._back_off()
            else:
                await self._live_once()

    async def report(self) -> ReplicaReport | None:
        """What the replica is doing; None when it is not serving, or is the gateway."""
        if self._client is None or self.state.phase is not ReplicaPhase.READY:
            return None
        try:
            return await self._client.describe()
        except StageUnavailable:
            return None

    async def _live_once(self) -> None:
        try:
            process = await start(self.member.command)
        except OSError as error:
            self.tail = (f"cannot start {self.member.command.arguments[0]}: {error.strerror}",)
            self._apply(Exited(code=CANNOT_START, at=_now()))
            return
        async with asyncio.TaskGroup() as group:
            name = self.member.name
            listening = group.create_task(self._listen(), name=f"{name} health")
            stopping = group.create_task(self._stop_process(process), name=f"{name} stop")
            code = await process.wait()
            listening.cancel()
            stopping.cancel()
        self.tail = process.last_lines()
        self._apply(Exited(code=code, at=_now()))

    async def _listen(self) -> None:
        async with AsyncExitStack() as stack:
            if self.member.stage is None:
                answers = GatewayClient(self._site.reachable).serving()
            else:
                self._client = await stack.enter_async_context(ReplicaClient(self.member.address))
                stack.callback(self._forget_client)
                answers = self._client.serving()
            await self._hear(answers)

    async def _hear(self, answers: AsyncIterator[bool]) -> None:
        async for serving in answers:
            self._apply(Serving(at=_now()) if serving else Loading())

    def _forget_client(self) -> None:
        self._client = None

    async def _stop_process(self, process: Process) -> None:
        await self._stop.wait()
        self._apply(StopRequested())
        process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.member.grace):
                await self._kill.wait()
        process.kill()

    async def _back_off(self) -> None:
        try:
            async with asyncio.timeout(self.state.delay):
                await self._stop.wait()
        except TimeoutError:
            self._apply(RetryDue())
        else:
            self._apply(StopRequested())

    def _apply(self, event: Event) -> None:
        before = self.state
        self.state = advance(before, event, self._policy)
        if self.state != before:
            crashed = isinstance(event, Exited) and self.state.phase is not ReplicaPhase.STOPPED
            self._watcher.changed(self.member, self.state, self.tail if crashed else ())


def _now() -> float:
    return asyncio.get_running_loop().time()
