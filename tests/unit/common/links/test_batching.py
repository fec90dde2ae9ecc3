"""Frames leave in messages that are neither many nor huge."""

import pytest

from fakes.frames import data, tensor
from omnistage_common.ids import OutputName
from omnistage_common.links import wire
from omnistage_common.links.batching import BYTES_PER_MESSAGE, FRAMES_PER_MESSAGE, messages_of
from omnistage_common.payloads import INLINE_LIMIT, Output, Payload, PayloadKind

PIECE = Output(
    name=OutputName("speech"),
    payload=Payload(kind=PayloadKind.WAVEFORM, content=tensor(INLINE_LIMIT)),
)


@pytest.mark.parametrize(
    ("frames", "sizes"),
    [
        (0, []),
        (1, [1]),
        (FRAMES_PER_MESSAGE, [FRAMES_PER_MESSAGE]),
        (FRAMES_PER_MESSAGE + 1, [FRAMES_PER_MESSAGE, 1]),
        (3 * FRAMES_PER_MESSAGE, 3 * [FRAMES_PER_MESSAGE]),
    ],
)
def test_messages_are_filled_up_to_the_bound(frames: int, sizes: list[int]) -> None:
    messages = messages_of([data(1) for _ in range(frames)], wire.encode_from_replica)

    assert [len(message.frames) for message in messages] == sizes


def test_large_frames_are_spread_over_more_messages_in_their_order() -> None:
    frames = [data(1, sequence, *[PIECE] * 20) for sequence in range(FRAMES_PER_MESSAGE)]

    messages = list(messages_of(frames, wire.encode_from_replica))

    assert len(messages) > 1
    assert all(message.ByteSize() <= BYTES_PER_MESSAGE for message in messages)
    decoded = [frame for message in messages for frame in wire.decode_from_replica(message)]
    assert decoded == frames


def test_one_frame_is_one_message_however_large() -> None:
    huge = data(1, 0, *[PIECE] * 200)

    (message,) = messages_of([huge], wire.encode_from_replica)

    assert message.ByteSize() > BYTES_PER_MESSAGE
