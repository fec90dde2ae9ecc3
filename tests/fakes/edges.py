"""A gateway and consumers around one replica within this process, for tests of its stream edges."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from fakes.frames import outlet, rows_of, tensor
from fakes.link_client import LinkClient, memory_link
from fakes.scripted_engine import Run, ScriptedEngine
from omnistage_common.ids import OutputName, RequestNumber, StreamToken
from omnistage_common.links.frames import Delivery, Outlet
from omnistage_common.links.replica_link import Streams
from omnistage_common.payloads import Payload, PayloadKind
from omnistage_stage.service.link import Link
from omnistage_stage.service.replica import Replica

__all__ = ["BIG", "CODES", "SAID", "TOKEN", "Edge", "frames_of", "one_consumer", "piece", "until"]

CODES: Final = OutputName("codes")
SAID: Final = OutputName("text")
TOKEN: Final = StreamToken("token")
BIG: Final = Payload(kind=PayloadKind.HIDDEN_STATES, content=tensor(1 << 20))
"""A tensor that goes by reference."""


def piece(text: str) -> Payload:
    """A piece of text."""
    return Payload(kind=PayloadKind.TEXT, content=text)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the others on; what is waited for takes a few turns and no time."""
    for _ in range(200):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("not within two hundred turns of the event loop")


class Edge:
    """A gateway and consumers, each with a link of its own to one replica."""

    def __init__(self, replica: Replica, engine: ScriptedEngine, stack: AsyncExitStack) -> None:
        self.replica = replica
        self._engine = engine
        self._stack = stack
        self.links: list[Link] = []

    async def link(self) -> LinkClient:
        """One more link."""
        link = Link(self.replica, changed=lambda: None)
        self.links.append(link)
        client, _ = await self._stack.enter_async_context(memory_link(self.replica, link=link))
        return client

    async def open(
        self,
        gateway: LinkClient,
        *outlets: Outlet,
        withheld: tuple[str, ...] = (),
        credit: int = 64,
        credit_releases: bool = False,
        delivery: Delivery = Delivery.DELTAS,
        seconds: float = 30.0,
    ) -> tuple[RequestNumber, Run]:
        """A running request with those outlets."""
        streams = Streams(
            outlets=outlets,
            withheld=tuple(map(OutputName, withheld)),
            credit_releases=credit_releases,
        )
        number = await gateway.open(
            credit=credit, delivery=delivery, seconds=seconds, streams=streams
        )
        return number, await self._engine.started(gateway.id_of(number))

    async def subscribe(
        self, consumer: LinkClient, token: str = TOKEN, *, credit: int = 64, seconds: float = 30.0
    ) -> RequestNumber:
        """A consumer comes."""
        incarnation = self.replica.incarnation
        return await consumer.subscribe(
            StreamToken(token), incarnation, credit=credit, seconds=seconds
        )

    @property
    def leases(self) -> int:
        """Tensors that are held."""
        return self.replica.plane.statistics().leases

    async def settles(self) -> None:
        """Nothing is left of any request, at any link."""
        await until(lambda: all(link.open_requests == 0 for link in self.links))
        assert self.leases == 0
        assert len(self.replica.outlets) == 0
        await until(lambda: self.replica.admission.running == 0)


@asynccontextmanager
async def one_consumer(
    edge: Edge, *, credit: int = 64
) -> AsyncIterator[tuple[LinkClient, RequestNumber, Run, LinkClient, RequestNumber]]:
    """A running request whose codes go to one consumer; everything settles afterwards."""
    gateway, consumer = await edge.link(), await edge.link()
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"), withheld=("codes",))
    taking = await edge.subscribe(consumer, credit=credit)
    await until(lambda: len(edge.links[1]._acceptor) == 1)
    yield gateway, number, run, consumer, taking
    await edge.settles()


def frames_of(client: LinkClient, number: RequestNumber) -> list[list[int]]:
    """The codec frames of each output that came."""
    return [rows_of(output.payload) for output in client.outputs(number)]
