"""The gateway's tensor planes: one that publishes, and one to read by for each choice of transport.

A pipeline chooses by which ways its tensors may move, and a gateway serves pipelines that choose
differently. What the gateway publishes is read by stages, each by ways of its own choice, so one slab
does for all. What stages publish is read here, by the ways that the request's pipeline allows; a plane
of its own for each choice keeps what was agreed with a producer under one choice from another. Such a
plane takes no memory before it reads something over a network.
"""

from collections.abc import Callable

from omnistage_common.pipeline.plan import TransportChoice
from omnistage_common.tensors import EVERY_TRANSPORT, TensorPlane, TransportKind
from omnistage_common.transfers import transports_for

__all__ = ["NewPlane", "TensorPlanes"]

NewPlane = Callable[[tuple[TransportKind, ...]], TensorPlane]
"""Makes a plane that reads by these ways, the best first."""


class TensorPlanes:
    """See the module.

    Args:
        new_plane: Makes them.
    """

    def __init__(self, new_plane: NewPlane) -> None:
        self._new_plane = new_plane
        self.publishing = new_plane(EVERY_TRANSPORT)
        """Where the media of requests are published; also reads, by any way."""
        self._reading = {TransportChoice.AUTO: self.publishing}

    def reading(self, choice: TransportChoice) -> TensorPlane:
        """The plane by which tensors of a pipeline are read."""
        plane = self._reading.get(choice)
        if plane is None:
            plane = self._reading[choice] = self._new_plane(transports_for(choice))
        return plane

    def close(self) -> None:
        """Closes all of them. Idempotent."""
        for plane in self._reading.values():
            plane.close()
