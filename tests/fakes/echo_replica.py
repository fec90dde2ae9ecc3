"""Replicas over real gRPC that answer every request with who they are, and count what they had.

Each makes one small output, so that a request's whole way can be read from its answer.
"""

import asyncio
from collections.abc import AsyncIterator

from fakes.fake_replica import FakeReplica
from fakes.frames import tensor, text_output
from omnistage_common.ids import OutputName
from omnistage_common.links import wire
from omnistage_common.links.frames import Cancel, Data, End, FinishReason, Open, Usage
from omnistage_common.payloads import Output, Payload, PayloadKind
from omnistage_protos.stage.v1 import stage_pb2

__all__ = ["EchoReplica"]


class EchoReplica(FakeReplica):
    """See the module.

    Args:
        revision: What it calls itself.
        output: Name of what it makes: text that names all replicas of the way, or what is between.
    """

    def __init__(self, revision: str, output: str = "text") -> None:
        super().__init__()
        self.revision = revision
        self.output = output
        self.asked = 0
        """Requests that came."""
        self.cancelled = 0
        """Requests that the gateway gave up."""
        self.answering = asyncio.Event()
        """While it is not set, requests are taken in and not answered."""
        self.answering.set()

    async def _read(self, requests: AsyncIterator[stage_pb2.LinkRequest]) -> None:
        async with asyncio.TaskGroup() as group:
            async for message in requests:
                for frame in wire.decode_from_opener(message):
                    if isinstance(frame, Open):
                        self.asked += 1
                        group.create_task(self._answer(frame))
                    elif isinstance(frame, Cancel):
                        self.cancelled += 1

    async def _answer(self, frame: Open) -> None:
        await asyncio.sleep(0.002)
        await self.answering.wait()
        way = [*_way(frame), self.revision]
        self.say(
            Data(request=frame.request, sequence=0, outputs=(self._made(" ".join(way)),)),
            End(
                request=frame.request,
                finish_reason=FinishReason.STOP,
                usage=Usage(),
                data_frames=1,
            ),
        )

    def _made(self, way: str) -> Output:
        if self.output == "text":
            return text_output(way)
        content = tensor(len(way))
        content = type(content)(header=content.header, data=way.encode())
        payload = Payload(kind=PayloadKind.HIDDEN_STATES, content=content)
        return Output(name=OutputName(self.output), payload=payload)


def _way(frame: Open) -> list[str]:
    """The replicas that a request has come by, as what it brings says."""
    contents = (each.payload.content for each in frame.inputs if each.name != "conversation")
    return [word for each in contents for word in bytes(each.data).decode().split()]  # type: ignore[union-attr]
