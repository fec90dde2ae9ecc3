"""The table of peers: what is remembered, and that it does not grow."""

from msgspec.structs import replace

from omnistage_common.ids import HostId, Incarnation, LeaseId
from omnistage_common.payloads import (
    ElementType,
    SharedMemoryLocation,
    TensorHeader,
    TensorRef,
)
from omnistage_common.tensors.peers import MAX_PEERS, Counters, Peers
from omnistage_common.tensors.transport import Agreement, TransportCount, TransportKind

REF = TensorRef(
    header=TensorHeader(element_type=ElementType.UINT8, shape=(1,)),
    lease=LeaseId(1),
    incarnation=Incarnation("first"),
    length=1,
    checksum=0,
    location=SharedMemoryLocation(host=HostId("here"), segment="segment", offset=0),
    address="10.0.0.1:7001",
)


def of(life: str, address: str = "") -> TensorRef:
    return replace(REF, incarnation=Incarnation(life), address=address)


def test_a_peer_is_one_life_of_a_producer() -> None:
    peers = Peers()

    assert peers.of(REF) is peers.of(REF)
    assert peers.of(of("other")) is not peers.of(REF)


def test_a_later_life_at_the_same_address_takes_the_place_of_the_earlier() -> None:
    peers = Peers()
    first = peers.of(REF)
    peers.of(of("second", REF.address))

    assert peers.of(REF) is not first


def test_those_without_an_address_do_not_take_one_anothers_place() -> None:
    peers = Peers()
    first = peers.of(of("first"))
    peers.of(of("second"))

    assert peers.of(of("first")) is first


def test_the_one_that_was_not_read_for_longest_gives_way() -> None:
    peers = Peers()
    known = [peers.of(of(str(number))) for number in range(MAX_PEERS)]
    peers.of(of("0"))
    peers.of(of("one more"))

    assert peers.of(of("0")) is known[0]
    assert peers.of(of("1")) is not known[1]


def test_a_forgotten_one_is_met_anew() -> None:
    peers = Peers()
    first = peers.of(REF)
    peers.forget(REF.incarnation)
    peers.forget(REF.incarnation)

    assert peers.of(REF) is not first


def test_a_report_tells_the_way_and_why_it_is_no_better() -> None:
    peers = Peers()
    peer = peers.of(REF)
    assert peers.reports() == ()

    peer.agreement = Agreement(kind=TransportKind.STREAM, incarnation=REF.incarnation)
    peer.given_up = {TransportKind.RDMA: "no device", TransportKind.TCP: "failed twice"}
    peer.tensors, peer.bytes = 2, 30
    (report,) = peers.reports()
    assert report.kind is TransportKind.STREAM
    assert (report.tensors, report.bytes) == (2, 30)
    assert report.fallback == "rdma: no device; tcp: failed twice"

    peers.clear()
    assert peers.reports() == ()


def test_counts_add_up_by_way() -> None:
    counters = Counters()
    counters.add(TransportKind.TCP, tensors=1, read=10)
    counters.add(TransportKind.TCP, tensors=1, read=5)
    counters.add(TransportKind.RDMA, fallbacks=1)
    counters.add(TransportKind.TCP, lost=1)

    assert counters.all() == (
        TransportCount(kind=TransportKind.TCP, tensors=2, bytes=15, lost=1),
        TransportCount(kind=TransportKind.RDMA, fallbacks=1),
    )
