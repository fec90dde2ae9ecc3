"""The local runtime: a plan as processes on this machine, from the first start to the last exit.

Everything starts at once; being ready takes as long as the slowest stage. The end has an order. The
gateway goes first: it takes no more requests and finishes those it has, for which it needs every
stage. When it is gone nobody uses the stages any more (their links broke with it, and a broken link
ends its requests), so there is nothing to hand over between them and they all stop together.

What the user wants from a running pipeline is a coroutine, the *session*: the run ends when it
returns, when it raises, when the user interrupts, or when a process is given up. Whichever it is,
no process and no shared memory is left.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from omnistage_cli.runtime.directory import RunDirectory
from omnistage_cli.runtime.interrupts import Interrupts
from omnistage_cli.runtime.keeping import Keeper
from omnistage_cli.runtime.launching import Launch, Member, Site, lay_out
from omnistage_cli.runtime.replica_client import ReplicaReport
from omnistage_cli.runtime.supervision import ReplicaPhase, RestartPolicy, Supervision
from omnistage_cli.runtime.wording import exit_in_words, log_line_in_words
from omnistage_common.errors import OmnistageError, SetupError
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.tensors import remove_stale

__all__ = ["LocalRuntime", "Observer", "Session", "until_interrupted"]

_REPORT_EVERY: Final = 1.0
"""Seconds between two looks at what the replicas are doing; for people only."""

Session = Callable[[Site], Awaitable[None]]
"""What is done with the running pipeline."""


class Observer(Protocol):
    """Who is told what happens during a run."""

    @property
    def wants_reports(self) -> bool:
        """Whether to ask the replicas once a second what they are doing."""

    def laid_out(self, members: tuple[Member, ...]) -> None:
        """The processes are about to start."""

    def changed(self, member: Member, state: Supervision, tail: tuple[str, ...]) -> None:
        """Something happened to a process; `tail` ends its log when it has crashed."""

    def reported(self, member: Member, report: ReplicaReport) -> None:
        """A replica said what it is doing."""

    def ready(self, site: Site) -> None:
        """Every process serves, for the first time."""

    def stopping(self) -> None:
        """The end has begun."""


async def until_interrupted(_site: Site) -> None:
    """The session that only the user ends."""
    await asyncio.Event().wait()


class LocalRuntime:
    """One run of one pipeline."""

    def __init__(
        self,
        plan: PipelinePlan,
        site: Site,
        *,
        observer: Observer,
        launch: Launch | None = None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._plan = plan
        self._site = site
        self._observer = observer
        self._launch = launch or Launch()
        self._policy = policy or RestartPolicy()
        self._keepers: tuple[Keeper, ...] = ()
        self._all_ready = asyncio.Event()
        self._given_up = asyncio.Event()

    async def run(self, directory: RunDirectory, interrupted: Interrupts, session: Session) -> None:
        """Starts everything, runs the session, stops everything.

        Raises:
            SetupError: A process was given up before it served, or none could be started.
            OmnistageError: What the session raised.
        """
        remove_stale()
        members = lay_out(self._plan, directory, self._launch, self._site)
        self._keepers = tuple(
            Keeper(
                member,
                self._site,
                policy=self._policy,
                watcher=self,
                kill=interrupted.kill,
            )
            for member in members
        )
        self._observer.laid_out(members)
        try:
            async with asyncio.TaskGroup() as group:
                await self._conduct(group, interrupted, session)
        except BaseExceptionGroup as errors:
            raise _only(errors) from None

    def changed(self, member: Member, state: Supervision, tail: tuple[str, ...]) -> None:
        """Notes and passes on what happened to a process."""
        self._observer.changed(member, state, tail)
        if state.phase is ReplicaPhase.GIVEN_UP:
            self._given_up.set()
        if all(keeper.state.phase is ReplicaPhase.READY for keeper in self._keepers):
            self._all_ready.set()

    async def _conduct(
        self, group: asyncio.TaskGroup, interrupted: Interrupts, session: Session
    ) -> None:
        keeping = {
            keeper: group.create_task(keeper.keep(), name=f"{keeper.member.name} keeper")
            for keeper in self._keepers
        }
        reporting = group.create_task(self._report(), name="reports")
        try:
            await self._until_over(interrupted, session)
        finally:
            reporting.cancel()
            self._observer.stopping()
            await self._shut_down(keeping)

    async def _until_over(self, interrupted: Interrupts, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            ends = {
                group.create_task(self._serve(session), name="session"),
                group.create_task(interrupted.stop.wait(), name="interrupt"),
                group.create_task(self._given_up.wait(), name="given up"),
            }
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
        if self._given_up.is_set():
            raise self._reason()

    async def _serve(self, session: Session) -> None:
        await self._all_ready.wait()
        self._observer.ready(self._site)
        await session(self._site)

    async def _shut_down(self, keeping: dict[Keeper, asyncio.Task[None]]) -> None:
        gateway = [keeper for keeper in keeping if keeper.member.stage is None]
        stages = [keeper for keeper in keeping if keeper.member.stage is not None]
        for together in (gateway, stages):
            for keeper in together:
                keeper.stop()
            await asyncio.wait([keeping[keeper] for keeper in together])

    async def _report(self) -> None:
        while self._observer.wants_reports:
            await asyncio.sleep(_REPORT_EVERY)
            reports = await asyncio.gather(*(keeper.report() for keeper in self._keepers))
            for keeper, report in zip(self._keepers, reports, strict=True):
                if report is not None:
                    self._observer.reported(keeper.member, report)

    def _reason(self) -> SetupError:
        keeper = next(k for k in self._keepers if k.state.phase is ReplicaPhase.GIVEN_UP)
        state = keeper.state
        how = exit_in_words(state.last_exit)
        if state.crashes > 1:
            how += f", {state.crashes} times in a row, without serving once"
        last = f"; its last words: {log_line_in_words(keeper.tail[-1])}" if keeper.tail else ""
        return SetupError(
            f"{keeper.member.name} does not start ({how}){last}; "
            f"its log is {keeper.member.command.log}"
        )


def _only(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error of ours in a group of nested groups; the group itself when there is more."""
    ours = errors.subgroup(OmnistageError)
    rest = errors.subgroup(lambda error: not isinstance(error, OmnistageError | BaseExceptionGroup))
    if ours is None or rest is not None:
        return errors
    inner: BaseException = ours
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner
