"""Waiting for a transfer of the engine: how long nothing may come before it counts as failed."""

import asyncio
from typing import Final

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import DeadlineExceeded
from omnistage_common.payloads import TensorRef
from omnistage_common.tensors.mooncake import Pull

__all__ = ["TransferFailed", "moved"]

STALL: Final = 2.5
"""Seconds within which a transfer must begin: a handshake with a frozen peer blocks the engine."""
PATIENCE: Final = 30.0
"""Seconds within which something of it must come then. The engine notices by itself that a peer is
frozen, within two seconds; this is for when it does not."""


class TransferFailed(Exception):
    """The transfer engine did not bring a tensor; whether the producer lives is not known."""


async def moved(pull: Pull, ref: TensorRef, deadline: Deadline) -> None:
    """Waits for a transfer.

    Raises:
        TransferFailed: It failed, or nothing of it came for too long.
        DeadlineExceeded: The deadline passed.
    """
    before, limit = -1, STALL
    try:
        while not await _settles(pull, min(limit, deadline.remaining())):
            if deadline.passed:
                raise DeadlineExceeded(
                    f"{pull.moved} of the {ref.length} bytes of a tensor came before the request's"
                    " deadline"
                )
            if not pull.begun or pull.moved == before:
                raise TransferFailed(f"nothing came for {limit} s")
            before, limit = pull.moved, PATIENCE
    finally:
        if not pull.settled.done():
            pull.cancel()
    if pull.failure:
        raise TransferFailed(pull.failure)


async def _settles(pull: Pull, seconds: float) -> bool:
    """Whether a transfer has ended by then."""
    await asyncio.wait({pull.settled}, timeout=max(0.0, seconds))
    return pull.settled.done()
