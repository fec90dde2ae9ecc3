"""What all components of the torch engine share: loading, refusing, and tensors in and out."""

import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache
from transformers.generation import logits_process as processes

from fakes.engine_io import engine_spec
from fakes.qwen3_omni import write_model
from omnistage_common.errors import EngineFailed, InvalidWeights, SetupError
from omnistage_common.payloads import ElementType, Payload, PayloadKind, Tensor, TensorHeader
from omnistage_stage.engines.torch import TorchEngine
from omnistage_stage.engines.torch.arguments import parse_component_arguments
from omnistage_stage.engines.torch.checkpoints import open_checkpoint
from omnistage_stage.engines.torch.conversion import from_payload, to_payload, to_tensor
from omnistage_stage.engines.torch.placement import place
from omnistage_stage.engines.torch.qwen3_omni.parts import load_code2wav, load_talker
from omnistage_stage.engines.torch.sampling import Sampler, SamplingRule, seeded_generator
from omnistage_stage.engines.torch.slots import SlotCache


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole checkpoint."""
    return write_model(tmp_path_factory.mktemp("qwen3-omni"))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """The same, to be broken."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def talker(folder: Path, **arguments: Any) -> TorchEngine:
    """A talker, not loaded."""
    return TorchEngine(
        engine_spec(
            {"codes": PayloadKind.CODEC_FRAMES},
            model=folder.as_uri(),
            component="talker",
            **arguments,
        )
    )


async def refusal(engine: TorchEngine) -> SetupError:
    """Why it cannot be loaded; it leaves no thread."""
    before = set(threading.enumerate())
    with pytest.raises(SetupError) as refused:
        await engine.load()
    await engine.close()
    assert set(threading.enumerate()) <= before
    return refused.value


def edit(folder: Path, change: dict[str, Any]) -> None:
    """Changes the configuration."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | change), encoding="utf-8")


def test_a_stage_loads_its_own_part_and_nothing_else(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    placement = place(parse_component_arguments({"component": "talker"}))
    mine = {name for name, _ in load_talker(checkpoint, placement).named_parameters()}
    other = {name for name, _ in load_code2wav(checkpoint, placement).named_parameters()}

    assert {name.partition(".")[0] for name in other} == {"code2wav"}
    assert {name for name in mine if not name.startswith("talker.")} == {
        "thinker.model.embed_tokens.weight"
    }


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("config.json", r"no readable config\.json"),
        ("model.safetensors", r"neither model\.safetensors nor"),
    ],
)
async def test_a_folder_without_an_expected_file_is_refused_by_its_name(
    copy: Path, missing: str, words: str
) -> None:
    (copy / missing).unlink()
    refused = await refusal(talker(copy))

    assert isinstance(refused, InvalidWeights)
    assert refused.field == "model"
    with pytest.raises(InvalidWeights, match=words):
        raise refused


async def test_weights_that_are_cut_off_are_refused(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])

    assert "cannot be loaded" in (await refusal(talker(copy))).message


async def test_weights_without_a_tensor_are_refused_by_its_name(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    del tensors["talker.codec_head.weight"]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})

    assert "have no talker.codec_head.weight" in (await refusal(talker(copy))).message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"talker_config": {}}, "config.json has no talker_config.speaker_id"),
        ({"model_type": "llama"}, "does not know model_type 'llama'"),
    ],
)
async def test_a_configuration_of_something_else_is_refused_by_field(
    copy: Path, change: dict[str, Any], words: str
) -> None:
    edit(copy, change)

    assert words in (await refusal(talker(copy))).message


async def test_a_device_that_is_not_here_is_refused(folder: Path) -> None:
    refused = await refusal(talker(folder, device="cuda:63"))

    assert refused.field == "engineArgs.device"


async def test_an_engine_that_is_not_loaded_says_so() -> None:
    with pytest.raises(EngineFailed, match="before it was loaded"):
        await talker(Path("/nowhere")).probe()


async def test_a_model_runs_in_half_precision_too(folder: Path) -> None:
    engine = talker(folder, dtype="bfloat16")
    await engine.load()
    await engine.probe()
    await engine.close()


@pytest.mark.parametrize("kind", ElementType)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_a_tensor_goes_out_and_comes_back(kind: ElementType, shape: tuple[int, ...]) -> None:
    values = (
        (torch.arange(max(1, torch.Size(shape).numel()))[: torch.Size(shape).numel()])
        .to(getattr(torch, kind.value))
        .reshape(shape)
    )
    sent = to_tensor(values, rate_hz=7)
    back = from_payload(Payload(kind=PayloadKind.LATENTS, content=sent))

    assert sent.header == TensorHeader(element_type=kind, shape=shape, rate_hz=7)
    assert len(sent.data) == sent.header.length
    assert back.dtype == values.dtype
    assert torch.equal(back, values)


def test_read_only_memory_is_read_in_place() -> None:
    memory = bytearray(torch.arange(4, dtype=torch.int64).numpy().tobytes())
    tensor = Tensor(
        header=TensorHeader(element_type=ElementType.INT64, shape=(4,)),
        data=memoryview(memory).toreadonly(),
    )
    values = from_payload(Payload(kind=PayloadKind.TOKENS, content=tensor))
    memory[0] = 9

    assert values.tolist() == [9, 1, 2, 3]


def test_what_is_sent_shares_the_memory_it_was_made_in() -> None:
    values = torch.zeros(3)
    sent = to_tensor(values)
    values[1] = 1

    assert torch.equal(from_payload(Payload(kind=PayloadKind.WAVEFORM, content=sent)), values)


def test_gaps_are_closed_on_the_way_out() -> None:
    values = torch.arange(6).reshape(2, 3).T

    assert torch.equal(from_payload(to_payload(values, PayloadKind.TOKENS)), values)


def test_text_where_a_tensor_belongs_is_refused() -> None:
    with pytest.raises(EngineFailed, match="text came"):
        from_payload(Payload(kind=PayloadKind.TEXT, content="hello"))


RULES = (
    SamplingRule(do_sample=False),
    SamplingRule(do_sample=False, repetition_penalty=1.3, suppressed=(3, 4)),
    SamplingRule(),
    SamplingRule(temperature=0.7, top_k=5, top_p=0.8, repetition_penalty=1.1, suppressed=(0,)),
)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_tokens_are_chosen_as_generate_chooses_them(rule: SamplingRule) -> None:
    logits = [3 * torch.randn(12, generator=seeded_generator(step, "cpu")) for step in range(40)]
    expected = _as_generate_does(rule, logits)
    sampler = Sampler(rule, vocabulary=12, device="cpu")
    generator = seeded_generator(9, "cpu")
    seen = sampler.unseen()
    chosen = []
    for row in logits:
        (token,) = sampler.choose(row[None], seen[None], [generator]).tolist()
        seen[token] = True
        chosen.append(token)

    assert chosen == expected


def _as_generate_does(rule: SamplingRule, logits: Sequence[Any]) -> list[int]:
    """The tokens by transformers' processors and torch's own generator."""
    chain: list[Any] = []
    if rule.repetition_penalty != 1:
        chain.append(processes.RepetitionPenaltyLogitsProcessor(rule.repetition_penalty))
    if rule.suppressed:
        chain.append(processes.SuppressTokensLogitsProcessor(rule.suppressed))
    if rule.do_sample:
        chain.append(processes.TemperatureLogitsWarper(rule.temperature))
        if rule.top_k:
            chain.append(processes.TopKLogitsWarper(rule.top_k))
        chain.append(processes.TopPLogitsWarper(rule.top_p))
    torch.manual_seed(9)
    ids = torch.empty((1, 0), dtype=torch.long)
    for row in logits:
        scores = row[None]
        for process in chain:
            scores = process(ids, scores)
        if rule.do_sample:
            token = torch.multinomial(scores.softmax(-1), num_samples=1)
        else:
            token = scores.argmax(-1, keepdim=True)
        ids = torch.cat((ids, token), dim=-1)
    return [int(token) for token in ids[0]]


def test_a_row_draws_the_same_whoever_is_beside_it() -> None:
    rule = SamplingRule(top_k=5, top_p=0.9)
    sampler = Sampler(rule, vocabulary=12, device="cpu")
    logits = 3 * torch.randn(4, 12, generator=seeded_generator(1, "cpu"))
    alone = [
        int(sampler.choose(logits[row : row + 1], None, [seeded_generator(row, "cpu")]))
        for row in range(4)
    ]
    together = sampler.choose(logits, None, [seeded_generator(row, "cpu") for row in range(4)])

    assert together.tolist() == alone


def prefilled(length: int, fill: int) -> Any:
    """What a prefill leaves: two layers of two heads, three wide."""
    cache = DynamicCache()
    for layer in range(2):
        block = torch.full((1, 2, length, 3), float(fill + layer))
        cache.update(block, -block, layer)
    return cache


def test_slots_grow_are_masked_and_used_again() -> None:
    slots = SlotCache(slots=2)
    long = slots.occupy(prefilled(300, 1))
    short = slots.occupy(prefilled(2, 5))
    step = slots.step([short, long])
    keys, values = step.update(torch.full((2, 2, 1, 3), 9.0), torch.full((2, 2, 1, 3), 8.0), 1)

    assert keys.shape == values.shape == (2, 2, 301, 3)
    assert step.mask.shape == (2, 1, 1, 301)
    assert step.mask.sum(-1).flatten().tolist() == [3, 301]
    assert keys[0, 0, :4, 0].tolist() == [6, 6, 9, 0]
    assert keys[1, 1, 299:, 2].tolist() == [2, 9]
    assert values[1, 1, 299:, 2].tolist() == [-2, 8]
    slots.vacate(short)
    assert slots.occupied == 1
    again = slots.occupy(prefilled(600, 3))
    assert again == short
    assert slots.step([again]).mask.shape[-1] == 601
