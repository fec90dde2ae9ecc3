"""What a pipeline's choice of transport means for the tensor plane of each of its processes.

Between the two because neither knows the other: plans are read without tensors, tensors move without
plans.
"""

from typing import Final

from omnistage_common.pipeline.plan import TransportChoice
from omnistage_common.tensors import EVERY_TRANSPORT, TransportKind

__all__ = ["transports_for"]

_TRANSPORTS: Final = {
    TransportChoice.AUTO: EVERY_TRANSPORT,
    TransportChoice.RDMA: (TransportKind.RDMA,),
    TransportChoice.TCP: (TransportKind.TCP, TransportKind.STREAM),
    TransportChoice.SHARED_MEMORY: (TransportKind.SHARED_MEMORY,),
    TransportChoice.STREAM: (TransportKind.STREAM,),
}


def transports_for(choice: TransportChoice) -> tuple[TransportKind, ...]:
    """Ways by which tensors of other processes may be read, the best first.

    RDMA and SharedMemory are that or nothing. TCP falls back to a gRPC stream, which is TCP as well,
    where the transfer engine is not to be had.
    """
    return _TRANSPORTS[choice]
