"""Six families of diffusion models: whole and split, they make what diffusers itself makes.

To the last bit, in float32 and with the same seed: latents, pixels and samples, alone and with
others in flight. Where a batch changes the order of summation, by how much is said here.
"""

import asyncio
import warnings
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from diffusers import DiffusionPipeline

from fakes.diffusion import TINY, TinyFamily, ask, decoded, engine_for, made, ports, split_engines
from fakes.engine_io import RecordedOutputs
from omnistage_common.payloads import PayloadKind, Tensor
from omnistage_stage.engines.diffusers import DiffusersEngine
from omnistage_stage.weights import silent, weights_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPTS = ("a cat on the moon", "rain", "a lighthouse at dawn", "the sea, seen from afar")
BATCHED = 2e-5
"""How far latents of a batch of four may be from those made alone, where the largest is about 5."""


class Bench:
    """One family: diffusers' own pipeline and our engines."""

    def __init__(
        self,
        family: TinyFamily,
        pipeline: Any,
        whole: DiffusersEngine,
        split: Mapping[str, DiffusersEngine],
    ) -> None:
        self.family = family
        self.pipeline = pipeline
        self.whole = whole
        self.split = split
        self._known: dict[str, Any] = {}

    def reference(self, prompt: str, seed: int, output_type: str, **asked: Any) -> Any:
        """What the pipeline makes when it is called as its users call it."""
        key = repr((prompt, seed, output_type, asked))
        if key not in self._known:
            self._known[key] = self.pipeline(
                prompt=prompt,
                generator=torch.Generator().manual_seed(seed),
                output_type=output_type,
                **(self.family.called | asked),
            )[0]
        return self._known[key]

    def expected(self, prompt: str, seed: int, **asked: Any) -> Any:
        """The same, as an engine would hand it over."""
        if self.family.kind is PayloadKind.WAVEFORM:
            return self.reference(prompt, seed, "np", **asked)[0].T
        (made_,) = self.reference(prompt, seed, "pil", **asked)
        if self.family.kind is PayloadKind.IMAGE:
            return np.asarray(made_)
        return np.stack([np.asarray(frame) for frame in made_])


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TINY)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    family = TINY[request.param]
    torch.set_num_threads(1)
    async with engine_for(family) as whole, split_engines(family) as split:
        for engine in (whole, *split.values()):
            await engine.probe()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*weight_norm.* is deprecated")
            pipeline = DiffusionPipeline.from_pretrained(weights_of(family.model).prepare(silent))
        pipeline.set_progress_bar_config(disable=True)
        yield Bench(family, pipeline, whole, split)
        assert [engine.active for engine in (whole, *split.values())] == [0, 0, 0, 0]


def array(tensor: Tensor) -> Any:
    """A tensor's elements."""
    kind = np.dtype(tensor.header.element_type.value)
    return np.frombuffer(tensor.data, kind).reshape(tensor.header.shape)


def arrays(outputs: RecordedOutputs) -> list[Any]:
    """The elements of all tensors, in order."""
    return [array(tensor) for tensor in outputs.tensors]


async def test_whole_it_makes_what_the_pipeline_makes(bench: Bench) -> None:
    outputs = await made(bench.whole, ask(bench.family, PROMPTS[0], seed=11))

    ((name, index, payload),) = outputs.pieces
    assert (name, index, payload.kind) == (bench.family.kind.value, 0, bench.family.kind)
    (result,) = arrays(outputs)
    np.testing.assert_array_equal(result, bench.expected(PROMPTS[0], 11))
    assert len(np.unique(result)) > 3


async def test_split_it_makes_what_the_pipeline_makes(bench: Bench) -> None:
    latents, outputs = await decoded(bench.split, bench.family, PROMPTS[1], seed=12)

    (got,) = arrays(latents)
    wanted = bench.reference(PROMPTS[1], 12, "latent").numpy()
    np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)
    (result,) = arrays(outputs)
    np.testing.assert_array_equal(result, bench.expected(PROMPTS[1], 12))


async def test_a_negative_prompt_does_the_same_in_all_three(bench: Bench) -> None:
    asked: dict[str, Any] = {"negative_prompt": "blurred, dark"}
    whole = await made(bench.whole, ask(bench.family, PROMPTS[2], **asked))
    latents, split = await decoded(bench.split, bench.family, PROMPTS[2], **asked)
    plain, _ = await decoded(bench.split, bench.family, PROMPTS[2])

    expected = bench.expected(PROMPTS[2], 7, **asked)
    np.testing.assert_array_equal(arrays(whole)[0], expected)
    np.testing.assert_array_equal(arrays(split)[0], expected)
    assert not np.array_equal(arrays(latents)[0], arrays(plain)[0])


async def test_without_guidance_nothing_negative_is_encoded_and_nothing_is_missed(
    bench: Bench,
) -> None:
    asked: dict[str, Any] = {"guidance_scale": 1.0}
    if bench.family.asked.true_cfg_scale is not None:
        asked["true_cfg_scale"] = 1.0
    embeddings = await made(bench.split["text-encoder"], ask(bench.family, PROMPTS[0], **asked))
    _, split = await decoded(bench.split, bench.family, PROMPTS[0], **asked)

    assert not [name for name, _, _ in embeddings.pieces if name.startswith("negative")]
    np.testing.assert_array_equal(arrays(split)[0], bench.expected(PROMPTS[0], 7, **asked))


async def test_the_second_of_two_is_what_the_next_seed_makes(bench: Bench) -> None:
    whole = await made(bench.whole, ask(bench.family, PROMPTS[0], seed=3, count=2))
    _, split = await decoded(bench.split, bench.family, PROMPTS[0], seed=3, count=2)

    for outputs in (whole, split):
        assert [index for _, index, _ in outputs.pieces] == [0, 1]
        for index, result in enumerate(arrays(outputs)):
            np.testing.assert_array_equal(result, bench.expected(PROMPTS[0], 3 + index))


async def test_four_in_flight_make_what_each_makes_alone(bench: Bench) -> None:
    whole = [made(bench.whole, ask(bench.family, p, seed=i)) for i, p in enumerate(PROMPTS)]
    split = [decoded(bench.split, bench.family, p, seed=i) for i, p in enumerate(PROMPTS)]
    wholly, splitly = await asyncio.gather(asyncio.gather(*whole), asyncio.gather(*split))

    for index, (one, (_, other)) in enumerate(zip(wholly, splitly, strict=True)):
        expected = bench.expected(PROMPTS[index], index)
        np.testing.assert_array_equal(arrays(one)[0], expected)
        np.testing.assert_array_equal(arrays(other)[0], expected)


async def test_in_a_batch_of_four_latents_are_the_same_up_to_rounding(bench: Bench) -> None:
    family = bench.family
    encoder = bench.split["text-encoder"]
    prompts = (PROMPTS[0],) * 4 if family.name == "qwen-image" else PROMPTS
    encoded = [await made(encoder, ask(family, prompt)) for prompt in prompts]
    requests = [
        ask(family, "", seed=seed, inputs=ports(outputs)) for seed, outputs in enumerate(encoded)
    ]
    alone = [await made(bench.split["denoiser"], request) for request in requests]
    async with engine_for(family, "denoiser", max_batch=4, max_wait=10) as batching:
        together = await asyncio.gather(*(made(batching, request) for request in requests))

    assert [len(outputs.steps) for outputs in together] == [2, 2, 2, 2]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(arrays(one)[0], arrays(other)[0], rtol=0, atol=BATCHED)
