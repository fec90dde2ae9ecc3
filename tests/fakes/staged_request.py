"""A request on its way over scripted replicas: tests say what those answer and look at what is sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fakes.frames import tensor
from fakes.scripted_link import ScriptedLink
from omnistage_common.deadlines import Deadline
from omnistage_common.ids import OutputName, RequestId, StageName
from omnistage_common.links.frames import Cancel
from omnistage_common.payloads import (
    Content,
    Conversation,
    Output,
    Parameters,
    Payload,
    PayloadKind,
)
from omnistage_common.pipeline.plan import Modality, OutputPlan, PipelinePlan
from omnistage_common.tensors import TensorPlane
from omnistage_gateway.pipelines.routing import find_route
from omnistage_gateway.replicas.pool import StagePool
from omnistage_gateway.requests.sequencing import Sequence, StagedRequest

__all__ = ["CONVERSATION", "SPEECH", "Recorder", "Stages", "cancels", "piece", "running", "turns"]

CONVERSATION = Output(
    name=OutputName("conversation"),
    payload=Payload(kind=PayloadKind.CONVERSATION, content=Conversation(messages=())),
)
SPEECH = Output(
    name=OutputName("speech"), payload=Payload(kind=PayloadKind.WAVEFORM, content=tensor(4))
)


def piece(name: str) -> Output:
    """A small tensor under a name."""
    payload = Payload(kind=PayloadKind.HIDDEN_STATES, content=tensor(4))
    return Output(name=OutputName(name), payload=payload)


class Recorder:
    """An answer that keeps what comes; optionally its client reads nothing."""

    def __init__(self) -> None:
        self.delivered: list[tuple[Modality | None, Content]] = []
        self.steps: list[tuple[StageName, int, int]] = []
        self.reading = asyncio.Event()
        self.reading.set()

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:  # noqa: ARG002
        """Keeps a piece."""
        self.delivered.append((plan.modality, content))

    def progress(self, stage: StageName, done: int, total: int) -> None:
        """Keeps how far a stage is."""
        self.steps.append((stage, done, total))

    async def flush(self) -> None:
        """Waits while the client does not read."""
        await self.reading.wait()


class Stages:
    """The replicas of a plan, and a request on its way over them."""

    def __init__(
        self,
        plan: PipelinePlan,
        plane: TensorPlane,
        *,
        replicas: int = 1,
        first_frames: int | None = None,
    ) -> None:
        self.links = {
            stage.name: [ScriptedLink(stage.name, index) for index in range(replicas)]
            for stage in plan.stages
        }
        self.answer = Recorder()
        route = find_route(
            plan, frozenset({CONVERSATION.name}), frozenset({Modality.TEXT, Modality.AUDIO})
        )
        request = StagedRequest(
            id=RequestId("request"),
            inputs={CONVERSATION.name: (CONVERSATION,)},
            parameters=Parameters(max_tokens=5),
            deadline=Deadline.after(30),
            stream=True,
            first_frames=first_frames,
        )
        self.sequence = Sequence(
            request,
            route,
            pools={name: StagePool(name, links) for name, links in self.links.items()},
            plane=plane,
        )

    def __getitem__(self, name: str) -> ScriptedLink:
        return self.links[StageName(name)][0]

    @property
    def every(self) -> list[ScriptedLink]:
        """All links."""
        return [link for links in self.links.values() for link in links]

    @property
    def outstanding(self) -> int:
        """Requests that somebody still listens for, and those that are held."""
        return sum(link.outstanding + len(link._opener) for link in self.every)


@asynccontextmanager
async def running(stages: Stages) -> AsyncIterator["asyncio.Task[None]"]:
    """The request under way; at the end nothing of it may be left on any link."""
    task = asyncio.create_task(stages.sequence.run(stages.answer))
    await turns()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert stages.outstanding == 0


async def turns(count: int = 5) -> None:
    """Lets everything happen that can."""
    for _ in range(count):
        await asyncio.sleep(0)


def cancels(stages: Stages) -> list[Cancel]:
    """All Cancel frames that were sent."""
    return [frame for link in stages.every for frame in link.closes if isinstance(frame, Cancel)]
