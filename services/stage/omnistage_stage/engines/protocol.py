"""What an engine is: the one Protocol between a stage service and the code that computes.

An engine is a class registered as an entry point in the group `omnistage.engines`; its package may
be anybody's. The service makes one instance per process, loads it once, proves it with `probe`, and
then calls `run` once per request. `run` is an ordinary coroutine: it emits outputs as it makes
them, returns when it is done, raises when it fails, and is cancelled when nobody wants the result
any more (client gone, deadline passed, replica stopping). Whatever it holds for the request it must
let go of when it is cancelled.

An engine that batches runs its own step loop and lets every `run` wait for its part; one that
computes in threads hands outputs over on the event loop. `Outputs.emit` never blocks and costs
about a microsecond.
"""

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from msgspec import Struct

from omnistage_common.deadlines import Deadline
from omnistage_common.ids import OutputName, RequestId, StageName
from omnistage_common.links.frames import FinishReason
from omnistage_common.payloads import (
    DeviceMemory,
    DeviceTensor,
    Parameters,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
)
from omnistage_common.pipeline.plan import ParallelPlan
from omnistage_common.tensors import PageLock

__all__ = [
    "ENTRY_POINT_GROUP",
    "DeviceOwner",
    "Engine",
    "EngineFactory",
    "EngineRequest",
    "EngineResult",
    "EngineSpec",
    "FinishReason",
    "Gang",
    "GangMember",
    "InputSpec",
    "Outputs",
    "Place",
]

ENTRY_POINT_GROUP = "omnistage.engines"


class InputSpec(Struct, frozen=True, kw_only=True):
    """One thing that arrives at a stage."""

    kind: PayloadKind
    streams: bool = False
    """Whether it comes chunk by chunk while its producer runs."""
    context_frames: int = 0
    """Frames before a chunk that a decoder without state looks at again."""


class Gang(Struct, frozen=True, kw_only=True):
    """The processes of a replica that spans nodes, one on each, and which of them this one is."""

    leader: str
    """Host name or address of the one that serves. Its name is known from the start, its process may
    come up later than this one."""
    rank: int
    """From 0, the leader's."""


class EngineSpec(Struct, frozen=True, kw_only=True):
    """What an engine is told when it is made."""

    stage: StageName
    model: str
    """Model source URI; empty when the pipeline names none."""
    args: Mapping[str, Any]
    """`engineArgs` of the stage. An engine refuses keys it does not know."""
    max_running: int
    """How many `run` calls there will be at once."""
    produces: Mapping[OutputName, PayloadKind]
    """Outputs that the template expects from this stage, and what each is."""
    consumes: Mapping[OutputName, InputSpec] = {}
    """What may arrive at it, from the request or from other stages."""
    parallelism: ParallelPlan = ParallelPlan()
    """Anything but one device only where the engine's class says `takes_parallelism = True`."""
    gang: Gang | None = None
    """None where the replica is this one process; else the engine is a `GangMember`."""


class EngineRequest(Struct, frozen=True, kw_only=True):
    """One request, with every tensor at hand."""

    id: RequestId
    inputs: Mapping[OutputName, tuple[Payload, ...]]
    """Port name -> what arrived there before the start, in order. No payload holds a `TensorRef`:
    the service has fetched them. Tensors may be read-only views that are valid until `run`
    returns. An engine that `takes_device_tensors` may find a `DeviceTensor` in it in place of a
    `Tensor`, here and in `streams`."""
    parameters: Parameters
    deadline: Deadline
    streams: Mapping[OutputName, AsyncIterator[Payload]] = {}
    """Port name -> what arrives there while the engine runs, chunk by chunk. The tensor of a chunk
    is valid until the next one is asked for: copy what must live longer. Iteration ends with the
    producer's last chunk and raises `OmnistageError` when that is lost. To be iterated once, by one
    task."""

    async def pieces(self, name: OutputName) -> AsyncIterator[Payload]:
        """What arrives at a port in order, whether all at once or chunk by chunk.

        Raises:
            OmnistageError: The rest is lost.
        """
        for payload in self.inputs.get(name, ()):
            yield payload
        stream = self.streams.get(name)
        if stream is not None:
            async for payload in stream:
                yield payload

    def tensors(self, name: OutputName) -> tuple[Tensor, ...]:
        """The tensors that arrived at a port, in order; empty when none did."""
        return tuple(
            payload.content
            for payload in self.inputs.get(name, ())
            if isinstance(payload.content, Tensor)
        )


class EngineResult(Struct, frozen=True, kw_only=True):
    """How a request ended well."""

    finish_reason: FinishReason = FinishReason.NONE
    input_tokens: int = 0
    output_tokens: int = 0


class Place(Protocol):
    """Room for an output that is made in place; used with `with`.

    What was not sealed by its end is given back. Whoever has a device or a thread write into it waits
    for that before leaving.
    """

    data: memoryview | DeviceTensor
    """Where its bytes go: writable memory of the host, of one dimension, or a place on the device."""

    async def seal(self, header: TensorHeader | None = None) -> None:
        """Hands the output over as it is now, once its consumers keep up.

        It is not to be touched any more.

        Args:
            header: Of what was made, where that is less than was reserved; it stands at the front.

        Raises:
            ValueError: It is more.
            DeadlineExceeded: The request's deadline passed.
            RequestCancelled: Nobody wants it any more.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class Outputs(Protocol):
    """Where `run` puts what it makes. To be called on the event loop only."""

    def emit(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Hands over a small output, or the next piece of one, without waiting.

        Pieces of text are deltas. For step loops that serve many requests at once.

        Args:
            name: Which output.
            payload: The output or its next piece.
            index: Which item it is a piece of, where a request makes several under one name.

        Raises:
            ValueError: A tensor over `INLINE_LIMIT`; such a one needs `put`.
        """

    async def put(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Hands over an output of any size, or the next piece of one.

        Waits for room in the tensor slab and until the consumer keeps up. The payload's buffer is
        the engine's again when this returns. `name` and `index` are as in `emit`.

        Raises:
            DeadlineExceeded: There was no room before the request's deadline.
        """

    async def reserve(
        self,
        name: OutputName,
        kind: PayloadKind,
        header: TensorHeader,
        *,
        index: int = 0,
        on_device: bool = False,
    ) -> Place:
        """Room for an output of any size, to be made where its consumers read it.

        That is `put` without the copy. Waits for room in the tensor slab, or on the device; `name` and
        `index` are as in `emit`.

            with await outputs.reserve(name, kind, header) as place:
                make(place.data)
                await place.seal()

        Args:
            name: Which output.
            kind: What it is.
            header: Of its tensor, or of the largest that it may be.
            index: Which item it is a piece of.
            on_device: Whether a place on the device will do, for an engine that gave device memory.
                A small tensor is made on the host all the same.

        Raises:
            DeadlineExceeded: There was no room before the request's deadline.
        """

    def progress(self, done: int, total: int) -> None:
        """Says how far the request is, in steps; costs next to nothing."""


class Engine(Protocol):
    """A class that computes one stage."""

    async def load(self) -> None:
        """Loads weights and warms up. Called once, before anything else.

        Raises:
            SetupError: With what is missing and how to get it.
        """

    async def probe(self) -> None:
        """Computes something small for real; readiness follows from its return."""

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Computes one request.

        Raises:
            InvalidRequest: The client can mend it; names the field.
            EngineFailed: Anything else that went wrong.
        """

    async def close(self) -> None:
        """Lets go of everything. Called once, after the last `run` has returned."""


@runtime_checkable
class GangMember(Protocol):
    """What an engine is, too, whose replica may span nodes.

    The leader's is loaded, probed and run like any other; `load` returns when all members have come.
    A member that is lost fails the leader's next `probe` or `run`, for the gang starts anew as a whole.
    """

    async def follow(self) -> None:
        """Computes for the leader until that ends; called instead of `load`, on all other nodes.

        Raises:
            SetupError: The leader does not come, or does not take it.
        """


@runtime_checkable
class DeviceOwner(Protocol):
    """What an engine is, too, whose tensors may stay on its device. Asked once, after `load`."""

    @property
    def takes_device_tensors(self) -> bool:
        """Whether its inputs may arrive on the device.

        Then it has done with one, on the device too, when it asks for the next piece of a stream or
        returns from `run`.
        """

    def device_memory(self, size: int) -> DeviceMemory:
        """Memory of the device for as many bytes of tensors, for the life of the process.

        Raises:
            SetupError: The device has not as much.
        """

    def page_lock(self) -> PageLock | None:
        """What locks pages of the host, so that the device copies to them fast.

        None where its copies need no such pages.
        """


class EngineFactory(Protocol):
    """What an entry point names: the engine's class."""

    def __call__(self, spec: EngineSpec) -> Engine:
        """Makes the engine, without loading anything.

        Raises:
            SetupError: `engineArgs` name an unknown key or a value out of range.
        """
