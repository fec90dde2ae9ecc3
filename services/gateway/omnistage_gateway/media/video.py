"""Video as clients receive it, from the tensors that stages make.

One container and one codec: MP4 with H.264, which every browser plays. PyAV is imported on first use,
or when a gateway starts whose pipelines make video. Encoding takes seconds of processor time, so an
event loop hands it to a worker thread.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Final

from omnistage_common.errors import EngineFailed, MissingDependency, MissingOutput
from omnistage_common.payloads import ElementType, Tensor
from omnistage_gateway.media.images import RGB

__all__ = ["VIDEO_TYPE", "encode_video", "prepare_video"]

VIDEO_TYPE: Final = "video/mp4"
"""What HTTP calls an encoded video."""
_DIMENSIONS: Final = 4


def encode_video(pieces: Sequence[Tensor]) -> bytes:
    """An answer's video as an MP4 file.

    Args:
        pieces: uint8 `[frames, height, width, 3]`, RGB, each, all of one size and rate, in order.
            A side that is odd loses its last row or column, since H.264 halves colour.

    Raises:
        MissingOutput: There is not a single frame.
        EngineFailed: A piece is no such tensor, or the pieces differ in size or rate.
        MissingDependency: PyAV is not installed.
    """
    frames = [piece for piece in pieces if _checked(piece)]
    if not frames:
        raise MissingOutput("the stage ended without a frame of video")
    first = frames[0].header
    for piece in frames:
        if (piece.header.shape[1:], piece.header.rate_hz) != (first.shape[1:], first.rate_hz):
            raise EngineFailed(
                "a video must keep its size and rate; the stage went from"
                f" {list(first.shape[1:])} at {first.rate_hz} Hz to"
                f" {list(piece.header.shape[1:])} at {piece.header.rate_hz} Hz"
            )
    file: bytes = _codec().encode(frames)
    return file


def _checked(piece: Tensor) -> bool:
    """Whether there is a frame in it.

    Raises:
        EngineFailed: It is no video.
    """
    header = piece.header
    if (
        header.element_type is not ElementType.UINT8
        or len(header.shape) != _DIMENSIONS
        or header.shape[-1] != RGB
        or min(header.shape[1:3]) < 2  # noqa: PLR2004 - colour is halved
        or header.length != len(piece.data)
    ):
        raise EngineFailed(
            "a video must be uint8 of shape [frames, height, width, 3]; the stage made"
            f" {header.element_type.value} {list(header.shape)} in {len(piece.data)} bytes"
        )
    if header.rate_hz <= 0:
        raise EngineFailed("a video must have a rate; the stage made frames with rate_hz 0")
    return header.shape[0] > 0


def prepare_video() -> None:
    """Imports what video needs, so that the first one does not wait for it.

    Raises:
        MissingDependency: PyAV is not installed.
    """
    _codec()


def _codec() -> ModuleType:
    try:
        # Imported on first use: its libraries are 100 MB that most gateways never need.
        from omnistage_gateway.media import pyav  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency(
            f"video needs PyAV ({error}); install `omnistage[gateway]`"
        ) from error
    return pyav
