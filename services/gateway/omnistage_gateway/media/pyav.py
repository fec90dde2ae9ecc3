"""The PyAV half of `omnistage_gateway.media.video`; imported there, on first use."""

import io
from collections.abc import Sequence
from typing import Final

import av
import numpy as np

from omnistage_common.errors import EngineFailed, truncated
from omnistage_common.payloads import Tensor

__all__ = ["encode"]

_OPTIONS: Final = {"preset": "veryfast", "crf": "18"}
"""Of x264: near the source in quality, in a third of the default's time."""
_THREADS: Final = 2
"""Encoding shares the machine with the event loop."""


def encode(pieces: Sequence[Tensor]) -> bytes:
    """See `omnistage_gateway.media.video.encode_video`; the pieces are known to fit together."""
    first = pieces[0].header
    _, height, width, _ = first.shape
    target = io.BytesIO()
    try:
        with av.open(target, "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=first.rate_hz, options=_OPTIONS)
            stream.width, stream.height = width - width % 2, height - height % 2
            stream.pix_fmt = "yuv420p"
            stream.codec_context.thread_count = _THREADS
            for piece in pieces:
                frames = np.frombuffer(piece.data, np.uint8).reshape(piece.header.shape)
                for pixels in frames[:, : stream.height, : stream.width]:
                    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")
                    container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    except (av.FFmpegError, ValueError) as error:
        raise EngineFailed(
            f"a video of {width}x{height} at {first.rate_hz} Hz cannot be encoded: "
            f"{truncated(str(error))}"
        ) from error
    return target.getvalue()
