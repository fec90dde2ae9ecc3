"""The local runtime with real processes that compute nothing.

Every test also holds that no process and no shared memory of the run is left.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fakes.plans import FAKE_LAUNCH, one_stage_plan, plan_of_stages
from omnistage_cli.runtime import Launch, LocalRuntime, RestartPolicy, Site, until_interrupted
from omnistage_cli.runtime.directory import RunDirectory
from omnistage_cli.runtime.interrupts import Interrupts
from omnistage_cli.runtime.launching import GATEWAY, Member
from omnistage_cli.runtime.ports import LOOPBACK, free_ports
from omnistage_cli.runtime.replica_client import ReplicaReport
from omnistage_cli.runtime.supervision import ReplicaPhase, Supervision
from omnistage_common.addresses import Address
from omnistage_common.errors import SetupError, StageUnavailable
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.tensors import SHARED_MEMORY_FOLDER

QUICK = RestartPolicy(first_delay=0.01, max_delay=0.05, max_crashes=3)


class Recorder:
    """Remembers what happened and lets a test wait for it."""

    wants_reports = True

    def __init__(self) -> None:
        self.phases: dict[str, list[ReplicaPhase]] = {}
        self.tails: dict[str, tuple[str, ...]] = {}
        self.reports: dict[str, ReplicaReport] = {}
        self.order: list[str] = []
        self.readies = 0
        self._news = asyncio.Event()

    def laid_out(self, members: tuple[Member, ...]) -> None:
        """Makes room for every process."""
        self.phases = {member.name: [] for member in members}

    def changed(self, member: Member, state: Supervision, tail: tuple[str, ...]) -> None:
        """Remembers a change."""
        self.phases[member.name].append(state.phase)
        self.order.append(f"{member.name} {state.phase.value}")
        if tail:
            self.tails[member.name] = tail
        self._news.set()

    def reported(self, member: Member, report: ReplicaReport) -> None:
        """Remembers a report."""
        self.reports[member.name] = report
        self._news.set()

    def ready(self, site: Site) -> None:
        """Counts."""
        assert site.url.startswith("http://127.0.0.1:")
        self.readies += 1

    def stopping(self) -> None:
        """Remembers that the end began."""
        self.order.append("stopping")

    async def until(self, met: Callable[[], bool]) -> None:
        """Waits for what a test wants to have happened."""
        while not met():
            self._news.clear()
            await self._news.wait()

    async def seen(self, name: str, phase: ReplicaPhase, times: int = 1) -> None:
        """Waits until a process has been in a phase that often."""
        await self.until(lambda: Counter(self.phases.get(name, ()))[phase] >= times)


class Run:
    """One run under test."""

    def __init__(self, plan: PipelinePlan, root: Path, launch: Launch) -> None:
        self.recorder = Recorder()
        self.interrupts = Interrupts()
        self.directory = RunDirectory(root)
        site = Site(listen=Address(host=LOOPBACK, port=free_ports(1)[0]))
        self._runtime = LocalRuntime(
            plan, site, observer=self.recorder, launch=launch, policy=QUICK
        )

    async def run(self, session: Callable[[Site], Awaitable[None]] = until_interrupted) -> None:
        """Runs from start to end."""
        with self.directory.locked():
            await self._runtime.run(self.directory, self.interrupts, session)

    def pids(self, *words: str) -> list[int]:
        """Processes of this run whose command lines hold all the words."""
        return processes_with(str(self.directory.root), *words)


def processes_with(*words: str) -> list[int]:
    """Ids of the processes whose command lines hold all the words."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if all(word in command_line(pid) for word in words)]


def command_line(pid: int) -> str:
    """What a process was started with; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def segments_of(pid: int) -> list[Path]:
    """Shared memory of a process."""
    return list(SHARED_MEMORY_FOLDER.glob(f"omnistage-{pid}-*"))


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Fails the test when a process of its run, or shared memory of one, is left."""
    yield
    assert processes_with(str(tmp_path)) == []
    pids = [pid for note in tmp_path.glob("*.pids") for pid in note.read_text().split()]
    assert [pid for pid in pids if segments_of(int(pid))] == []


@pytest.fixture
def make_run(tmp_path: Path, request: pytest.FixtureRequest) -> "RunMaker":
    """Makes the run of a plan."""
    request.getfixturevalue("nothing_left")
    return lambda plan: Run(plan, tmp_path, FAKE_LAUNCH)


RunMaker = Callable[[PipelinePlan], Run]


@asynccontextmanager
async def running(run: Run) -> AsyncIterator[Recorder]:
    """Everything is ready within, and the user interrupts at its end."""
    async with asyncio.TaskGroup() as group:
        group.create_task(run.run())
        await run.recorder.until(lambda: run.recorder.readies == 1)
        try:
            yield run.recorder
        finally:
            run.interrupts.interrupt()


async def test_every_process_gets_ready_and_stops_when_interrupted(make_run: RunMaker) -> None:
    run = make_run(plan_of_stages({"thinker": {}, "talker": {}}))

    async with running(run) as recorder:
        assert len(run.pids()) == 3

    for phases in recorder.phases.values():
        assert phases[-3:] == [ReplicaPhase.READY, ReplicaPhase.STOPPING, ReplicaPhase.STOPPED]


async def test_the_gateway_is_gone_before_any_stage_is_asked_to_stop(make_run: RunMaker) -> None:
    run = make_run(plan_of_stages({"thinker": {}, "talker": {}}))

    async with running(run) as recorder:
        pass

    end = recorder.order[recorder.order.index("stopping") :]
    assert end[:3] == ["stopping", "gateway stopping", "gateway stopped"]
    assert set(end[3:5]) == {"thinker-0 stopping", "talker-0 stopping"}


async def test_a_killed_stage_is_restarted_at_its_address(make_run: RunMaker) -> None:
    run = make_run(one_stage_plan())

    async with running(run) as recorder:
        (first,) = run.pids("fake_stage")
        line = command_line(first)
        os.kill(first, signal.SIGKILL)
        await recorder.seen("thinker-0", ReplicaPhase.READY, times=2)
        (second,) = run.pids("fake_stage")
        assert second != first
        assert command_line(second) == line

    assert ReplicaPhase.BACKING_OFF in recorder.phases["thinker-0"]
    assert recorder.phases[GATEWAY].count(ReplicaPhase.STARTING) == 1
    assert recorder.readies == 1


async def test_a_stage_that_only_crashes_is_given_up_with_its_last_words(
    make_run: RunMaker,
) -> None:
    run = make_run(one_stage_plan("crash"))

    with pytest.raises(SetupError, match=r"thinker-0 does not start .*the model is not there"):
        await run.run()

    assert run.recorder.phases["thinker-0"].count(ReplicaPhase.STARTING) == 3
    assert run.recorder.tails["thinker-0"] == (
        '{"event": "the model is not there", "level": "error"}',
    )
    assert run.recorder.readies == 0


async def test_a_stage_whose_setup_is_wrong_is_not_tried_again(make_run: RunMaker) -> None:
    run = make_run(one_stage_plan("setup"))

    with pytest.raises(SetupError, match=r"its setup is wrong.*unknown engine argument.*thinker-0"):
        await run.run()

    assert run.recorder.phases["thinker-0"] == [ReplicaPhase.STARTING, ReplicaPhase.GIVEN_UP]


@pytest.mark.usefixtures("nothing_left")
async def test_a_program_that_does_not_exist_is_given_up(tmp_path: Path) -> None:
    launch = Launch(stage=("/nonexistent/program",), gateway=FAKE_LAUNCH.gateway)
    run = Run(one_stage_plan(), tmp_path, launch)

    with pytest.raises(SetupError, match="cannot start /nonexistent/program"):
        await run.run()


async def test_a_second_interrupt_ends_a_process_that_does_not_listen(make_run: RunMaker) -> None:
    run = make_run(one_stage_plan("deaf"))

    async with running(run) as recorder:
        run.interrupts.interrupt()
        await recorder.seen("thinker-0", ReplicaPhase.STOPPING)

    assert run.interrupts.kill.is_set()


async def test_an_interrupt_while_loading_ends_the_run(make_run: RunMaker) -> None:
    run = make_run(one_stage_plan())

    async with asyncio.TaskGroup() as group:
        group.create_task(run.run())
        await run.recorder.seen("thinker-0", ReplicaPhase.STARTING)
        run.interrupts.interrupt()

    assert run.recorder.readies == 0


async def test_what_a_stage_started_ends_with_it(make_run: RunMaker) -> None:
    run = make_run(one_stage_plan("parent"))

    async with running(run):
        descriptor = os.pidfd_open(child_of_stage(run.directory))

    await ended(descriptor)


def child_of_stage(directory: RunDirectory) -> int:
    """Id of the process that the fake stage started."""
    (note,) = directory.root.glob("*.child")
    return int(note.read_text())


async def ended(descriptor: int) -> None:
    """Waits for the end of the process that a pidfd names, and closes it."""
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    loop.add_reader(descriptor, end.set)
    try:
        await end.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def test_the_run_ends_with_its_session(make_run: RunMaker) -> None:
    run = make_run(one_stage_plan())
    sites = []

    async def session(site: Site) -> None:
        sites.append(site)

    await run.run(session)

    assert len(sites) == 1
    assert run.recorder.phases["thinker-0"][-1] is ReplicaPhase.STOPPED


async def test_what_the_session_raises_comes_out_when_all_has_stopped(make_run: RunMaker) -> None:
    run = make_run(one_stage_plan())

    async def session(_site: Site) -> None:
        raise StageUnavailable("nobody answers")

    with pytest.raises(StageUnavailable, match="nobody answers"):
        await run.run(session)

    assert run.recorder.phases["thinker-0"][-1] is ReplicaPhase.STOPPED


async def test_a_cancelled_run_leaves_nothing(make_run: RunMaker) -> None:
    run = make_run(one_stage_plan())
    task = asyncio.ensure_future(run.run())
    await run.recorder.until(lambda: run.recorder.readies == 1)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_replicas_say_what_they_are_doing(make_run: RunMaker) -> None:
    run = make_run(one_stage_plan())

    async with running(run) as recorder:
        await recorder.until(lambda: "thinker-0" in recorder.reports)

    report = recorder.reports["thinker-0"]
    assert (report.running, report.queued) == (2, 1)
    assert report.resident_bytes > 2**20


async def test_a_killed_stage_leaves_no_shared_memory_while_the_run_goes_on(
    make_run: RunMaker,
) -> None:
    run = make_run(one_stage_plan())

    async with running(run) as recorder:
        (pid,) = run.pids("fake_stage")
        assert segments_of(pid) != []
        os.kill(pid, signal.SIGKILL)
        await recorder.seen("thinker-0", ReplicaPhase.READY, times=2)
        assert segments_of(pid) == []
