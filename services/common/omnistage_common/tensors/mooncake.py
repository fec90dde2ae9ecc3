"""The Mooncake transfer engine: bytes of another process into memory of this one.

Both ends may be memory of the host or of a device (GPUDirect): to the engine it is an address.

The only file that knows Mooncake, and it imports it when the first peer is agreed on: a process that
never needs it stays as small as it was. What Mooncake does not say of itself was measured and is in
`docs/explanation/tensor-plane.md`: it answers with bare integers, its blocking calls spin, a peer that
freezes would hold it for half a minute, it listens on every interface without asking who comes, and a
read that failed may have written some of its target.

So one thread per engine starts reads and looks after all that are under way, sleeping between two
looks. A short read goes in parts that travel together, a long one in parts that follow one another, and
a part that is there is summed up while the next one comes. A read that nobody wants any more is over
when its parts are, and its memory is nobody else's before that.
"""

import asyncio
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, Protocol

import structlog
from msgspec import Struct
from xxhash import xxh3_64

from omnistage_common.errors import MissingDependency, SetupError, truncated
from omnistage_common.tensors.regions import Octets
from omnistage_common.tensors.transport import TransportKind

__all__ = ["MooncakeEngine", "Pull", "missing_for", "rdma_devices"]

_log = structlog.get_logger()

_PART_BYTES: Final = 32 * 1024 * 1024
"""One read of the engine at most. Those of one tensor would slow each other down if they travelled
together, but the sum of one can be worked out while the next one travels."""
_SMALL_BYTES: Final = 2 * 1024 * 1024
"""Up to this it is the other way round: several connections are faster than one."""
_SMALL_PART_BYTES: Final = 256 * 1024
_SMALL_PARTS: Final = 4
"""As many as the engine has connections to a peer."""
_SHORT_PAUSE: Final = 50e-6
_LONG_PAUSE: Final = 500e-6
_PAUSE_SHARE: Final = 1 / 16
"""Seconds between two looks at reads that do not move, and between these bounds the share of the time
for which they have not: a look must cost neither the wait nor the processor."""
_CLOSE_GRACE: Final = 5.0
"""Seconds for reads under way when the engine is closed; then its end ends them."""

_SETTINGS: Final = {
    "MC_LOG_LEVEL": "ERROR",
    # A frozen peer must cost three seconds at most, all told.
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "2",
    "MC_TCP_STATUS_TIMEOUT_SEC": "2",
    "MC_HANDSHAKE_CONNECT_TIMEOUT": "2",
    # A connection for each read would cost more than the read of a small tensor.
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
    "MC_TCP_SLICE_SIZE": str(256 * 1024),
}
"""Environment of the engine, where nobody has set it otherwise."""

_FORCE_TCP: Final = "MC_FORCE_TCP"
_DEVICES: Final = Path("/sys/class/infiniband")


def rdma_devices() -> tuple[str, ...]:
    """Names of the RDMA devices that this process can see."""
    try:
        return tuple(sorted(entry.name for entry in _DEVICES.iterdir()))
    except OSError:
        return ()


def missing_for(kind: TransportKind) -> str:
    """What this process lacks for a transport of the engine, in words; empty when nothing."""
    if importlib.util.find_spec("mooncake") is None:
        return "Mooncake is not installed (extra `mooncake`)"
    if kind is TransportKind.RDMA and not rdma_devices():
        return "there is no RDMA device"
    return ""


class _Reads(Protocol):
    """What a read needs of Mooncake's class."""

    def batch_transfer_async_read(
        self, target: str, to: list[int], at: list[int], lengths: list[int]
    ) -> int: ...
    def transfer_check_status(self, batch: int, /) -> int: ...


class _Engine(_Reads, Protocol):
    """What else is used of it."""

    def initialize(self, host: str, metadata: str, protocol: str, devices: str, /) -> int: ...
    def get_rpc_port(self) -> int: ...
    def register_memory(self, address: int, size: int) -> int: ...
    def unregister_memory(self, address: int, /) -> int: ...


class _Part(Struct, kw_only=True):
    """One read of the engine."""

    start: int
    end: int
    batch: int = 0
    """Its number in the engine; 0 when it has not begun."""
    done: bool = False


class Pull:
    """One read of a tensor with its stamp; made by `MooncakeEngine.pull`.

    Args:
        peer: Name of the other engine.
        remote: Address of the first byte there.
        local: Address of the first byte here.
        target: The memory at that address; kept for as long as anything writes to it.
        skip: Bytes at the front that the digest leaves out; None: nothing is summed up.
    """

    def __init__(
        self, *, peer: str, remote: int, local: int, target: Octets, skip: int | None
    ) -> None:
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when nothing writes any more, however it ended."""
        self.failure = ""
        """What went wrong, in words; empty when nothing did."""
        self.moved = 0
        """Bytes that are there. Grows; read by anybody."""
        self.begun = False
        """Whether anything is under way, or was."""
        self._peer = peer
        self._remote = remote
        self._local = local
        self._target = target
        self._skip = skip
        self._summed = xxh3_64()
        self._unsummed = list(_parts(len(target)))
        self._waiting = list(self._unsummed)
        self._at_once = len(self._waiting) if len(target) <= _SMALL_BYTES else 1
        self._travelling: list[_Part] = []

    @property
    def digest(self) -> int:
        """XXH3-64 of what came, without the bytes skipped, once it is settled."""
        return self._summed.intdigest()

    def cancel(self) -> None:
        """Begins no more parts; to be called by anybody, at any time."""
        self.failure = self.failure or "it is not wanted any more"

    def step(self, engine: _Reads) -> bool:
        """Begins and ends what can be; whether that was anything. In the engine's thread."""
        began = self._begin(engine)
        ended = [part for part in self._travelling if self._ended(engine, part)]
        for part in ended:
            self._travelling.remove(part)
            self.moved += part.end - part.start
        began = self._begin(engine) or began
        while self._unsummed and self._unsummed[0].done:
            part = self._unsummed.pop(0)
            if self._skip is not None:
                self._summed.update(self._target[max(part.start, self._skip) : part.end])
        return began or bool(ended)

    def over(self) -> bool:
        """Whether nothing is under way and nothing will be."""
        return not self._travelling and (bool(self.failure) or not self._waiting)

    def settle(self) -> None:
        """Tells whoever waits. On the event loop."""
        if not self.settled.done():
            self.settled.set_result(None)

    def _begin(self, engine: _Reads) -> bool:
        began = False
        while self._waiting and len(self._travelling) < self._at_once and not self.failure:
            part = self._waiting.pop(0)
            part.batch = engine.batch_transfer_async_read(
                self._peer,
                [self._local + part.start],
                [self._remote + part.start],
                [part.end - part.start],
            )
            if part.batch == 0:
                self.failure = f"Mooncake cannot reach {self._peer}"
            else:
                self._travelling.append(part)
                began = self.begun = True
        return began

    def _ended(self, engine: _Reads, part: _Part) -> bool:
        code = engine.transfer_check_status(part.batch)
        if code < 0:
            self.failure = self.failure or (
                f"Mooncake's read from {self._peer} failed with code {code}: the producer is gone"
                " or frozen, or has not registered this memory"
            )
        part.done = code > 0
        return code != 0


def _parts(length: int) -> list[_Part]:
    """Parts of equal size that make up a length."""
    if length <= _SMALL_BYTES:
        count = min(-(-length // _SMALL_PART_BYTES), _SMALL_PARTS)
    else:
        count = -(-length // _PART_BYTES)
    size = -(-length // count)
    return [_Part(start=start, end=min(start + size, length)) for start in range(0, length, size)]


class MooncakeEngine:
    """One engine, with its thread.

    Args:
        kind: RDMA or TCP.
        host: Where other engines find this one.
    """

    def __init__(self, kind: TransportKind, host: str) -> None:
        self.kind = kind
        self.name = ""
        """`HOST:PORT` by which other engines reach it, once it has started."""
        self._host = host
        self._engine: _Engine | None = None
        self._loop = asyncio.get_running_loop()
        self._orders: SimpleQueue[Pull | None] = SimpleQueue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"mooncake-{kind.value}")

    async def start(self) -> None:
        """Starts the engine in its thread.

        Raises:
            SetupError: It cannot be had here; the message says why.
        """
        self._engine = await self._loop.run_in_executor(
            self._thread, _initialized, self.kind, self._host
        )
        self.name = f"{self._host}:{self._engine.get_rpc_port()}"
        self._thread.submit(self._serve, self._engine).add_done_callback(_say_failure)

    def register(self, address: int, size: int) -> Callable[[], None]:
        """Lets the engine, and with it every peer, at memory; what it returns ends that.

        Raises:
            SetupError: The engine refused.
        """
        code = -1 if self._engine is None else self._engine.register_memory(address, size)
        if code != 0:
            raise SetupError(f"Mooncake did not register {size} bytes of memory (code {code})")
        return partial(self._unregister, address)

    def _unregister(self, address: int) -> None:
        if self._engine is not None:
            self._engine.unregister_memory(address)

    def pull(self, *, peer: str, remote: int, local: int, target: Octets, skip: int | None) -> Pull:
        """Begins to read memory of a peer; see `Pull`."""
        pull = Pull(peer=peer, remote=remote, local=local, target=target, skip=skip)
        self._orders.put(pull)
        return pull

    def close(self) -> None:
        """Ends the engine, once what is under way has ended; returns at once. Idempotent."""
        self._orders.put(None)
        self._thread.shutdown(wait=False)

    def _serve(self, engine: _Engine) -> None:
        active: list[Pull] = []
        moved_at = time.monotonic()
        last_call = 0.0
        while active or not last_call:
            if self._take_orders(active):
                last_call = time.monotonic() + _CLOSE_GRACE
                for pull in active:
                    pull.cancel()
            if sum(pull.step(engine) for pull in active):
                moved_at = time.monotonic()
            elif active:
                share = (time.monotonic() - moved_at) * _PAUSE_SHARE
                time.sleep(min(max(share, _SHORT_PAUSE), _LONG_PAUSE))
            late = bool(last_call) and time.monotonic() > last_call
            for pull in [pull for pull in active if pull.over() or late]:
                active.remove(pull)
                self._tell(pull)
        # The engine ends here, in its thread: that takes up to a second.
        self._engine = None

    def _take_orders(self, active: list[Pull]) -> bool:
        """Adds what was ordered, waiting for it when there is nothing else to do; whether to end."""
        wait = not active
        while True:
            try:
                order = self._orders.get(block=wait)
            except Empty:
                return False
            if order is None:
                return True
            active.append(order)
            wait = False

    def _tell(self, pull: Pull) -> None:
        # A loop that has ended has nobody who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(pull.settle)


def _say_failure(serving: "ThreadFuture[None]") -> None:
    failure = serving.exception()
    if failure is not None:
        _log.error("transfer engine failed", error=repr(failure))


def _initialized(kind: TransportKind, host: str) -> _Engine:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from mooncake.engine import TransferEngine  # noqa: PLC0415 - it costs 35 MiB
    except ImportError as missing:
        raise MissingDependency(
            truncated(f"Mooncake cannot be loaded: {missing}; install the extra `mooncake`")
        ) from missing
    engine: _Engine = TransferEngine()
    with _only_tcp(kind):
        code = engine.initialize(host, "P2PHANDSHAKE", kind.value, "")
    if code != 0:
        raise SetupError(f"Mooncake does not start on {host} with {kind.value} (code {code})")
    return engine


@contextmanager
def _only_tcp(kind: TransportKind) -> Iterator[None]:
    """Keeps an engine from RDMA devices, which it takes where they are whatever it is asked for."""
    before = os.environ.get(_FORCE_TCP)
    if kind is TransportKind.TCP:
        os.environ[_FORCE_TCP] = "1"
    try:
        yield
    finally:
        # Other users of Mooncake in this process, such as an engine's own, decide for themselves.
        if before is None:
            os.environ.pop(_FORCE_TCP, None)
