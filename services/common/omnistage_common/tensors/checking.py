"""Whether what a consumer got is what the reference stands for; each check says what differs."""

from omnistage_common.errors import TensorLost
from omnistage_common.payloads import TensorRef
from omnistage_common.tensors.checksums import sample_checksum
from omnistage_common.tensors.regions import Octets
from omnistage_common.tensors.segments import Stamp

__all__ = ["check_digest", "check_length", "check_sample", "check_stamp", "lost", "reason"]


def lost(ref: TensorRef, why: str) -> TensorLost:
    """The error that says of a tensor that it is lost, and why."""
    return TensorLost(f"{_named(ref)}{why}")


def reason(ref: TensorRef, error: TensorLost) -> str:
    """Why a tensor is lost, from an error that says it."""
    return error.message.removeprefix(_named(ref))


def _named(ref: TensorRef) -> str:
    return f"tensor of lease {ref.lease} of {ref.incarnation} is lost: "


def check_length(ref: TensorRef) -> None:
    """Whether a reference agrees with itself.

    Raises:
        TensorLost: It does not.
    """
    if ref.length != ref.header.length:
        raise lost(
            ref, f"its header stands for {ref.header.length} bytes, the reference {ref.length}"
        )


def check_stamp(ref: TensorRef, stamp: Stamp) -> None:
    """Whether a block still holds the tensor: it is neither stale nor another one.

    Raises:
        TensorLost: It does not.
    """
    if stamp.lease != ref.lease:
        now = f"lease {stamp.lease}" if stamp.lease else "no lease"
        raise lost(ref, f"its lease ended: its place holds {now} now")
    if stamp.token != ref.token:
        raise lost(ref, "the token is not that of its lease")
    if (stamp.length, stamp.checksum) != (ref.length, ref.checksum):
        raise lost(
            ref,
            f"the producer published {stamp.length} bytes with checksum {stamp.checksum:016x}, the"
            f" reference says {ref.length} with {ref.checksum:016x}",
        )


def check_sample(ref: TensorRef, data: Octets) -> None:
    """Whether header and sampled bytes are those that were published.

    Raises:
        TensorLost: They are not.
    """
    found = sample_checksum(ref.header, data)
    if found != ref.checksum:
        raise lost(
            ref,
            f"its bytes changed: their checksum is {found:016x}, the reference says"
            f" {ref.checksum:016x}",
        )


def check_digest(ref: TensorRef, found: int, expected: int) -> None:
    """Whether every byte is as it was sent.

    Raises:
        TensorLost: It is not.
    """
    if found != expected:
        raise lost(
            ref,
            f"its bytes changed on the way: their digest is {found:016x}, the producer's is"
            f" {expected:016x}",
        )
