"""How large the first chunk of a stream is: small when the consumer is idle, larger when it is busy.

A small first chunk brings the first sound early and costs the consumer one more pass; a busy
consumer cannot afford many of those. A pure function, so that the policy can be read off a table.
"""

from omnistage_common.pipeline.plan import ChunkPlan

__all__ = ["first_frames"]


def first_frames(chunk: ChunkPlan, *, load: float, wanted: int | None = None) -> int:
    """Frames in the first chunk.

    Args:
        chunk: The edge's policy; its sizes are spread evenly over loads from 0 to 1.
        load: Outstanding requests of the consumer's least loaded replica, as a fraction of those
            it can run at once; may be over 1.
        wanted: What the client asks for; counts whatever the load, up to the later chunks' size.
    """
    if wanted is not None:
        return max(1, min(wanted, chunk.frames))
    sizes = chunk.first_frames
    return sizes[min(len(sizes) - 1, int(load * len(sizes)))]
