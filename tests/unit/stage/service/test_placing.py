"""Outputs that are made in place: where their room is, who gets them, and that nothing is left."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.device_tensors import region
from fakes.frames import open_frame, tensor
from fakes.plans import one_stage_plan
from fakes.replicas import new_replica
from fakes.scripted_engine import ScriptedEngine
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import DeadlineExceeded, RequestCancelled, SetupError
from omnistage_common.ids import OutputName, new_incarnation, this_host
from omnistage_common.links.frames import Data, Delivery, Open
from omnistage_common.links.protocol import Acceptor
from omnistage_common.payloads import (
    INLINE_LIMIT,
    DeviceTensor,
    ElementType,
    PayloadKind,
    SharedMemoryLocation,
    Tensor,
    TensorHeader,
    TensorRef,
)
from omnistage_common.pipeline.plan import ReceivePlan
from omnistage_common.tensors import PageLock, TensorPlane
from omnistage_stage.engines.protocol import EngineResult, Place
from omnistage_stage.engines.torch.conversion import fill, octets_of
from omnistage_stage.engines.torch.device_memory import DeviceRegion
from omnistage_stage.service.devices import attach_device
from omnistage_stage.service.session import Session

MIB = 1 << 20
SOUND = OutputName("audio")
HEADER = TensorHeader(element_type=ElementType.UINT8, shape=(MIB,))
RECEIVES = (ReceivePlan(name=OutputName("codes"), kind=PayloadKind.CODEC_FRAMES),)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[TensorPlane]:
    """Of a stage without device memory."""
    found = TensorPlane(
        incarnation=new_incarnation(), host=this_host(), slab_bytes=4 * MIB, directory=tmp_path
    )
    yield found
    found.close()


@pytest.fixture
def plane(bare: TensorPlane) -> TensorPlane:
    """Of a stage with two MiB and a bit of it."""
    bare.attach(made=region(2 * MIB + 4096), received=None)
    return bare


NewSession = Callable[..., Session]


@pytest.fixture
def new_session(bare: TensorPlane) -> NewSession:
    """Opens requests of the stage."""

    def make(*, seconds: float = 30, withheld: tuple[OutputName, ...] = ()) -> Session:
        acceptor = Acceptor()
        frame: Open = replace(
            open_frame(1, credit=4, seconds=seconds, delivery=Delivery.DELTAS), withheld=withheld
        )
        acceptor.receive(frame)
        return Session(
            frame=frame, owner="owner", plane=bare, acceptor=acceptor, wake=lambda _: None
        )

    return make


async def place_in(session: Session, header: TensorHeader = HEADER, **where: Any) -> Place:
    return await session.reserve(SOUND, PayloadKind.WAVEFORM, header, **where)


def sent(session: Session) -> list[Tensor | TensorRef]:
    """Tensors that a write would send now."""
    contents = [
        output.payload.content
        for frame in session.take_frames()
        if isinstance(frame, Data)
        for output in frame.outputs
    ]
    return [each for each in contents if isinstance(each, Tensor | TensorRef)]


def empty(plane: TensorPlane) -> bool:
    now = plane.statistics()
    return (now.leases, now.used_bytes, now.device_used_bytes, now.settling) == (0, 0, 0, 0)


@pytest.mark.parametrize("on_device", [False, True])
async def test_an_output_is_made_where_its_consumers_read_it(
    *, on_device: bool, plane: TensorPlane, new_session: NewSession
) -> None:
    session = new_session()
    with await place_in(session, on_device=on_device, index=3) as place:
        assert isinstance(place.data, DeviceTensor if on_device else memoryview)
        fill(place.data, octets_of(tensor(MIB).data))
        assert sent(session) == [], "not before it is sealed"
        await place.seal()

    (ref,) = sent(session)
    assert isinstance(ref, TensorRef)
    assert ref.on_device is on_device
    fetched = await plane.fetch(ref, owner="reader", deadline=Deadline.after(5))
    assert fetched == tensor(MIB)
    plane.release_owner("reader")
    session.finish(EngineResult())
    session.close()
    assert empty(plane)


async def test_a_stage_without_a_device_makes_it_in_the_slab_whatever_its_engine_asks_for(
    new_session: NewSession,
) -> None:
    session = new_session()
    with await place_in(session, on_device=True) as place:
        await place.seal()

    (ref,) = sent(session)
    assert isinstance(ref, TensorRef)
    assert isinstance(ref.location, SharedMemoryLocation)


@pytest.mark.parametrize("on_device", [False, True])
async def test_a_small_one_takes_no_room_and_goes_inline(
    *, on_device: bool, plane: TensorPlane, new_session: NewSession, tmp_path: Path
) -> None:
    session = new_session()
    header = TensorHeader(element_type=ElementType.UINT8, shape=(INLINE_LIMIT,))
    made = replace(header, shape=(5,))
    with await place_in(session, header, on_device=on_device) as place:
        fill(place.data, octets_of(b"hello"))
        with pytest.raises(ValueError, match="were reserved"):
            await place.seal(HEADER)
        await place.seal(made)

    assert sent(session) == [Tensor(header=made, data=b"hello")]
    assert empty(plane)
    assert os.listdir(tmp_path) == [], "no segment is made for it"  # noqa: PTH208 - at once


async def test_less_may_be_made_than_there_is_room_for(new_session: NewSession) -> None:
    session = new_session()
    made = replace(HEADER, shape=(MIB // 2,))
    with await place_in(session) as place:
        await place.seal(made)

    (ref,) = sent(session)
    assert isinstance(ref, TensorRef)
    assert (ref.header, ref.length) == (made, MIB // 2)


@pytest.mark.parametrize("on_device", [False, True])
async def test_what_fails_on_its_way_is_given_back(
    *, on_device: bool, plane: TensorPlane, new_session: NewSession
) -> None:
    session = new_session()

    with pytest.raises(ZeroDivisionError), await place_in(session, on_device=on_device):
        raise ZeroDivisionError

    assert sent(session) == []
    assert empty(plane)


async def test_a_full_device_holds_the_engine_back_until_the_deadline(
    plane: TensorPlane, new_session: NewSession
) -> None:
    session = new_session(seconds=0.2)
    with (
        await place_in(session, on_device=True),
        await place_in(session, on_device=True),
        pytest.raises(DeadlineExceeded, match=r"limits\.deviceSlabBytes"),
    ):
        await place_in(session, on_device=True)
    assert empty(plane)


async def test_an_output_that_nobody_wants_keeps_no_room(
    plane: TensorPlane, new_session: NewSession
) -> None:
    session = new_session(withheld=(SOUND,))
    with await place_in(session, on_device=True) as place:
        await place.seal()

    assert sent(session) == []
    assert empty(plane)


async def test_a_request_that_ends_takes_back_what_is_being_made(
    plane: TensorPlane, new_session: NewSession
) -> None:
    session = new_session()
    with await place_in(session, on_device=True) as place:
        session.close()
        assert plane.statistics().settling == 1
        with pytest.raises(RequestCancelled):
            await place.seal()
    assert empty(plane)


class Owning(ScriptedEngine):
    """An engine with a device, and a driver that locks pages."""

    def __init__(self, *, takes_device_tensors: bool = False) -> None:
        super().__init__()
        self.takes_device_tensors = takes_device_tensors
        self.given: list[int] = []
        self.locked: dict[int, int] = {}

    def device_memory(self, size: int) -> DeviceRegion:
        """See `DeviceOwner`."""
        self.given.append(size)
        return region(size)

    def page_lock(self) -> PageLock | None:
        """See `DeviceOwner`."""

        def lock(address: int, size: int) -> Callable[[], None]:
            self.locked[address] = size
            return partial(self.locked.__delitem__, address)

        return lock


@pytest.mark.parametrize(("size", "given"), [(0, []), (MIB, [MIB])])
async def test_a_loaded_engine_gives_as_much_as_the_stage_says_and_locks_its_pages(
    size: int, given: list[int], tmp_path: Path
) -> None:
    engine = Owning()
    replica = new_replica(engine, tmp_path, device_slab_bytes=size)

    await replica.load()

    assert engine.given == given
    assert replica.plane.has_device is bool(size)
    assert replica.plane.statistics().device_bytes == size
    await replica.plane.publish(tensor(MIB), owner="a", deadline=Deadline.after(5))
    assert len(engine.locked) == 1
    replica.plane.close()
    assert engine.locked == {}


@pytest.mark.parametrize(
    ("takes", "receives", "given"),
    [(True, RECEIVES, [MIB, MIB]), (True, (), [MIB]), (False, RECEIVES, [MIB])],
)
def test_an_engine_that_takes_tensors_there_gives_as_much_again_for_what_others_send(
    *, takes: bool, receives: tuple[ReceivePlan, ...], given: list[int], bare: TensorPlane
) -> None:
    stage = one_stage_plan().stages[0]
    limits = replace(stage.limits, device_slab_bytes=MIB)
    engine = Owning(takes_device_tensors=takes)

    attach_device(engine, bare, replace(stage, limits=limits, receives=receives))

    assert engine.given == given


async def test_an_engine_without_a_device_is_refused_by_the_field(tmp_path: Path) -> None:
    replica = new_replica(ScriptedEngine(), tmp_path, device_slab_bytes=MIB)

    with pytest.raises(SetupError, match=r"leave out `limits\.deviceSlabBytes`") as refused:
        await replica.load()

    assert refused.value.field == "limits.deviceSlabBytes"
    replica.plane.close()
