"""What several tests of the gateway need."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.graphs import SPEAKING
from fakes.staged_request import Stages
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.tensors import TensorPlane


@pytest.fixture
def new_stages(tmp_path: Path) -> Iterator[Callable[..., Stages]]:
    """Makes a request over the replicas of a plan."""
    plane = TensorPlane(
        incarnation=new_incarnation(), host=this_host(), slab_bytes=1 << 20, directory=tmp_path
    )
    yield lambda plan=SPEAKING, **more: Stages(plan, plane, **more)
    plane.close()
