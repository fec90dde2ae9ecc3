"""Videos of answers: MP4 that every player reads."""

import io
from typing import Any

import av
import numpy as np
import pytest

from omnistage_common.errors import EngineFailed, MissingOutput
from omnistage_common.payloads import ElementType, Tensor, TensorHeader
from omnistage_gateway.media.video import encode_video

Frames = np.ndarray[Any, Any]


def as_tensor(frames: Frames, rate_hz: int = 8) -> Tensor:
    header = TensorHeader(element_type=ElementType.UINT8, shape=frames.shape, rate_hz=rate_hz)
    return Tensor(header=header, data=frames.tobytes())


def clip(frames: int = 9, height: int = 32, width: int = 48) -> Frames:
    """Grey that becomes lighter from frame to frame."""
    grey = np.linspace(16, 235, frames).astype(np.uint8)
    return np.broadcast_to(grey[:, None, None, None], (frames, height, width, 3)).copy()


def played(file: bytes) -> tuple[Frames, Any]:
    """The frames of a file, and its video stream."""
    with av.open(io.BytesIO(file)) as container:
        (stream,) = container.streams
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return np.stack(frames), stream


def test_a_video_is_h264_in_mp4_at_its_rate() -> None:
    file = encode_video([as_tensor(clip(), rate_hz=16)])
    frames, stream = played(file)
    assert file[4:8] == b"ftyp"
    assert stream.codec_context.name == "h264"
    assert stream.codec_context.pix_fmt == "yuv420p"
    assert (stream.width, stream.height, stream.average_rate) == (48, 32, 16)
    assert np.abs(frames.astype(int) - clip()).mean() < 4


def test_pieces_join_to_one_video() -> None:
    pieces = [as_tensor(piece) for piece in np.array_split(clip(10), 3)]
    frames, stream = played(encode_video(pieces))
    assert len(frames) == 10
    assert float(stream.duration * stream.time_base) == pytest.approx(10 / 8, rel=0.01)
    assert np.all(np.diff(frames.mean(axis=(1, 2, 3))) > 0)


@pytest.mark.parametrize(
    ("height", "width", "shown"), [(33, 17, (32, 16)), (2, 2, (2, 2)), (3, 64, (2, 64))]
)
def test_an_odd_side_loses_its_last_row_or_column(
    height: int, width: int, shown: tuple[int, int]
) -> None:
    frames, _ = played(encode_video([as_tensor(clip(3, height, width))]))
    assert frames.shape == (3, *shown, 3)


def test_one_frame_is_a_video_too() -> None:
    frames, _ = played(encode_video([as_tensor(clip(1))]))
    assert len(frames) == 1


def test_a_piece_without_frames_changes_nothing() -> None:
    frames, _ = played(encode_video([as_tensor(clip(0)), as_tensor(clip(2))]))
    assert len(frames) == 2


@pytest.mark.parametrize("pieces", [[], [as_tensor(clip(0))]])
def test_no_frame_is_an_error_and_never_an_empty_file(pieces: list[Tensor]) -> None:
    with pytest.raises(MissingOutput):
        encode_video(pieces)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([as_tensor(clip(), rate_hz=0)], "rate_hz 0"),
        ([as_tensor(clip(2, 1, 8))], r"\[2, 1, 8, 3\]"),
        ([as_tensor(clip()[0])], r"\[32, 48, 3\]"),
        ([as_tensor(clip()[..., :2])], r"48, 2\]"),
        ([as_tensor(clip()), as_tensor(clip(), rate_hz=9)], "at 8 Hz to"),
        ([as_tensor(clip()), as_tensor(clip(width=50))], "keep its size and rate"),
        ([Tensor(header=as_tensor(clip()).header, data=b"abc")], "in 3 bytes"),
    ],
)
def test_what_is_no_video_is_the_stages_fault(pieces: list[Tensor], words: str) -> None:
    with pytest.raises(EngineFailed, match=words):
        encode_video(pieces)
