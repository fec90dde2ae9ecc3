"""A process with a tensor plane and its door, told what to do line by line.

Commands and answers are JSON, one a line. It can be killed, frozen and thawed, which is what it is for;
as its planes do, it publishes for others and fetches from others.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import grpc.aio
import msgspec
from msgspec import Struct

from omnistage_common.channels import SERVER_OPTIONS
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import OmnistageError
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.payloads import DeviceTensor, ElementType, Tensor, TensorHeader, TensorRef
from omnistage_common.tensors import (
    EVERY_TRANSPORT,
    PlaneStatistics,
    TensorPlane,
    TransportKind,
)
from omnistage_common.tensors.door import open_door

__all__ = ["MIB", "Fetched", "TensorProcess", "bytes_of", "tensor_of"]

MIB: Final = 1024 * 1024
_LIFE: Final = 60.0
_RUN: Final = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
"""Runs this file with the current folder first in the import path."""
_TESTS: Final = Path(__file__).parents[1]
"""Where `fakes` is found, which what has a device needs."""
_OWNER: Final = "peer"


@cache
def _pattern(seed: int) -> bytes:
    return random.Random(seed).randbytes(MIB)  # noqa: S311 - reproducible


def bytes_of(length: int, seed: int = 0) -> bytes:
    """Bytes that are the same for the same seed."""
    pattern = _pattern(seed)
    return (pattern * (length // MIB + 1))[:length]


def tensor_of(length: int, seed: int = 0) -> Tensor:
    """A tensor of those bytes."""
    header = TensorHeader(element_type=ElementType.UINT8, shape=(length,))
    return Tensor(header=header, data=bytes_of(length, seed))


class _Publish(Struct, tag=True):
    length: int
    seed: int
    on_device: bool


class _Fetch(Struct, tag=True):
    ref: TensorRef
    to_device: bool


class _Release(Struct, tag=True):
    pass


class _Holds(Struct, tag=True):
    pass


class Fetched(Struct, frozen=True):
    """What became of a fetch in the process."""

    seed: int
    """Of the bytes that came; -1 when they are not known."""
    error: str
    """Code of the error; empty when there was none."""


class TensorProcess:
    """The other process, as a test sees it.

    Args:
        directory: Folder of its segment.
        port: Where its door is; 0 for a free one.
        slab_bytes: Of its plane.
        transports: By which it may read.
        import_path: Folder whose packages come before those installed; not for one with a device.
        device_bytes: Of its device for what it makes, and as much again for what it receives; 0 for
            none. The device is a CPU, as the torch engine has it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        slab_bytes: int = 512 * MIB,
        transports: tuple[TransportKind, ...] = EVERY_TRANSPORT,
        import_path: Path | None = None,
        device_bytes: int = 0,
    ) -> None:
        names = ",".join(kind.value for kind in transports)
        numbers = map(str, (port, slab_bytes, device_bytes))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN, str(directory), *numbers, names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=import_path or _TESTS,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.pid = self._process.pid
        self.address = self._answer().decode()
        """`HOST:PORT` of its door."""
        self.port = int(self.address.rpartition(":")[2])

    def publish(self, length: int, seed: int = 0, *, on_device: bool = False) -> TensorRef:
        """A reference to `tensor_of(length, seed)`, in its slab or made on its device."""
        self._ask(_Publish(length, seed, on_device))
        return msgspec.json.decode(self._answer(), type=TensorRef)

    def start_fetch(self, ref: TensorRef, *, to_device: bool = False) -> None:
        """Has it fetch a tensor; `fetched` says what came of it."""
        self._ask(_Fetch(ref, to_device))

    def fetched(self) -> Fetched:
        """What the fetch that was started first brought."""
        return msgspec.json.decode(self._answer(), type=Fetched)

    def release(self) -> int:
        """Ends all its leases; how many there were."""
        self._ask(_Release())
        return int(self._answer())

    def holds(self) -> PlaneStatistics:
        """What its plane holds."""
        self._ask(_Holds())
        return msgspec.json.decode(self._answer(), type=PlaneStatistics)

    def freeze(self) -> None:
        """Stops it without a word."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends it without a chance to clean up. Idempotent."""
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()

    def end(self) -> int:
        """Has it end by itself; its exit status."""
        self._process.communicate(timeout=30)
        return self._process.returncode

    def _ask(self, command: Struct) -> None:
        stdin = self._process.stdin
        if stdin is None:
            raise AssertionError("the process was started without pipes")
        stdin.write(msgspec.json.encode(command) + b"\n")
        stdin.flush()

    def _answer(self) -> bytes:
        stdout = self._process.stdout
        if stdout is None:
            raise AssertionError("the process was started without pipes")
        return stdout.readline().strip()


def _say(answer: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


async def _publish(plane: TensorPlane, command: _Publish) -> Tensor | TensorRef:
    tensor = tensor_of(command.length, command.seed)
    if not command.on_device:
        return await plane.publish(tensor, owner=_OWNER, deadline=Deadline.after(_LIFE))
    from fakes.device_tensors import made_on_device  # noqa: PLC0415 - torch

    return await made_on_device(plane, tensor, owner=_OWNER)


async def _fetch(plane: TensorPlane, command: _Fetch) -> Fetched:
    fetch = plane.fetch_to_device if command.to_device else plane.fetch
    try:
        tensor = await fetch(command.ref, owner=_OWNER, deadline=Deadline.after(_LIFE))
    except OmnistageError as error:
        return Fetched(-1, error.code)
    if isinstance(tensor, DeviceTensor):
        data: bytes | memoryview = tensor.memory.read(tensor.offset, tensor.header.length)
    else:
        data = tensor.data
    found = next((seed for seed in range(10) if data == bytes_of(len(data), seed)), -1)
    return Fetched(found, "")


async def _obey(plane: TensorPlane, line: bytes) -> None:
    command = msgspec.json.decode(line, type=_Publish | _Fetch | _Release | _Holds)
    match command:
        case _Publish():
            _say(await _publish(plane, command))
        case _Fetch():
            _say(await _fetch(plane, command))
        case _Release():
            _say(plane.release_owner(_OWNER))
        case _:
            _say(plane.statistics())


def _attach(plane: TensorPlane, device_bytes: int) -> None:
    if device_bytes:
        from fakes.device_tensors import region  # noqa: PLC0415 - torch

        plane.attach(made=region(device_bytes), received=region(device_bytes))


async def _serve(
    directory: Path, port: int, slab_bytes: int, device_bytes: int, names: str
) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    plane = TensorPlane(
        incarnation=new_incarnation(),
        host=this_host(),
        slab_bytes=slab_bytes,
        directory=directory,
        address=address,
        transports=tuple(TransportKind(name) for name in names.split(",")),
    )
    _attach(plane, device_bytes)
    open_door(server, plane)
    await server.start()
    sys.stdout.write(address + "\n")
    sys.stdout.flush()
    async with asyncio.TaskGroup() as group:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            group.create_task(_obey(plane, line))
    await server.stop(None)
    plane.close()


if __name__ == "__main__":
    _folder, _port, _slab, _device, _names = sys.argv[1:]
    asyncio.run(_serve(Path(_folder), int(_port), int(_slab), int(_device), _names))
