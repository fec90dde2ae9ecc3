"""The diffusers engine in service: progress, cancellation, batches, refusals, and folders that lack."""

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from fakes.diffusion import TINY, ask, decoded, engine_for, made, ports, split_engines
from fakes.engine_io import RecordedOutputs, conversation, engine_request, engine_spec, user_message
from omnistage_common.errors import (
    EngineFailed,
    InvalidRequest,
    InvalidWeights,
    SetupError,
    UnsupportedModality,
)
from omnistage_common.payloads import DiffusionParameters, Parameters, PayloadKind
from omnistage_stage.engines.diffusers import DiffusersEngine
from omnistage_stage.weights import silent, weights_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SD3 = TINY["stable-diffusion-3"]
MANY_STEPS = 200


class Watched(RecordedOutputs):
    """Says when the first step is done."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    def progress(self, done: int, total: int) -> None:
        """Keeps how far it is."""
        super().progress(done, total)
        self.begun.set()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[DiffusersEngine]:
    """Makes images, one by one."""
    async with engine_for(SD3) as loaded:
        yield loaded
        assert loaded.active == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def batching() -> AsyncIterator[DiffusersEngine]:
    """Makes two images at a time."""
    async with engine_for(SD3, max_batch=2, max_wait=10) as loaded:
        yield loaded
        assert loaded.active == 0


def folder_of(name: str, target: Path) -> Path:
    """A copy of a tiny checkpoint, to be changed."""
    return Path(shutil.copytree(weights_of(f"tiny://{name}").prepare(silent), target / name))


async def load(component: str, folder: Path, **args: Any) -> None:
    """Loads an engine from a folder, only to close it."""
    loading = DiffusersEngine(
        engine_spec(
            SD3.produces(component), model=folder.as_uri(), **{"component": component, **args}
        )
    )
    try:
        await loading.load()
    finally:
        await loading.close()


async def idle(engine: DiffusersEngine) -> None:
    """Returns when nothing is computed any more: what comes next has been computed."""
    await engine.probe()


async def test_each_step_is_told_and_the_last_one_is_the_total(engine: DiffusersEngine) -> None:
    outputs = await made(engine, ask(SD3, "rain", steps=3, count=2))

    assert outputs.steps == [(1, 6), (2, 6), (3, 6), (4, 6), (5, 6), (6, 6)]


async def test_the_prompt_is_what_the_user_said_last(engine: DiffusersEngine) -> None:
    said = conversation(user_message("a dog"), user_message("a cat", "on the moon"))
    asked = Parameters(seed=7, diffusion=SD3.asked)
    outputs = await made(engine, engine_request({"conversation": (said,)}, asked))
    expected = await made(engine, ask(SD3, "a cat\non the moon"))

    assert outputs.tensors == expected.tensors


async def test_without_a_seed_every_result_is_another(engine: DiffusersEngine) -> None:
    first = await made(engine, ask(SD3, "rain", seed=None))
    second = await made(engine, ask(SD3, "rain", seed=None))

    assert first.tensors != second.tensors


async def test_a_cancelled_request_stops_at_its_next_step(engine: DiffusersEngine) -> None:
    before = await made(engine, ask(SD3, "rain"))
    outputs = Watched()
    request = ask(SD3, "rain", steps=MANY_STEPS)
    task = asyncio.create_task(engine.run(request, outputs))
    await outputs.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    told = len(outputs.steps)
    await idle(engine)

    assert told < MANY_STEPS
    assert len(outputs.steps) == told
    assert engine.active == 0
    assert (await made(engine, ask(SD3, "rain"))).tensors == before.tensors


async def test_a_request_cancelled_while_it_waits_is_never_begun(engine: DiffusersEngine) -> None:
    first, second = Watched(), Watched()
    running = asyncio.create_task(engine.run(ask(SD3, "rain", steps=MANY_STEPS), first))
    await first.begun.wait()
    waiting = asyncio.create_task(engine.run(ask(SD3, "snow"), second))
    await asyncio.sleep(0)
    assert engine.active == 2
    waiting.cancel()
    running.cancel()
    await asyncio.wait([running, waiting])
    await idle(engine)

    assert not second.steps
    assert engine.active == 0


async def test_one_of_a_batch_leaves_and_the_other_gets_what_it_would_have_got(
    batching: DiffusersEngine,
) -> None:
    pair = [ask(SD3, "rain", steps=20), ask(SD3, "snow", seed=8, steps=20)]
    undisturbed = await asyncio.gather(*(made(batching, request) for request in pair))
    leaving, staying = Watched(), RecordedOutputs()
    left = asyncio.create_task(batching.run(pair[0], leaving))
    stayed = asyncio.create_task(batching.run(pair[1], staying))
    await leaving.begun.wait()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert not stayed.done()
    await stayed

    assert not leaving.tensors
    assert staying.tensors == undisturbed[1].tensors


async def test_when_all_of_a_batch_have_left_it_stops(batching: DiffusersEngine) -> None:
    watched = [Watched(), Watched()]
    tasks = [
        asyncio.create_task(batching.run(ask(SD3, "rain", steps=MANY_STEPS), outputs))
        for outputs in watched
    ]
    await watched[0].begun.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await idle_pair(batching)

    assert all(len(outputs.steps) < MANY_STEPS for outputs in watched)
    assert batching.active == 0


async def idle_pair(batching: DiffusersEngine) -> None:
    """The same as `idle`, without waiting for company."""
    await asyncio.gather(batching.probe(), batching.probe())


async def test_alike_requests_share_their_steps_and_others_do_not(
    batching: DiffusersEngine,
) -> None:
    outputs = await asyncio.gather(
        made(batching, ask(SD3, "rain", steps=4)),
        made(batching, ask(SD3, "rain", steps=5, count=2)),
        made(batching, ask(SD3, "snow", steps=4)),
    )

    assert [one.steps[-1] for one in outputs] == [(4, 4), (10, 10), (4, 4)]
    # Both images of one request move together.
    assert outputs[1].steps[1::2] == [(2, 10), (4, 10), (6, 10), (8, 10), (10, 10)]


async def test_a_refused_request_leaves_its_company_alone(batching: DiffusersEngine) -> None:
    results = await asyncio.gather(
        made(batching, ask(SD3, "rain")),
        made(batching, ask(SD3, "rain", width=60)),
        made(batching, ask(SD3, "snow")),
        return_exceptions=True,
    )

    assert isinstance(results[1], InvalidRequest)
    assert all(isinstance(results[index], RecordedOutputs) for index in (0, 2))


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"width": 60}, "size", "multiples of 8"),
        ({"width": 4096, "height": 4096}, "size", "4194304"),
        ({"steps": 300}, "steps", "from 1 to 200"),
        ({"count": 11}, "n", "from 1 to 10"),
        ({"frames": 9}, "frames", "cannot be told its frames"),
        ({"true_cfg_scale": 2.0}, "true_cfg_scale", "cannot be told"),
        ({"seconds": 2.0}, "seconds", "cannot be told"),
    ],
)
async def test_what_the_model_cannot_make_is_refused_by_field(
    engine: DiffusersEngine, changed: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        await made(engine, ask(SD3, "rain", **changed))

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("family", "changed", "field", "words"),
    [
        ("wan", {"frames": 6}, "frames", "for example 5 or 9"),
        ("wan", {"frames": 1001}, "frames", "from 1 to 257"),
        ("wan", {"height": 40}, "size", "multiples of 16"),
        ("ltx", {"width": 48}, "size", "multiples of 32"),
        ("flux", {"height": 8}, "size", "multiples of 16"),
        ("qwen-image", {"height": 72}, "size", "multiples of 16"),
        ("stable-audio", {"seconds": 60.0}, "seconds", "at most 4.096"),
        ("stable-audio", {"width": 64}, "size", "cannot be told"),
    ],
)
async def test_a_text_encoder_refuses_what_its_denoiser_would(
    family: str, changed: dict[str, Any], field: str, words: str
) -> None:
    tiny = TINY[family]
    async with engine_for(tiny, "text-encoder") as encoder:
        with pytest.raises(InvalidRequest, match=words) as refused:
            await made(encoder, ask(tiny, "rain", **changed))

    assert refused.value.field == field


async def test_a_request_without_words_is_refused(engine: DiffusersEngine) -> None:
    for said in ((), (user_message("  "),)):
        with pytest.raises(InvalidRequest, match="no prompt") as refused:
            await made(engine, engine_request({"conversation": (conversation(*said),)}))
        assert refused.value.field == "prompt"
    with pytest.raises(UnsupportedModality):
        await made(
            engine, engine_request({"conversation": (conversation(user_message("this:", 0)),)})
        )


async def test_stages_that_disagree_on_guidance_fail_with_the_remedy() -> None:
    async with (
        engine_for(SD3, "text-encoder") as encoder,
        engine_for(SD3, "denoiser") as denoiser,
    ):
        outputs = await made(encoder, ask(SD3, "rain", guidance_scale=1.0))
        arrived = ports(outputs)
        twice = {name: payloads * 2 for name, payloads in arrived.items()}
        with pytest.raises(EngineFailed, match="more than one"):
            await made(denoiser, ask(SD3, "", inputs=twice))
        with pytest.raises(
            EngineFailed, match=r"no negative_pooled_prompt_embeds.*same engineArgs"
        ):
            await made(denoiser, ask(SD3, "", inputs=arrived))


async def test_a_decoder_that_gets_nothing_or_another_models_latents_says_so() -> None:
    async with engine_for(SD3, "decoder") as decoder, engine_for(TINY["wan"], "denoiser") as other:
        with pytest.raises(EngineFailed, match="no latents"):
            await made(decoder, ask(SD3, "", inputs={}))
        latents = [payload for ((_, payload),) in await trial_of(other)]
        with pytest.raises(EngineFailed, match=r"it needs 4 dimensions"):
            await made(decoder, ask(SD3, "", inputs={"latents": tuple(latents)}))


async def trial_of(engine: DiffusersEngine) -> list[Any]:
    """What an engine's own trial makes."""
    assembled, batcher = engine._loaded()
    jobs = assembled.part.trial()
    with batcher.submitted(jobs, [lambda _done, _total: None for _ in jobs]) as results:
        return [await result for result in results]


async def test_a_component_holds_its_own_weights_only() -> None:
    async with split_engines(SD3) as engines:
        held = {
            component: {
                name
                for name, part in engine._loaded()[0].part._pipeline.components.items()
                if isinstance(part, torch.nn.Module)
            }
            for component, engine in engines.items()
        }

    assert held == {
        "text-encoder": {"text_encoder", "text_encoder_2", "text_encoder_3"},
        "denoiser": {"transformer"},
        "decoder": {"vae"},
    }


async def test_a_component_needs_no_weights_of_the_others(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = folder_of("stable-diffusion-3", tmp_path_factory.mktemp("split"))
    for other in ("text_encoder", "text_encoder_2", "text_encoder_3", "vae"):
        (folder / other / "model.safetensors").unlink(missing_ok=True)
        (folder / other / "diffusion_pytorch_model.safetensors").unlink(missing_ok=True)
    await load("denoiser", folder)

    with pytest.raises(InvalidWeights, match=r"vae/ has no \*\.safetensors") as refused:
        await load("decoder", folder)
    assert refused.value.field == "model"


async def test_a_pipeline_that_cannot_be_split_runs_whole_and_names_those_that_can(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("ddpm")
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=16,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    pipeline = DDPMPipeline(unet=unet, scheduler=DDPMScheduler())
    pipeline.save_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    with pytest.raises(SetupError, match=r"cannot be split.*WanPipeline.*component: whole"):
        await load("decoder", folder)

    whole = DiffusersEngine(
        engine_spec({"image": PayloadKind.IMAGE}, model=folder.as_uri(), defaults={"steps": 3})
    )
    await whole.load()
    outputs = await made(
        whole, engine_request({}, Parameters(seed=5, diffusion=DiffusionParameters(count=2)))
    )
    await whole.close()

    for index, tensor in enumerate(outputs.tensors):
        generator = torch.Generator().manual_seed(5 + index)
        (expected,) = pipeline(generator=generator, num_inference_steps=3).images
        got = np.frombuffer(tensor.data, np.uint8).reshape(tensor.header.shape)
        np.testing.assert_array_equal(got, np.asarray(expected))
    assert outputs.steps[-1] == (6, 6)


async def test_what_a_pipeline_itself_refuses_is_the_requests_fault() -> None:
    async with engine_for(SD3, defaults={"max_sequence_length": 600}) as engine:
        with pytest.raises(InvalidRequest, match="cannot be greater than 512"):
            await made(engine, ask(SD3, "rain"))


async def test_noise_that_a_decoder_adds_is_the_pipelines_own(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from diffusers import AutoencoderKLLTXVideo, LTXPipeline  # noqa: PLC0415

    folder = folder_of("ltx", tmp_path_factory.mktemp("noised"))
    config = json.loads((folder / "vae" / "config.json").read_bytes())
    torch.manual_seed(1)
    AutoencoderKLLTXVideo.from_config(config | {"timestep_conditioning": True}).save_pretrained(
        folder / "vae"
    )
    call = {"decode_timestep": 0.05, "decode_noise_scale": 0.025}
    family = TINY["ltx"]
    asked = {"model": folder.as_uri(), "call": call}
    pipeline = LTXPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    torch.set_num_threads(1)
    (expected,) = pipeline(
        prompt="rain",
        generator=torch.Generator().manual_seed(7),
        output_type="pil",
        **(family.called | call),
    ).frames
    async with split_engines(family, **asked) as engines:
        _, outputs = await decoded(engines, family, "rain")

    (video,) = outputs.tensors
    got = np.frombuffer(video.data, np.uint8).reshape(video.header.shape)
    np.testing.assert_array_equal(got, np.stack([np.asarray(frame) for frame in expected]))
    assert video.header.rate_hz == 25


async def test_half_precision_is_batched_unless_engine_args_say_otherwise() -> None:
    flux = TINY["flux"]
    async with engine_for(flux, "denoiser", dtype="bfloat16") as engine:
        assert engine._loaded()[0].max_batch == 4
        await asyncio.gather(engine.probe(), engine.probe())
    async with engine_for(flux, "denoiser", dtype="bfloat16", max_batch=2) as engine:
        assert engine._loaded()[0].max_batch == 2
    async with engine_for(flux, "denoiser") as engine:
        assert engine._loaded()[0].max_batch == 1


async def test_a_video_is_played_at_the_rate_that_engine_args_say() -> None:
    wan = TINY["wan"]
    async with engine_for(wan, defaults=wan.defaults | {"frame_rate": 24}) as engine:
        (video,) = (await made(engine, ask(wan, "rain", steps=1))).tensors

    assert video.header.rate_hz == 24


async def test_tiles_change_an_image_and_only_a_stage_that_decodes_can_cut_them(
    engine: DiffusersEngine,
) -> None:
    async with engine_for(SD3, vae_tiling=True, vae_slicing=True) as tiled:
        outputs = await made(tiled, ask(SD3, "rain", width=128, height=128))
    expected = await made(engine, ask(SD3, "rain", width=128, height=128))
    assert outputs.tensors[0].header == expected.tensors[0].header

    with pytest.raises(SetupError) as refused:
        async with engine_for(SD3, "denoiser", vae_tiling=True):
            pass
    assert refused.value.field == "engineArgs.vae_tiling"


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"call": {"clip_skipp": 1}}, "engineArgs.call.clip_skipp"),
        ({"call": {"num_inference_steps": 3}}, "engineArgs.call.num_inference_steps"),
        ({"call": {"generator": 3}}, "engineArgs.call.generator"),
        ({"defaults": {"frames": 9}}, "engineArgs.defaults.frames"),
        ({"device": "cuda:64"}, "engineArgs.device"),
    ],
)
async def test_engine_args_that_the_pipeline_does_not_take_are_refused_by_name(
    args: dict[str, Any], field: str
) -> None:
    with pytest.raises(SetupError) as refused:
        async with engine_for(SD3, **args):
            pass

    assert refused.value.field == field


async def test_a_template_that_expects_something_else_of_the_model_is_refused() -> None:
    video = DiffusersEngine(engine_spec({"video": PayloadKind.VIDEO}, model=SD3.model))
    with pytest.raises(SetupError, match="image"):
        await video.load()
    await video.close()

    fewer = DiffusersEngine(
        engine_spec(
            {"prompt_embeds": PayloadKind.EMBEDDINGS}, model=SD3.model, component="text-encoder"
        )
    )
    with pytest.raises(SetupError, match="pooled_prompt_embeds") as refused:
        await fewer.load()
    await fewer.close()
    assert refused.value.field == "produces"


async def test_a_broken_file_is_named_and_no_thread_is_left(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = folder_of("stable-diffusion-3", tmp_path_factory.mktemp("broken"))
    (folder / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"\0" * 64)
    before = set(threading.enumerate())

    with pytest.raises(InvalidWeights, match=r"vae cannot be loaded as AutoencoderKL"):
        await load("decoder", folder)

    assert set(threading.enumerate()) <= before


async def test_a_closed_engine_ends_what_runs_and_takes_nothing_more() -> None:
    async with engine_for(SD3) as closing:
        outputs = Watched()
        task = asyncio.create_task(closing.run(ask(SD3, "rain", steps=MANY_STEPS), outputs))
        await outputs.begun.wait()
    with pytest.raises(EngineFailed):
        await task
    with pytest.raises(EngineFailed):
        await made(closing, ask(SD3, "rain"))

    assert len(outputs.steps) < MANY_STEPS
