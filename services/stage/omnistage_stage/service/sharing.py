"""Who still reads a tensor that several receivers got: its lease ends with the last of them.

One instance per request. Receivers that keep their tensors to the end of the request are not counted
here: the end of the request ends every lease anyway.
"""

from collections.abc import Iterable

from omnistage_common.ids import LeaseId
from omnistage_common.tensors import TensorPlane

__all__ = ["LeaseShares"]


class LeaseShares:
    """The leases of one request, and how many receivers each has."""

    def __init__(self, plane: TensorPlane) -> None:
        self._plane = plane
        self._receivers: dict[LeaseId, int] = {}

    def share(self, lease: LeaseId, receivers: int) -> None:
        """Notes that as many receivers get the tensor; nobody wants one that has none."""
        if receivers:
            self._receivers[lease] = receivers
        else:
            self._plane.release((lease,))

    def done(self, leases: Iterable[LeaseId]) -> None:
        """Notes that one receiver has done with these."""
        for lease in leases:
            left = self._receivers.pop(lease, 1) - 1
            if left:
                self._receivers[lease] = left
            else:
                self._plane.release((lease,))
