"""The shared memory reader: reads in place, believes nothing, keeps nothing for long."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.tensor_producer import MIB, in_slab, random_tensor
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import TensorLost
from omnistage_common.ids import HostId, Incarnation, LeaseId, TensorToken, this_host
from omnistage_common.payloads import SharedMemoryLocation, TensorRef
from omnistage_common.tensors import TensorPlane
from omnistage_common.tensors.shared_memory import SharedMemoryTransport

NewPlane = Callable[..., TensorPlane]
TENSOR = random_tensor(100_000)


@pytest.fixture
def transport(tmp_path: Path) -> SharedMemoryTransport:
    return SharedMemoryTransport(host=this_host(), directory=tmp_path)


async def published(plane: TensorPlane) -> TensorRef:
    ref = await plane.publish(TENSOR, owner="a", deadline=Deadline.after(60))
    assert isinstance(ref, TensorRef)
    return ref


def moved(ref: TensorRef, *, segment: str | None = None, offset: int | None = None) -> TensorRef:
    location = in_slab(ref)
    return replace(
        ref,
        location=SharedMemoryLocation(
            host=location.host,
            segment=location.segment if segment is None else segment,
            offset=location.offset if offset is None else offset,
        ),
    )


def maps_of(name: str) -> int:
    return Path("/proc/self/maps").read_text().count(name)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_it_reads_in_place(new_plane: NewPlane, transport: SharedMemoryTransport) -> None:
    ref = await published(new_plane())

    view = transport.read(ref)

    assert (view.readonly, view.nbytes, view.format) == (True, 100_000, "B")
    assert view == TENSOR.data


async def test_another_host_is_out_of_reach(
    new_plane: NewPlane, transport: SharedMemoryTransport
) -> None:
    ref = await published(new_plane())
    elsewhere = replace(ref, location=replace(ref.location, host=HostId("elsewhere")))

    transport.reach(ref)
    with pytest.raises(TensorLost, match=f"on host elsewhere, this is {this_host()}"):
        transport.reach(elsewhere)


async def test_a_folder_that_is_not_shared_is_found_out_by_trying(
    new_plane: NewPlane, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    apart = SharedMemoryTransport(host=this_host(), directory=tmp_path / "own")
    ref = await published(new_plane())

    with pytest.raises(TensorLost, match=r"does not exist: .* or has another folder there"):
        apart.reach(ref)


@pytest.mark.parametrize("segment", ["../segment", "/etc/passwd", "", ".", "omnistage-1-zz"])
async def test_a_name_that_leads_elsewhere_is_refused(
    segment: str, new_plane: NewPlane, transport: SharedMemoryTransport
) -> None:
    ref = await published(new_plane())

    with pytest.raises(TensorLost, match="not the name of a shared memory segment"):
        transport.read(moved(ref, segment=segment))


async def test_a_link_in_place_of_a_segment_is_refused(
    new_plane: NewPlane, transport: SharedMemoryTransport, tmp_path: Path
) -> None:
    ref = await published(new_plane())
    name = "omnistage-1-" + "0" * 16
    (tmp_path / name).symlink_to(in_slab(ref).segment)

    with pytest.raises(TensorLost, match="cannot be read"):
        transport.read(moved(ref, segment=name))


@pytest.mark.parametrize("content", [b"", b"short", b"\0" * 8192])
async def test_a_file_that_is_no_segment_is_refused(
    content: bytes, new_plane: NewPlane, transport: SharedMemoryTransport, tmp_path: Path
) -> None:
    ref = await published(new_plane())
    name = "omnistage-1-" + "0" * 16
    (tmp_path / name).write_bytes(content)

    with pytest.raises(TensorLost, match="not a segment of this version"):
        transport.read(moved(ref, segment=name))


@pytest.mark.parametrize("offset", [-1, 0, 4096, 4096 + 63, 4 * MIB + 4096 - 99_999, 2**63])
async def test_a_place_outside_the_slab_is_refused(
    offset: int, new_plane: NewPlane, transport: SharedMemoryTransport
) -> None:
    ref = await published(new_plane())

    with pytest.raises(TensorLost, match="outside segment"):
        transport.read(moved(ref, offset=offset))


async def test_a_length_outside_the_slab_is_refused(
    new_plane: NewPlane, transport: SharedMemoryTransport
) -> None:
    ref = await published(new_plane())

    for length in (-1, 8 * MIB):
        with pytest.raises(TensorLost, match="outside segment"):
            transport.read(replace(ref, length=length))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lease": LeaseId(99)}, "holds lease 1 now"),
        ({"length": 99_999}, "published 100000 bytes"),
        ({"token": TensorToken("guessed")}, "the token is not that of its lease"),
        ({"header": replace(TENSOR.header, rate_hz=1)}, "its bytes changed"),
        ({"checksum": 5}, "the reference says 100000 with 0000000000000005"),
        ({"incarnation": Incarnation("earlier")}, "the producer is gone"),
    ],
)
async def test_a_reference_that_differs_from_the_stamp_is_refused(
    change: dict[str, object], message: str, new_plane: NewPlane, transport: SharedMemoryTransport
) -> None:
    ref = await published(new_plane())

    with pytest.raises(TensorLost, match=message):
        transport.read(replace(ref, **change))


async def test_a_lease_that_ended_is_noticed_though_the_bytes_are_still_there(
    new_plane: NewPlane, transport: SharedMemoryTransport
) -> None:
    plane = new_plane()
    ref = await published(plane)
    plane.release([ref.lease])

    with pytest.raises(TensorLost, match="holds no lease now"):
        transport.read(ref)

    again = await published(plane)
    assert again.location == ref.location
    with pytest.raises(TensorLost, match=f"holds lease {again.lease} now"):
        transport.read(ref)


async def test_a_producer_that_closed_is_noticed_through_a_kept_mapping(
    new_plane: NewPlane, tmp_path: Path
) -> None:
    transport = SharedMemoryTransport(host=this_host(), directory=tmp_path)
    plane = new_plane()
    ref = await published(plane)
    transport.read(ref)
    plane.close()

    with pytest.raises(TensorLost, match="belongs to nobody now"):
        transport.read(ref)
    assert transport.mapped == 0
    with pytest.raises(TensorLost, match="does not exist"):
        transport.read(ref)


async def test_a_forgotten_mapping_goes_with_its_last_view(
    new_plane: NewPlane, transport: SharedMemoryTransport
) -> None:
    plane = new_plane()
    ref = await published(plane)
    view = transport.read(ref)
    before = maps_of(in_slab(ref).segment)

    transport.forget(ref.incarnation)
    transport.forget(ref.incarnation)
    assert maps_of(in_slab(ref).segment) == before
    assert view == TENSOR.data

    del view
    assert maps_of(in_slab(ref).segment) == before - 1


async def test_closing_leaves_views_valid(
    new_plane: NewPlane, transport: SharedMemoryTransport
) -> None:
    view = transport.read(await published(new_plane()))

    transport.close()

    assert view == TENSOR.data


async def test_restarts_of_a_producer_leave_no_mapping_behind(
    new_plane: NewPlane, tmp_path: Path
) -> None:
    transport = SharedMemoryTransport(host=this_host(), directory=tmp_path)
    files = open_files()

    for _ in range(50):
        plane = new_plane()
        transport.read(await published(plane))
        plane.close()

    assert transport.mapped == 1
    transport.close()
    assert open_files() == files
    assert maps_of(str(tmp_path)) == 0
