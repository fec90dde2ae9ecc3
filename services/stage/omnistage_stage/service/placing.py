"""Outputs that are made in place: room for one, and its way to the receivers once it is sealed.

A small output goes inline whatever happens, so it gets memory of its own and no lease; the shared segment
of a stage that makes nothing large is never made. Everything else is a reservation of the tensor plane.
"""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from omnistage_common.payloads import DeviceTensor, Tensor, TensorHeader, TensorRef
from omnistage_common.tensors import Reservation

__all__ = ["InlinePlace", "LeasedPlace", "Receive", "Wait"]

Wait = Callable[[], Awaitable[None]]
"""Returns when the receivers keep up."""
Receive = Callable[[Tensor | TensorRef], None]
"""Gives them what was made, as it travels."""


class InlinePlace:
    """See `Place`; for what goes inline."""

    def __init__(self, header: TensorHeader, *, wait: Wait, receive: Receive) -> None:
        self._octets = bytearray(header.length)
        self._header = header
        self._wait = wait
        self._receive = receive
        self.data: memoryview | DeviceTensor = memoryview(self._octets)

    async def seal(self, header: TensorHeader | None = None) -> None:
        """See `Place`."""
        made = header or self._header
        if made.length > self._header.length:
            raise ValueError(
                f"a tensor of {made.length} bytes was made where {self._header.length} were reserved"
            )
        await self._wait()
        self._receive(Tensor(header=made, data=bytes(self._octets[: made.length])))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """There is nothing to give back."""


class LeasedPlace:
    """See `Place`; in the slab or on the device."""

    def __init__(
        self,
        reservation: Reservation[memoryview] | Reservation[DeviceTensor],
        *,
        wait: Wait,
        receive: Receive,
    ) -> None:
        self._reservation = reservation
        self._wait = wait
        self._receive = receive
        self.data: memoryview | DeviceTensor = reservation.data

    async def seal(self, header: TensorHeader | None = None) -> None:
        """See `Place`."""
        await self._wait()
        self._receive(await self._reservation.seal(header))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self._reservation.__exit__(kind, error, trace)
