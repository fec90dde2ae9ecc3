"""A tensor that several receivers got is kept until the last has done with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.frames import tensor
from omnistage_common.deadlines import Deadline
from omnistage_common.ids import LeaseId, new_incarnation, this_host
from omnistage_common.payloads import TensorRef
from omnistage_common.tensors import TensorPlane
from omnistage_stage.service.sharing import LeaseShares


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[TensorPlane]:
    plane = TensorPlane(
        incarnation=new_incarnation(), host=this_host(), slab_bytes=8 << 20, directory=tmp_path
    )
    yield plane
    plane.close()


async def published(plane: TensorPlane) -> LeaseId:
    """The lease of a tensor."""
    ref = await plane.publish(tensor(1 << 20), owner="owner", deadline=Deadline.after(5))
    assert isinstance(ref, TensorRef)
    return ref.lease


@pytest.mark.parametrize("receivers", [1, 2, 3])
async def test_the_last_receiver_ends_the_lease(plane: TensorPlane, receivers: int) -> None:
    shares = LeaseShares(plane)
    lease = await published(plane)
    shares.share(lease, receivers)

    for left in reversed(range(receivers)):
        assert plane.statistics().leases == 1
        shares.done([lease])
        assert plane.statistics().leases == (left > 0)


async def test_a_tensor_that_nobody_wants_any_more_is_not_kept(plane: TensorPlane) -> None:
    LeaseShares(plane).share(await published(plane), 0)

    assert plane.statistics().leases == 0


async def test_a_lease_that_ended_by_itself_is_no_mistake(plane: TensorPlane) -> None:
    shares = LeaseShares(plane)
    lease = await published(plane)
    shares.share(lease, 2)
    plane.release_owner("owner")

    shares.done([lease])
    shares.done([lease])

    assert plane.statistics().leases == 0
