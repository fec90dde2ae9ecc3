"""One plane that publishes, and one to read by for each choice of transport."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.tensor_producer import MIB, random_tensor
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import TensorLost
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.payloads import TensorRef
from omnistage_common.pipeline.plan import TransportChoice
from omnistage_common.tensors import EVERY_TRANSPORT, TensorPlane, TransportKind
from omnistage_common.transfers import transports_for
from omnistage_gateway.tensor_planes import TensorPlanes


class Planes:
    """Makes planes and remembers by which ways each reads."""

    def __init__(self, folder: Path) -> None:
        self.made: list[tuple[TransportKind, ...]] = []
        self._folder = folder

    def __call__(self, transports: tuple[TransportKind, ...]) -> TensorPlane:
        """Makes one."""
        self.made.append(transports)
        return TensorPlane(
            incarnation=new_incarnation(),
            host=this_host(),
            slab_bytes=4 * MIB,
            directory=self._folder,
            transports=transports,
        )


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[TensorPlane]:
    plane = Planes(tmp_path)(EVERY_TRANSPORT)
    yield plane
    plane.close()


def test_pipelines_of_one_choice_share_a_plane(tmp_path: Path) -> None:
    made = Planes(tmp_path)
    planes = TensorPlanes(made)

    assert planes.reading(TransportChoice.AUTO) is planes.publishing
    assert planes.reading(TransportChoice.TCP) is planes.reading(TransportChoice.TCP)
    assert made.made == [EVERY_TRANSPORT, transports_for(TransportChoice.TCP)]
    planes.close()


async def test_each_choice_is_kept_to(tmp_path: Path, producer: TensorPlane) -> None:
    """The producer is of this host: what allows shared memory reads it, what does not must not."""
    planes = TensorPlanes(Planes(tmp_path))
    ref = await producer.publish(random_tensor(MIB), owner="a", deadline=Deadline.after(10))
    assert isinstance(ref, TensorRef)

    for choice in (TransportChoice.AUTO, TransportChoice.SHARED_MEMORY):
        read = await planes.reading(choice).fetch(ref, owner="b", deadline=Deadline.after(10))
        assert len(read.data) == MIB
    with pytest.raises(TensorLost, match=r"allowed: stream"):
        await planes.reading(TransportChoice.STREAM).fetch(
            ref, owner="b", deadline=Deadline.after(10)
        )
    planes.close()


def test_a_plane_that_only_reads_takes_no_memory(tmp_path: Path) -> None:
    planes = TensorPlanes(Planes(tmp_path))
    for choice in TransportChoice:
        planes.reading(choice)

    assert list(tmp_path.iterdir()) == []
    planes.close()
