"""The producing process of `omnistage bench transfer`: has tensors in memory, and gives them away.

`python -m omnistage_cli.bench.transfer.source` reads a `SourceOrder` as JSON from its standard input,
prints a `Source` as JSON on a line, and serves until SIGTERM. Each method of the tensor plane has a
plane of its own with the door that a stage would open, since a plane that was once read over a network
works out digests for all of its tensors from then on.
"""

import asyncio
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, Final

import grpc.aio
import msgspec
import uvloop

from omnistage_cli.bench.transfer.contents import filled, stamp
from omnistage_cli.bench.transfer.methods import TRANSPORTS, Method
from omnistage_cli.bench.transfer.orders import (
    CONTROL,
    Answer,
    Ask,
    Source,
    SourceOrder,
    header_of,
)
from omnistage_common.channels import SERVER_OPTIONS
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import OmnistageError
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.payloads import Tensor
from omnistage_common.processes import exit_with_parent, settle_heap
from omnistage_common.tensors import TensorPlane
from omnistage_common.tensors.door import open_door

_HOST: Final = "127.0.0.1"
_OWNER: Final = "source"
_LIFE: Final = 60.0
"""Seconds until a tensor that nobody came for is let go."""
_SPARE: Final = 1024 * 1024
"""Bytes of a slab besides the largest tensor."""
_LENGTH_BYTES: Final = 8
_Context = grpc.aio.ServicerContext[bytes, bytes]

_decode = msgspec.msgpack.Decoder(Ask).decode
_encode = msgspec.msgpack.Encoder().encode


class _Sending:
    """What the process has to give, and how it gives it."""

    def __init__(self, largest: int, planes: dict[Method, TensorPlane]) -> None:
        self._tensor = memoryview(filled(largest))
        self._target = memoryview(bytearray(self._tensor))
        self._planes = planes

    async def asked(
        self, requests: AsyncIterator[bytes], context: _Context
    ) -> AsyncIterator[bytes]:
        """Does what is asked for, one after the other."""
        try:
            async for request in requests:
                yield _encode(await self._obey(_decode(request)))
        except OmnistageError as failed:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, failed.message)

    async def unary(self, request: bytes, _context: _Context) -> bytes:
        """The bytes themselves. gRPC sends nothing but `bytes`, which costs a copy."""
        tensor = self._tensor[: int.from_bytes(request, "little")]
        stamp(tensor)
        return bytes(tensor)

    def serve_socket(self, listener: socket.socket) -> None:
        """Sends as many bytes as a connection asks for, again and again; in a thread."""
        with listener, listener.accept()[0] as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while wanted := connection.recv(_LENGTH_BYTES, socket.MSG_WAITALL):
                tensor = self._tensor[: int.from_bytes(wanted, "little")]
                stamp(tensor)
                connection.sendall(tensor)

    async def _obey(self, ask: Ask) -> Answer:
        if ask.method is Method.COPY:
            return self._copy(ask.length)
        plane = self._planes[ask.method]
        if not ask.length:
            plane.release_owner(_OWNER)
            return Answer()
        return await self._publish(plane, ask.length)

    def _copy(self, length: int) -> Answer:
        target, tensor = self._target[:length], self._tensor[:length]
        start = time.monotonic_ns()
        target[:] = tensor
        return Answer(copied=time.monotonic_ns() - start)

    async def _publish(self, plane: TensorPlane, length: int) -> Answer:
        data = self._tensor[:length]
        stamp(data)
        content = await plane.publish(
            Tensor(header=header_of(length), data=data),
            owner=_OWNER,
            deadline=Deadline.after(_LIFE),
        )
        published = time.monotonic_ns()
        if isinstance(content, Tensor):
            return Answer(published=published, inline=bytes(content.data))
        return Answer(published=published, ref=content)


async def _with_door(stack: AsyncExitStack, largest: int) -> TensorPlane:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    port = server.add_insecure_port(f"{_HOST}:0")
    plane = TensorPlane(
        incarnation=new_incarnation(),
        host=this_host(),
        slab_bytes=largest + _SPARE,
        address=f"{_HOST}:{port}",
    )
    open_door(server, plane)
    stack.callback(plane.close)
    await server.start()
    stack.push_async_callback(server.stop, None)
    return plane


async def _control(stack: AsyncExitStack, sending: _Sending) -> str:
    unlimited = {"grpc.max_send_message_length": -1}
    server = grpc.aio.server(options=tuple({**dict(SERVER_OPTIONS), **unlimited}.items()))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Ask": grpc.stream_stream_rpc_method_handler(sending.asked),
        "Get": grpc.unary_unary_rpc_method_handler(sending.unary),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(CONTROL, handlers),))
    port = server.add_insecure_port(f"{_HOST}:0")
    await server.start()
    stack.push_async_callback(server.stop, None)
    return f"{_HOST}:{port}"


async def _serve(order: SourceOrder) -> None:
    largest = max(order.sizes)
    stop = asyncio.Event()
    # However often it comes: the kernel tells of a parent's end once for each of its threads.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with ExitStack() as listening:
        async with AsyncExitStack() as stack:
            planes = {
                method: await _with_door(stack, largest)
                for method in order.methods
                if method in TRANSPORTS
            }
            sending = _Sending(largest, planes)
            control = await _control(stack, sending)
            listener = listening.enter_context(socket.create_server((_HOST, 0)))
            threading.Thread(
                target=partial(sending.serve_socket, listener), name="socket", daemon=True
            ).start()
            source = Source(control=control, socket_port=listener.getsockname()[1])
            settle_heap()
            sys.stdout.buffer.write(msgspec.json.encode(source) + b"\n")
            sys.stdout.buffer.flush()
            await stop.wait()


def main() -> None:
    """Serves as the order on standard input says."""
    exit_with_parent()
    uvloop.run(_serve(msgspec.json.decode(sys.stdin.buffer.read(), type=SourceOrder)))


if __name__ == "__main__":
    main()
