"""Planes that are closed after the test, and producers in processes of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.tensor_producer import MIB, Producer
from omnistage_common.ids import HostId, new_incarnation, this_host
from omnistage_common.tensors import TensorPlane


@pytest.fixture
def new_plane(tmp_path: Path) -> Iterator[Callable[..., TensorPlane]]:
    """Makes planes that share a folder, each as in a process of its own."""
    planes: list[TensorPlane] = []

    def make(*, slab_bytes: int = 4 * MIB, host: HostId | None = None) -> TensorPlane:
        plane = TensorPlane(
            incarnation=new_incarnation(),
            host=host or this_host(),
            slab_bytes=slab_bytes,
            directory=tmp_path,
        )
        planes.append(plane)
        return plane

    yield make
    for plane in planes:
        plane.close()


@pytest.fixture
def new_producer(tmp_path: Path) -> Iterator[Callable[[], Producer]]:
    """Starts producers that share a folder with `new_plane`."""
    producers: list[Producer] = []

    def make() -> Producer:
        producers.append(Producer(tmp_path))
        return producers[-1]

    yield make
    for producer in producers:
        producer.kill()
