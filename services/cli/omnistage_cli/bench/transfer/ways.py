"""The consumer's end of each way to move a tensor.

A way brings a tensor of a given size and says when its parts were over. What a way needs to bring one
(a connection, memory to receive into, a plane with its mappings) it has before, and keeps. Ways are
used one after the other, never two at once.
"""

import socket
import time
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol

import grpc.aio
import msgspec
from msgspec import Struct

from omnistage_cli.bench.transfer.contents import departure, filled
from omnistage_cli.bench.transfer.methods import TRANSPORTS, Method
from omnistage_cli.bench.transfer.orders import CONTROL, Answer, Ask, MeasureOrder, Move, header_of
from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import ServerError
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.payloads import Tensor
from omnistage_common.tensors import TensorPlane

__all__ = ["Arrival", "Way", "open_ways"]

_OWNER: Final = "consumer"
_LIFE: Final = 60.0
"""Seconds that one transfer may take."""
_SPARE: Final = 1024 * 1024
"""Bytes of room besides the largest tensor."""
_LENGTH_BYTES: Final = 8


class Arrival(Struct, frozen=True, kw_only=True):
    """A tensor that was moved, and how long that took."""

    move: Move
    data: bytes | memoryview | None = None
    """None where it did not leave its process."""


class Way(Protocol):
    """One way."""

    async def move(self, length: int) -> Arrival:
        """Brings a tensor of that many bytes.

        Raises:
            OmnistageError: It did not come.
        """

    async def done(self) -> None:
        """The tensor that came last is not wanted any more."""


class _Control:
    """The stream of orders to the producer."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        self._call = call
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Answer).decode

    async def ask(self, ask: Ask) -> Answer:
        """What the producer answers.

        Raises:
            ServerError: It refused, or is gone.
        """
        try:
            await self._call.write(self._encode(ask))
            answer = await self._call.read()
        except grpc.aio.AioRpcError as failed:
            raise ServerError(f"the producing process failed: {failed.details()}") from failed
        if not isinstance(answer, bytes):
            raise ServerError("the producing process has ended")
        return self._decode(answer)


class _Copy:
    """Within the producer."""

    def __init__(self, control: _Control) -> None:
        self._control = control

    async def move(self, length: int) -> Arrival:
        answer = await self._control.ask(Ask(method=Method.COPY, length=length))
        return Arrival(move=Move(method=Method.COPY, total=answer.copied))

    async def done(self) -> None:
        """Nothing is held."""


class _Socket:
    """Blocks the event loop: nothing else has anything to do on it."""

    def __init__(self, connection: socket.socket, largest: int) -> None:
        self._connection = connection
        self._room = memoryview(filled(largest))

    async def move(self, length: int) -> Arrival:
        self._connection.sendall(length.to_bytes(_LENGTH_BYTES, "little"))
        data, at = self._room[:length], 0
        while at < length:
            came = self._connection.recv_into(data[at:])
            if not came:
                raise ServerError("the producing process has closed its connection")
            at += came
        total = time.monotonic_ns() - departure(data)
        return Arrival(move=Move(method=Method.SOCKET, total=total), data=data)

    async def done(self) -> None:
        """The room is used again."""


class _Unary:
    def __init__(self, call: "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]") -> None:
        self._call = call

    async def move(self, length: int) -> Arrival:
        try:
            data = await self._call(length.to_bytes(_LENGTH_BYTES, "little"))
        except grpc.aio.AioRpcError as failed:
            raise ServerError(f"the unary call failed: {failed.details()}") from failed
        total = time.monotonic_ns() - departure(data)
        return Arrival(move=Move(method=Method.GRPC_UNARY, total=total), data=data)

    async def done(self) -> None:
        """Nothing is held."""


class _Plane:
    """The tensor plane, with one transport only, so that it cannot fall back to another."""

    def __init__(self, method: Method, plane: TensorPlane, control: _Control) -> None:
        self._method = method
        self._plane = plane
        self._control = control

    async def move(self, length: int) -> Arrival:
        answer = await self._control.ask(Ask(method=self._method, length=length))
        handed = time.monotonic_ns()
        tensor = await self._plane.fetch(
            _content(answer, length), owner=_OWNER, deadline=Deadline.after(_LIFE)
        )
        arrived = time.monotonic_ns()
        left = departure(tensor.data)
        move = Move(
            method=self._method,
            total=arrived - left,
            publish=answer.published - left,
            hand_over=handed - answer.published,
            fetch=arrived - handed,
        )
        return Arrival(move=move, data=tensor.data)

    async def done(self) -> None:
        self._plane.release_owner(_OWNER)
        await self._control.ask(Ask(method=self._method))


def _content(answer: Answer, length: int) -> Any:
    if answer.inline is not None:
        return Tensor(header=header_of(length), data=answer.inline)
    return answer.ref


async def open_ways(order: MeasureOrder, stack: AsyncExitStack) -> dict[Method, Way]:
    """The methods that are asked for, ready to move; what they hold is let go with the stack.

    Raises:
        OSError: The producer does not take connections.
    """
    unlimited = {"grpc.max_receive_message_length": -1}
    channel = await stack.enter_async_context(
        grpc.aio.insecure_channel(
            order.source.control, options=tuple({**dict(CHANNEL_OPTIONS), **unlimited}.items())
        )
    )
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"/{CONTROL}/Ask")()
    stack.callback(call.cancel)
    control = _Control(call)
    largest = max(order.sizes)
    ways: dict[Method, Way] = {}
    for method in order.methods:
        if method in TRANSPORTS:
            ways[method] = _Plane(method, _plane(method, largest, stack), control)
    if Method.COPY in order.methods:
        ways[Method.COPY] = _Copy(control)
    if Method.GRPC_UNARY in order.methods:
        ways[Method.GRPC_UNARY] = _Unary(channel.unary_unary(f"/{CONTROL}/Get"))
    if Method.SOCKET in order.methods:
        ways[Method.SOCKET] = _Socket(_connected(order.source.socket_port, stack), largest)
    return ways


def _plane(method: Method, largest: int, stack: AsyncExitStack) -> TensorPlane:
    plane = TensorPlane(
        incarnation=new_incarnation(),
        host=this_host(),
        slab_bytes=largest + _SPARE,
        transports=(TRANSPORTS[method],),
    )
    stack.callback(plane.close)
    return plane


def _connected(port: int, stack: AsyncExitStack) -> socket.socket:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
