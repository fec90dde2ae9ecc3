"""What `omnistage bench transfer` works out by itself: sizes, contents, ratios, tables, who moves what."""

import time
from importlib.metadata import entry_points
from io import StringIO
from typing import Any

import msgspec
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from omnistage_cli.__main__ import app
from omnistage_cli.bench.transfer.contents import STAMP, check, departure, filled, stamp
from omnistage_cli.bench.transfer.engines import ENGINES
from omnistage_cli.bench.transfer.hand_off import hand_off_plan
from omnistage_cli.bench.transfer.methods import (
    MIB,
    PAUSES,
    SIZES,
    TRANSPORTS,
    Method,
    lacking,
    moves,
    turns,
)
from omnistage_cli.bench.transfer.orders import Answer, Move, Round
from omnistage_cli.bench.transfer.report import (
    TARGETS,
    Ratios,
    Tally,
    Target,
    TransferReport,
    report_of,
)
from omnistage_cli.commands.bench.sizes import parse_size, size_in_words
from omnistage_cli.commands.bench.transfer_tables import tables_of
from omnistage_common.errors import ServerError
from omnistage_common.ids import HostId, Incarnation, LeaseId, TensorToken
from omnistage_common.payloads import (
    INLINE_LIMIT,
    ElementType,
    SharedMemoryLocation,
    TensorHeader,
    TensorRef,
)
from omnistage_common.pipeline.plan import EdgeMode
from omnistage_stage.engines.protocol import ENTRY_POINT_GROUP

MS = 1_000_000


def counted(length: int, **milliseconds: float) -> Round:
    """A round in which each method took that long."""
    return Round(
        bytes=length,
        moves=tuple(
            Move(method=Method(name), total=round(each * MS)) for name, each in milliseconds.items()
        ),
    )


def report_from(*rounds: Round) -> TransferReport:
    tally = Tally()
    for each in rounds:
        tally.add(each)
    return report_of(tally.rows(), cores=2, left_out={})


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("17B", 17), ("4KiB", 4096), ("16 MiB", 16 * MIB), ("1GiB", 1024 * MIB)],
)
def test_a_size_is_written_as_people_write_it(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(size_in_words(size)) == size


@pytest.mark.parametrize("text", ["", "4 kB", "MiB", "-4", "1.5MiB", "1e6"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("length", [STAMP, 4096, MIB - 1, MIB + 1, 3 * MIB + 5])
def test_a_tensor_says_when_it_left_and_that_it_is_whole(length: int) -> None:
    tensor = memoryview(filled(length))

    before = time.monotonic_ns()
    left = stamp(tensor)

    assert before <= left == departure(tensor) <= time.monotonic_ns()
    check(tensor, length)
    check(bytes(tensor), length)


@pytest.mark.parametrize("at", [STAMP, 5000, MIB, 2 * MIB - 1])
def test_a_changed_byte_is_noticed_wherever_it_is(at: int) -> None:
    tensor = memoryview(filled(2 * MIB))
    tensor[at] ^= 1

    with pytest.raises(ServerError, match="arrived with others than were sent"):
        check(tensor, len(tensor))


def test_a_tensor_that_is_cut_off_is_noticed() -> None:
    with pytest.raises(ServerError):
        check(memoryview(filled(4095)), 4096)


def test_the_plane_sends_small_tensors_inline_and_others_by_their_transport() -> None:
    for length in SIZES:
        by_plane = {method for method in TRANSPORTS if moves(method, length)}
        inline = length <= INLINE_LIMIT
        assert by_plane == ({Method.INLINE} if inline else set(TRANSPORTS) - {Method.INLINE})
        for method in (Method.COPY, Method.SOCKET, Method.GRPC_UNARY):
            assert moves(method, length)
        assert not any(moves(method, length) for method in PAUSES)


def test_small_tensors_have_more_turns() -> None:
    assert turns(4096) > turns(64 * MIB) == 1


def test_only_the_transfer_engine_can_be_lacking() -> None:
    assert {method for method in Method if lacking(method)} <= {
        Method.MOONCAKE_TCP,
        Method.MOONCAKE_RDMA,
    }


def test_a_row_has_the_median_its_rate_and_its_ratios() -> None:
    rounds = [
        counted(16 * MIB, copy=2, socket=8, shared_memory=taken) for taken in (2.5, 90.0, 2.0)
    ]

    rows = {row.method: row for row in report_from(*rounds).rows}

    row = rows[Method.SHARED_MEMORY]
    assert (row.p50_ms, row.best_ms, row.transfers) == (2.5, 2.0, 3)
    assert row.gb_per_s == pytest.approx(16 * MIB / 2.5e-3 / 1e9, rel=1e-3)
    assert (row.to_copy, row.to_socket) == (0.8, 3.2)
    assert (rows[Method.COPY].to_copy, rows[Method.COPY].publish_ms) == (1, None)


def test_rows_come_by_size_and_by_method_as_declared() -> None:
    rounds = (counted(64 * MIB, stream=4, copy=1), counted(4096, inline=1, socket=1))

    rows = report_from(*rounds).rows

    assert [(row.bytes, row.method) for row in rows] == [
        (4096, Method.SOCKET),
        (4096, Method.INLINE),
        (64 * MIB, Method.COPY),
        (64 * MIB, Method.STREAM),
    ]


def test_the_parts_of_a_transfer_by_the_plane_are_told() -> None:
    move = Move(method=Method.STREAM, total=9 * MS, publish=2 * MS, hand_over=MS, fetch=6 * MS)

    (row,) = report_from(Round(bytes=MIB, moves=(move,))).rows

    assert (row.publish_ms, row.hand_over_ms, row.fetch_ms) == (2, 1, 6)
    assert (row.to_copy, row.to_socket) == (None, None)


def test_a_ratio_is_that_of_the_size_where_it_is_worst() -> None:
    ratios = report_from(
        counted(4 * MIB, copy=1, shared_memory=9, mooncake_tcp=1, grpc_unary=5, socket=0.1),
        counted(16 * MIB, copy=4, shared_memory=5, mooncake_tcp=1, grpc_unary=7, socket=0.1),
        counted(64 * MIB, copy=9, shared_memory=10, mooncake_tcp=4, grpc_unary=30, socket=3),
        counted(256 * MIB, copy=9, shared_memory=10, mooncake_tcp=4, grpc_unary=30, socket=2),
        counted(4096, hand_off=0.25, hand_off_idle=0.75),
    ).ratios

    assert ratios == Ratios(
        shared_memory_to_copy=0.8,
        mooncake_to_socket=0.5,
        mooncake_to_grpc_unary=5,
        mooncake_fetch_to_socket=None,
        hand_off_ms=0.25,
        hand_off_idle_ms=0.75,
    )


def test_the_fetch_alone_is_compared_too() -> None:
    whole = counted(64 * MIB, socket=4)
    part = Move(
        method=Method.MOONCAKE_TCP, total=8 * MS, publish=2 * MS, hand_over=MS, fetch=5 * MS
    )

    ratios = report_from(whole, Round(bytes=64 * MIB, moves=(part,))).ratios

    assert (ratios.mooncake_to_socket, ratios.mooncake_fetch_to_socket) == (0.5, 0.8)


def test_what_was_not_measured_has_no_ratio() -> None:
    ratios = report_from(counted(MIB, copy=1, mooncake_tcp=1), counted(64 * MIB, copy=2)).ratios

    assert set(msgspec.structs.asdict(ratios).values()) == {None}


def test_every_target_is_about_a_ratio() -> None:
    assert {target.ratio for target in TARGETS} <= set(Ratios.__struct_fields__)


@pytest.mark.parametrize(
    ("at_most", "value", "met"),
    [(False, 0.8, True), (False, 0.79, False), (True, 0.8, True), (True, 0.81, False)],
)
def test_a_target_is_met_from_its_bound_on(value: float, *, at_most: bool, met: bool) -> None:
    assert Target(ratio="", what="", bound=0.8, at_most=at_most).met(value) is met


def test_the_tables_show_sizes_ratios_and_how_each_target_stands() -> None:
    report = report_from(
        counted(16 * MIB, copy=2, socket=8, shared_memory=2.5),
        counted(64 * MIB, socket=1, mooncake_tcp=2),
    )
    console = Console(width=120, force_terminal=False, record=True, file=StringIO())

    for table in tables_of(report):
        console.print(table)

    text = console.export_text()
    assert "16 MiB" in text
    assert "64 MiB" in text
    words = next(line for line in text.splitlines() if "shared_memory" in line).split("│")
    assert [word.strip() for word in words[3:7]] == ["2.500", "6.71", "0.80", "3.20"]
    verdicts = {
        target.ratio: next(line for line in text.splitlines() if target.what in line)
        for target in TARGETS
    }
    assert " met" in verdicts["shared_memory_to_copy"]
    assert " missed" in verdicts["mooncake_to_socket"]
    assert "not measured" in verdicts["hand_off_ms"]


def test_the_report_is_one_object_with_the_promised_keys() -> None:
    report = report_from(counted(4096, copy=1))

    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(report))

    assert found.keys() == {"rows", "ratios", "cores", "left_out"}
    assert found["rows"][0].keys() >= {"method", "bytes", "p50_ms", "gb_per_s"}
    assert found["ratios"].keys() >= {target.ratio for target in TARGETS}


def test_a_reference_is_handed_over_unchanged() -> None:
    ref = TensorRef(
        header=TensorHeader(element_type=ElementType.UINT8, shape=(MIB,)),
        lease=LeaseId(7),
        incarnation=Incarnation("a"),
        length=MIB,
        checksum=2**64 - 1,
        location=SharedMemoryLocation(host=HostId("h"), segment="s", offset=4160),
        token=TensorToken("t"),
        address="127.0.0.1:1",
        digest=2**64 - 1,
    )
    answer = Answer(published=1, ref=ref)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=Answer) == answer


def test_two_stages_hand_over_piece_by_piece() -> None:
    plan = hand_off_plan()

    (edge,) = plan.edges
    assert (edge.mode, edge.chunk) == (EdgeMode.STREAM, None)
    assert {stage.engine for stage in plan.stages} == set(ENGINES)


def test_the_engines_of_the_hand_off_are_nobody_elses() -> None:
    installed = entry_points(group=ENTRY_POINT_GROUP).names

    assert not installed & set(ENGINES)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--size", "8"), "16 bytes to 1 GiB"),
        (("--size", "2GiB"), "16 bytes"),
        (("--size", "x"), "is not a size"),
        (("--method", "pigeon"), "pigeon"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    option: tuple[str, ...], words: str
) -> None:
    result = CliRunner().invoke(app, ["bench", "transfer", *option], env={"COLUMNS": "200"})

    assert result.exit_code == 2
    assert words in result.output


def test_help_shows_examples_and_the_methods() -> None:
    result = CliRunner().invoke(app, ["bench", "transfer", "--help"], env={"COLUMNS": "200"})

    assert result.exit_code == 0
    assert "omnistage bench transfer --json" in result.output
    for method in Method:
        assert method.value in result.output
