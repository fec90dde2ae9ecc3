"""Outputs by name: what may be asked for, and how it goes out."""

import asyncio
from typing import Any

import msgspec
import pytest

from fakes.engine_io import RecordedOutputs, engine_spec
from omnistage_common.errors import DeadlineExceeded, EngineFailed, SetupError
from omnistage_common.ids import OutputName
from omnistage_common.payloads import (
    INLINE_LIMIT,
    ElementType,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
)
from omnistage_common.pipeline.plan import ParallelPlan
from omnistage_stage.engines.protocol import EngineSpec, InputSpec
from omnistage_stage.engines.vllm.arguments import VllmArguments
from omnistage_stage.engines.vllm.loading import Purpose, purpose_of
from omnistage_stage.engines.vllm.outputs import (
    HIDDEN_STATES,
    OFFERED,
    PROMPT_HIDDEN_STATES,
    PROMPT_TOKENS,
    TEXT,
    TOKENS,
    Made,
    asked_outputs,
    delivering,
    token_tensor,
)
from omnistage_stage.engines.vllm.spreading import Spread, spread_of

ALL = frozenset(OFFERED)


class CrampedOutputs(RecordedOutputs):
    """Has room for large outputs only when it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.room = asyncio.Event()
        self.failure: Exception | None = None

    async def put(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Keeps an output when there is room."""
        self.asked.set()
        await self.room.wait()
        if self.failure is not None:
            raise self.failure
        self.emit(name, payload, index=index)

    @property
    def names(self) -> list[str]:
        """Names of what was handed over, in order."""
        return [name for name, _, _ in self.pieces]


def rows(count: int) -> Tensor:
    """Rows of 256 bytes."""
    header = TensorHeader(element_type=ElementType.FLOAT32, shape=(count, 64))
    return Tensor(header=header, data=bytes(header.length))


LARGE = INLINE_LIMIT // 256 + 1


def spec_of(produces: dict[OutputName, PayloadKind], *arriving: PayloadKind) -> EngineSpec:
    spec = engine_spec({str(name): kind for name, kind in produces.items()})
    consumes = {OutputName(kind.value): InputSpec(kind=kind) for kind in arriving}
    return msgspec.structs.replace(spec, consumes=consumes)


def test_every_output_is_offered_under_its_name() -> None:
    assert asked_outputs(spec_of(OFFERED)) == ALL
    assert asked_outputs(spec_of({TEXT: PayloadKind.TEXT})) == {TEXT}


@pytest.mark.parametrize(
    ("produces", "said"),
    [
        ({"answer": PayloadKind.TEXT}, r"produces answer \(text\)"),
        ({"text": PayloadKind.TEXT, "tokens": PayloadKind.TEXT}, r"produces tokens \(text\)"),
        ({}, "produces nothing"),
    ],
)
def test_another_name_or_kind_is_refused_with_what_is_offered(
    produces: dict[str, PayloadKind], said: str
) -> None:
    offered = (
        r"offers text \(text\), prompt_tokens \(tokens\), prompt_positions \(tokens\), "
        r"tokens \(tokens\), prompt_hidden_states \(hidden_states\), "
        r"hidden_states \(hidden_states\)"
    )
    with pytest.raises(SetupError, match=rf"{said}.*{offered}") as refused:
        asked_outputs(engine_spec(produces))

    assert refused.value.field == "produces"


def test_a_template_that_asks_for_text_only_gets_nothing_else() -> None:
    purpose = purpose_of(
        spec_of({TEXT: PayloadKind.TEXT}, PayloadKind.CONVERSATION), VllmArguments()
    )

    assert purpose == Purpose()


def test_the_template_says_what_the_model_perceives_and_reveals() -> None:
    spec = spec_of(
        {HIDDEN_STATES: PayloadKind.HIDDEN_STATES}, PayloadKind.WAVEFORM, PayloadKind.IMAGE
    )

    assert purpose_of(spec, VllmArguments()) == Purpose(audio=True, images=True, rows=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("enforce_eager", False), ("tensor_parallel_size", 2), ("enable_prefix_caching", True)],
)
def test_an_argument_that_rules_out_hidden_states_is_named(field: str, value: Any) -> None:
    arguments = VllmArguments(**{field: value})
    asked = spec_of({PROMPT_HIDDEN_STATES: PayloadKind.HIDDEN_STATES})

    with pytest.raises(SetupError, match=f"{field} must be .* prompt_hidden_states") as refused:
        purpose_of(asked, arguments)
    assert refused.value.field == f"engineArgs.{field}"
    assert not purpose_of(spec_of({TEXT: PayloadKind.TEXT}), arguments).rows


@pytest.mark.parametrize(
    ("parallelism", "tensor_parallel_size", "spread"),
    [
        (ParallelPlan(), 1, Spread()),
        (ParallelPlan(), 4, Spread(tensor=4)),
        (ParallelPlan(tensor=2, pipeline=3), 1, Spread(tensor=2, pipeline=3)),
        (ParallelPlan(tensor=2), 2, Spread(tensor=2)),
    ],
)
def test_devices_are_asked_for_by_the_stage_or_by_an_argument(
    parallelism: ParallelPlan, tensor_parallel_size: int, spread: Spread
) -> None:
    spec = msgspec.structs.replace(spec_of({TEXT: PayloadKind.TEXT}), parallelism=parallelism)

    assert spread_of(spec, VllmArguments(tensor_parallel_size=tensor_parallel_size)) == spread


@pytest.mark.parametrize(
    ("parallelism", "field"),
    [
        (ParallelPlan(data=2), "parallelism.data"),
        (ParallelPlan(tensor=2), "engineArgs.tensor_parallel_size"),
    ],
)
def test_devices_that_are_asked_for_otherwise_are_refused(
    parallelism: ParallelPlan, field: str
) -> None:
    spec = msgspec.structs.replace(spec_of({TEXT: PayloadKind.TEXT}), parallelism=parallelism)

    with pytest.raises(SetupError) as refused:
        spread_of(spec, VllmArguments(tensor_parallel_size=4))

    assert refused.value.field == field


def test_rows_of_what_is_generated_go_with_cached_prefixes() -> None:
    spec = spec_of({HIDDEN_STATES: PayloadKind.HIDDEN_STATES})

    assert purpose_of(spec, VllmArguments(enable_prefix_caching=True)).rows


def test_token_ids_are_little_endian_64_bit_integers() -> None:
    tensor = token_tensor([1, 256, -1])

    assert tensor.header == TensorHeader(element_type=ElementType.INT64, shape=(3,))
    assert bytes(tensor.data) == b"".join(
        n.to_bytes(8, "little", signed=True) for n in (1, 256, -1)
    )


async def test_what_nobody_asked_for_is_dropped() -> None:
    outputs = CrampedOutputs()
    async with delivering(frozenset({TOKENS}), outputs) as deliver:
        deliver(Made(text="hi", tokens=(1,), prompt_tokens=[1], prompt_rows=rows(1), rows=rows(1)))

    assert outputs.names == ["tokens"]


async def test_the_pieces_of_a_step_go_out_together_rows_first() -> None:
    outputs = CrampedOutputs()
    async with delivering(ALL, outputs) as deliver:
        deliver(Made(prompt_tokens=[1, 2]))
        deliver(Made(text="a", tokens=(3,), prompt_rows=rows(2)))
        deliver(Made(text="b", tokens=(4,), rows=rows(1)))

        assert outputs.names == [
            *("prompt_tokens", "prompt_hidden_states", "tokens", "text"),
            *("hidden_states", "tokens", "text"),
        ]


async def test_an_answer_that_says_nothing_is_one_empty_piece_of_text() -> None:
    outputs = CrampedOutputs()
    async with delivering(frozenset({TEXT}), outputs) as deliver:
        deliver(Made(tokens=(1,)))

    assert [payload.content for payload in outputs.payloads] == [""]


async def test_a_large_piece_waits_for_room_and_holds_up_its_own_output_only() -> None:
    outputs = CrampedOutputs()
    async with delivering(ALL, outputs) as deliver:
        deliver(Made(rows=rows(LARGE)))
        deliver(Made(text="a", tokens=(1,), rows=rows(1)))
        await outputs.asked.wait()
        assert outputs.names == ["tokens", "text"]
        outputs.room.set()

    assert outputs.names == ["tokens", "text", "hidden_states", "hidden_states"]
    assert [tensor.header.shape[0] for tensor in outputs.tensors[1:]] == [LARGE, 1]


async def test_leaving_waits_until_everything_is_handed_over() -> None:
    outputs = CrampedOutputs()

    async def whole() -> None:
        async with delivering(frozenset({PROMPT_TOKENS}), outputs) as deliver:
            deliver(Made(prompt_tokens=range(INLINE_LIMIT // 8 + 1)))

    task = asyncio.create_task(whole())
    await outputs.asked.wait()
    assert not task.done()
    outputs.room.set()
    await task

    assert outputs.names == ["prompt_tokens"]


async def test_no_room_before_the_deadline_ends_the_block() -> None:
    outputs = CrampedOutputs()
    outputs.failure = DeadlineExceeded("no room")
    outputs.room.set()

    async def whole() -> None:
        async with delivering(ALL, outputs) as deliver:
            deliver(Made(prompt_rows=rows(LARGE)))
            await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded, match="no room"):
        await whole()


async def test_what_the_block_raises_comes_out_and_ends_the_waiting() -> None:
    outputs = CrampedOutputs()

    async def whole() -> None:
        async with delivering(ALL, outputs) as deliver:
            deliver(Made(prompt_rows=rows(LARGE)))
            await outputs.asked.wait()
            raise EngineFailed("the model is gone")

    with pytest.raises(EngineFailed, match="the model is gone"):
        await whole()
    assert outputs.names == []
