"""The gateway's door for tensors: there when it is asked for, and only then."""

import pytest

from fakes.stage_process import free_port
from fakes.tensor_producer import MIB, random_tensor
from omnistage_common.addresses import Address
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import SetupError
from omnistage_common.ids import HostId, new_incarnation, this_host
from omnistage_common.payloads import TensorRef
from omnistage_common.tensors import TensorPlane, TransportKind
from omnistage_gateway.settings import parse_settings
from omnistage_gateway.tensor_door import tensor_door

NEEDED = ("--plan", "p.json", "--endpoints", "e.json", "--listen", "127.0.0.1:8000")


def test_it_is_not_there_unless_it_is_named() -> None:
    assert parse_settings(NEEDED).tensors is None

    settings = parse_settings((*NEEDED, "--tensors", "0.0.0.0:7100"))
    assert settings.tensors == Address(host="0.0.0.0", port=7100)  # noqa: S104 - not bound to


async def test_a_stage_of_another_host_reads_what_the_gateway_took_in() -> None:
    address = Address(host="127.0.0.1", port=free_port())
    gateway = TensorPlane(
        incarnation=new_incarnation(), host=this_host(), slab_bytes=4 * MIB, address=str(address)
    )
    stage = TensorPlane(
        incarnation=new_incarnation(),
        host=HostId("elsewhere"),
        slab_bytes=4 * MIB,
        transports=(TransportKind.STREAM,),
    )
    tensor = random_tensor(MIB)
    async with tensor_door(gateway, address):
        ref = await gateway.publish(tensor, owner="a", deadline=Deadline.after(10))
        assert isinstance(ref, TensorRef)
        fetched = await stage.fetch(ref, owner="b", deadline=Deadline.after(10))
        assert fetched.data == tensor.data
    stage.close()
    gateway.close()


async def test_without_an_address_nothing_listens() -> None:
    plane = TensorPlane(incarnation=new_incarnation(), host=this_host(), slab_bytes=MIB)
    async with tensor_door(plane, None):
        pass
    plane.close()


async def test_a_port_that_is_taken_names_the_option() -> None:
    plane = TensorPlane(incarnation=new_incarnation(), host=this_host(), slab_bytes=MIB)
    address = Address(host="127.0.0.1", port=free_port())
    async with tensor_door(plane, address):
        with pytest.raises(SetupError, match="another process has the port") as refused:
            async with tensor_door(plane, address):
                pass
    assert refused.value.field == "--tensors"
    plane.close()
