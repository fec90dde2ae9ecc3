"""A producer of tensors in a process of its own, told what to do line by line.

`publish <bytes> <seed>` answers with a reference as JSON, `release` with how many leases that
ended, `close` with `closed`. It ends with its input, and leaves its segment behind unless closed.
"""

import asyncio
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from omnistage_common.deadlines import Deadline
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.payloads import (
    ElementType,
    SharedMemoryLocation,
    Tensor,
    TensorHeader,
    TensorRef,
)
from omnistage_common.tensors import TensorPlane

__all__ = ["MIB", "Producer", "in_slab", "random_tensor"]

MIB: Final = 1024 * 1024


def random_tensor(length: int, seed: int = 0) -> Tensor:
    """A tensor of that many bytes, the same for the same seed."""
    header = TensorHeader(element_type=ElementType.UINT8, shape=(length,))
    return Tensor(header=header, data=random.Random(seed).randbytes(length))  # noqa: S311 - reproducible


def in_slab(ref: TensorRef) -> SharedMemoryLocation:
    """Where a tensor is that is in a slab."""
    assert isinstance(ref.location, SharedMemoryLocation)
    return ref.location


class Producer:
    """The other process, as a test sees it.

    Args:
        directory: Folder of its segment.
    """

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str) -> str:
        """The answer to a command."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise AssertionError("the producer was started without pipes")
        stdin.write(command + "\n")
        stdin.flush()
        return stdout.readline().strip()

    def publish(self, length: int, seed: int = 0) -> TensorRef:
        """A reference to `random_tensor(length, seed)`."""
        return msgspec.json.decode(self.ask(f"publish {length} {seed}"), type=TensorRef)

    def kill(self) -> None:
        """Ends it without a chance to clean up."""
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()


async def _answer(plane: TensorPlane, command: str, *arguments: str) -> str:
    if command == "publish":
        tensor = random_tensor(*map(int, arguments))
        ref = await plane.publish(tensor, owner="peer", deadline=Deadline.after(60))
        return msgspec.json.encode(ref).decode()
    if command == "release":
        return str(plane.release_owner("peer"))
    plane.close()
    return "closed"


async def _serve(directory: Path) -> None:
    plane = TensorPlane(
        incarnation=new_incarnation(),
        host=this_host(),
        slab_bytes=32 * MIB,
        directory=directory,
    )
    while line := await asyncio.to_thread(sys.stdin.readline):
        sys.stdout.write(await _answer(plane, *line.split()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
