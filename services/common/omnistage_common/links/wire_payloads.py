"""Payloads and parameters to protobuf and back, the larger half of what frames carry.

Decoding is strict about what would otherwise travel on as nonsense (an unset kind, a tensor whose
bytes do not fit its header) and raises `ProtocolViolation`. Messages are filled in place: a message
given to another's constructor is copied, and a tensor within frames within a batch would be copied
at each level.
"""

from typing import Final, TypeVar

from omnistage_common.errors import ProtocolViolation
from omnistage_common.ids import HostId, Incarnation, LeaseId, TensorToken
from omnistage_common.payloads import (
    AudioPart,
    Conversation,
    DeviceLocation,
    DeviceTensor,
    DiffusionParameters,
    ElementType,
    ImagePart,
    Message,
    Parameters,
    Payload,
    PayloadKind,
    SharedMemoryLocation,
    Tensor,
    TensorHeader,
    TensorRef,
    TextPart,
)
from omnistage_protos.stage.v1 import stage_pb2 as pb
from omnistage_protos.tensor.v1 import tensor_pb2 as tensor_pb

__all__ = [
    "fill_parameters",
    "fill_payload",
    "known",
    "parameters_from_pb",
    "payload_from_pb",
]

V = TypeVar("V")

_KINDS: Final = {kind: pb.PayloadKind.Value(f"PAYLOAD_KIND_{kind.name}") for kind in PayloadKind}
_KINDS_BACK: Final[dict[int, PayloadKind]] = {number: kind for kind, number in _KINDS.items()}
_ELEMENTS: Final = {
    element: tensor_pb.ElementType.Value(f"ELEMENT_TYPE_{element.name}") for element in ElementType
}
_ELEMENTS_BACK: Final[dict[int, ElementType]] = {
    number: element for element, number in _ELEMENTS.items()
}
_OPTIONAL_PARAMETERS: Final = (
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "voice",
    "speed",
)
_OPTIONAL_DIFFUSION: Final = (
    "width",
    "height",
    "steps",
    "guidance_scale",
    "true_cfg_scale",
    "negative_prompt",
    "frames",
    "seconds",
)


def known(table: dict[int, V], number: int, what: str) -> V:
    """What a number on the wire stands for.

    Raises:
        ProtocolViolation: Nothing.
    """
    try:
        return table[number]
    except KeyError as unknown:
        raise ProtocolViolation(f"unknown {what} {number}") from unknown


def fill_parameters(into: pb.Parameters, parameters: Parameters) -> None:
    """Fills a message."""
    for name in _OPTIONAL_PARAMETERS:
        value = getattr(parameters, name)
        if value is not None:
            setattr(into, name, value)
    if parameters.stop:
        into.stop.extend(parameters.stop)
    if parameters.ignore_eos:
        into.ignore_eos = True
    if parameters.diffusion is not None:
        _fill_diffusion(into.diffusion, parameters.diffusion)


def _fill_diffusion(into: pb.DiffusionParameters, parameters: DiffusionParameters) -> None:
    into.count = parameters.count
    for name in _OPTIONAL_DIFFUSION:
        value = getattr(parameters, name)
        if value is not None:
            setattr(into, name, value)


def fill_payload(into: pb.Payload, payload: Payload) -> None:
    """Fills a message.

    Raises:
        ProtocolViolation: It holds a tensor that lies on a device of this process.
    """
    into.kind = _KINDS[payload.kind]
    content = payload.content
    if isinstance(content, str):
        into.text = content
    elif isinstance(content, Tensor):
        _fill_header(into.inline.header, content.header)
        data = content.data
        into.inline.data = data if isinstance(data, bytes) else data.tobytes()
    elif isinstance(content, TensorRef):
        _fill_ref(into.ref, content)
    elif isinstance(content, DeviceTensor):
        raise ProtocolViolation("a tensor on a device does not travel: it must be published first")
    else:
        into.conversation.SetInParent()
        for message in content.messages:
            _fill_message(into.conversation.messages.add(), message)


def _fill_message(into: pb.Message, message: Message) -> None:
    into.role = message.role
    for part in message.parts:
        if isinstance(part, TextPart):
            into.parts.add().text = part.text
        elif isinstance(part, AudioPart):
            into.parts.add().audio = part.index
        else:
            into.parts.add().image = part.index


def _fill_header(into: tensor_pb.TensorHeader, header: TensorHeader) -> None:
    into.element_type = _ELEMENTS[header.element_type]
    into.shape.extend(header.shape)
    if header.rate_hz:
        into.rate_hz = header.rate_hz


def _fill_ref(into: tensor_pb.TensorRef, ref: TensorRef) -> None:
    _fill_header(into.header, ref.header)
    into.lease = ref.lease
    into.incarnation = ref.incarnation
    into.length = ref.length
    into.checksum = ref.checksum
    if isinstance(ref.location, DeviceLocation):
        into.device.device = ref.location.device
        into.device.offset = ref.location.offset
    else:
        into.shared_memory.host = ref.location.host
        into.shared_memory.segment = ref.location.segment
        into.shared_memory.offset = ref.location.offset
    into.token = ref.token
    into.address = ref.address
    if ref.digest is not None:
        into.digest = ref.digest


def parameters_from_pb(message: pb.Parameters) -> Parameters:
    """What a message holds."""
    given = {descriptor.name: value for descriptor, value in message.ListFields()}
    if "stop" in given:
        given["stop"] = tuple(message.stop)
    if "diffusion" in given:
        diffusion = {field.name: value for field, value in message.diffusion.ListFields()}
        given["diffusion"] = DiffusionParameters(**diffusion)
    return Parameters(**given)


def payload_from_pb(payload: pb.Payload) -> Payload:
    """What a message holds.

    Raises:
        ProtocolViolation: It is malformed.
    """
    kind = known(_KINDS_BACK, payload.kind, "payload kind")
    content = payload.WhichOneof("content")
    if content == "text":
        return Payload(kind=kind, content=payload.text)
    if content == "inline":
        return Payload(kind=kind, content=_tensor_from_pb(payload.inline))
    if content == "ref":
        return Payload(kind=kind, content=_ref_from_pb(payload.ref))
    if content == "conversation":
        return Payload(kind=kind, content=_conversation_from_pb(payload.conversation))
    raise ProtocolViolation(f"a payload of kind {kind.value} without content")


def _conversation_from_pb(conversation: pb.Conversation) -> Conversation:
    return Conversation(
        messages=tuple(
            Message(
                role=message.role,
                parts=tuple(_part_from_pb(part) for part in message.parts),
            )
            for message in conversation.messages
        )
    )


def _part_from_pb(part: pb.Part) -> TextPart | AudioPart | ImagePart:
    content = part.WhichOneof("content")
    if content == "text":
        return TextPart(text=part.text)
    if content == "audio":
        return AudioPart(index=part.audio)
    if content == "image":
        return ImagePart(index=part.image)
    raise ProtocolViolation("a message part without content")


def _header_from_pb(header: tensor_pb.TensorHeader) -> TensorHeader:
    return TensorHeader(
        element_type=known(_ELEMENTS_BACK, header.element_type, "element type"),
        shape=tuple(header.shape),
        rate_hz=header.rate_hz,
    )


def _tensor_from_pb(inline: pb.InlineTensor) -> Tensor:
    header = _header_from_pb(inline.header)
    if len(inline.data) != header.length:
        raise ProtocolViolation(
            f"a tensor of {len(inline.data)} bytes whose header says {header.length}"
        )
    return Tensor(header=header, data=inline.data)


def _ref_from_pb(ref: tensor_pb.TensorRef) -> TensorRef:
    return TensorRef(
        header=_header_from_pb(ref.header),
        lease=LeaseId(ref.lease),
        incarnation=Incarnation(ref.incarnation),
        length=ref.length,
        checksum=ref.checksum,
        location=_location_from_pb(ref),
        token=TensorToken(ref.token),
        address=ref.address,
        digest=ref.digest if ref.HasField("digest") else None,
    )


def _location_from_pb(ref: tensor_pb.TensorRef) -> SharedMemoryLocation | DeviceLocation:
    match ref.WhichOneof("location"):
        case "shared_memory":
            slab = ref.shared_memory
            return SharedMemoryLocation(
                host=HostId(slab.host), segment=slab.segment, offset=slab.offset
            )
        case "device":
            return DeviceLocation(device=ref.device.device, offset=ref.device.offset)
        case _:
            raise ProtocolViolation("a tensor reference without a location")
