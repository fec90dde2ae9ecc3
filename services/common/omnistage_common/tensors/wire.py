"""Transports to protobuf and back; the doors and calls of the tensor plane share it."""

from typing import Final

from omnistage_common.errors import ProtocolViolation
from omnistage_common.ids import Incarnation
from omnistage_common.tensors.transport import Agreement, TransferSession, TransportKind
from omnistage_protos.tensor.v1 import tensor_pb2 as pb

__all__ = ["agreement_from_pb", "agreement_to_pb", "kind_to_pb", "kinds_from_pb"]

_KINDS: Final = {kind: pb.Transport.Value(f"TRANSPORT_{kind.name}") for kind in TransportKind}
_KINDS_BACK: Final[dict[int, TransportKind]] = {number: kind for kind, number in _KINDS.items()}


def kind_to_pb(kind: TransportKind) -> pb.Transport.ValueType:
    """The number of a transport on the wire."""
    return _KINDS[kind]


def kinds_from_pb(numbers: "list[int]") -> tuple[TransportKind, ...]:
    """The transports of those numbers; one that this version does not know is passed over."""
    return tuple(_KINDS_BACK[number] for number in numbers if number in _KINDS_BACK)


def agreement_to_pb(agreement: Agreement) -> pb.NegotiateResponse:
    """The message for an agreement."""
    message = pb.NegotiateResponse(
        transport=kind_to_pb(agreement.kind),
        incarnation=agreement.incarnation,
        missing=agreement.missing,
    )
    session = agreement.session
    if session is not None:
        message.session.name = session.name
        message.session.base = session.base
        message.session.segment = session.segment
    return message


def agreement_from_pb(message: pb.NegotiateResponse) -> Agreement:
    """What a message says.

    Raises:
        ProtocolViolation: It names no transport of this version.
    """
    kind = _KINDS_BACK.get(message.transport)
    if kind is None:
        raise ProtocolViolation(f"the peer chose transport {message.transport}, which is unknown")
    session = None
    if message.HasField("session"):
        session = TransferSession(
            name=message.session.name,
            base=message.session.base,
            segment=message.session.segment,
        )
    return Agreement(
        kind=kind,
        incarnation=Incarnation(message.incarnation),
        session=session,
        missing=message.missing,
    )
