"""`engineArgs` of the diffusers engine, and templates that do not fit a component."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fakes.engine_io import engine_spec
from omnistage_common.errors import SetupError
from omnistage_common.ids import OutputName
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.arguments import parse_arguments
from omnistage_stage.engines.diffusers import DiffusersEngine
from omnistage_stage.engines.diffusers.arguments import Component, DiffusersArguments
from omnistage_stage.engines.diffusers.assembling import check_outputs
from omnistage_stage.engines.diffusers.families import FAMILIES, require_family
from omnistage_stage.engines.diffusers.jobs import Job
from omnistage_stage.engines.protocol import InputSpec

IMAGE, VIDEO, LATENTS = PayloadKind.IMAGE, PayloadKind.VIDEO, PayloadKind.LATENTS
EMBEDDINGS = PayloadKind.EMBEDDINGS


def test_values_are_read() -> None:
    read = parse_arguments(
        {
            "component": "text-encoder",
            "dtype": "bfloat16",
            "device": "cuda:1",
            "defaults": {"steps": 4, "guidance_scale": 2},
            "limits": {"max_steps": 8},
        },
        DiffusersArguments,
    )

    assert read.component is Component.TEXT_ENCODER
    assert (read.defaults.steps, read.defaults.guidance_scale) == (4, 2.0)
    assert (read.limits.max_steps, read.limits.max_count) == (8, 10)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"component": "vae"}, "component"),
        ({"dtype": "int8"}, "dtype"),
        ({"device": "gpu"}, "device"),
        ({"max_batch": 0}, "max_batch"),
        ({"max_wait": -1}, "max_wait"),
        ({"defaults": {"step": 4}}, "step"),
        ({"limits": {"max_pixels": 0}}, "limits"),
        ({"omp_threads": 0}, "omp_threads"),
        ({"componnent": "whole"}, "did you mean 'component'"),
    ],
)
def test_bad_values_are_refused_when_the_engine_is_made(args: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words) as refused:
        DiffusersEngine(engine_spec({"image": IMAGE}, **args))
    assert refused.value.field.startswith("engineArgs.")


@pytest.mark.parametrize(
    ("component", "produces"),
    [
        (Component.WHOLE, {"image": IMAGE}),
        (Component.WHOLE, {"clip": VIDEO}),
        (Component.DECODER, {"sound": PayloadKind.WAVEFORM}),
        (Component.DENOISER, {"latents": LATENTS}),
        (Component.TEXT_ENCODER, {"prompt_embeds": EMBEDDINGS}),
    ],
)
def test_templates_that_fit(component: Component, produces: dict[str, PayloadKind]) -> None:
    check_outputs(engine_spec(produces), component)


@pytest.mark.parametrize(
    ("component", "produces"),
    [
        (Component.WHOLE, {}),
        (Component.WHOLE, {"image": IMAGE, "video": VIDEO}),
        (Component.WHOLE, {"text": PayloadKind.TEXT}),
        (Component.DECODER, {"latents": LATENTS}),
        (Component.DENOISER, {"image": IMAGE}),
        (Component.TEXT_ENCODER, {}),
        (Component.TEXT_ENCODER, {"prompt_embeds": EMBEDDINGS, "image": IMAGE}),
    ],
)
def test_templates_that_do_not_fit_are_refused(
    component: Component, produces: dict[str, PayloadKind]
) -> None:
    with pytest.raises(SetupError) as refused:
        check_outputs(engine_spec(produces), component)
    assert refused.value.field == "produces"


def test_an_edge_that_streams_is_refused() -> None:
    spec = structs.replace(
        engine_spec({"latents": LATENTS}),
        consumes={OutputName("prompt_embeds"): InputSpec(kind=EMBEDDINGS, streams=True)},
    )

    with pytest.raises(SetupError, match="prompt_embeds whole") as refused:
        check_outputs(spec, Component.DENOISER)
    assert refused.value.field == "consumes"


def test_a_class_that_cannot_be_split_is_refused_with_those_that_can() -> None:
    for known in FAMILIES:
        require_family(known)
    with pytest.raises(SetupError) as refused:
        require_family("SanaPipeline")

    assert all(known in refused.value.message for known in FAMILIES)
    assert refused.value.field == "engineArgs.component"


def test_jobs_are_alike_by_arguments_and_shapes_and_not_by_prompts_and_seeds() -> None:
    class Shaped:
        def __init__(self, *shape: int) -> None:
            self.shape = shape

    def job(**changed: Any) -> Job:
        usual: dict[str, Any] = {"arguments": {"steps": 4}, "tensors": {"row": Shaped(1, 8)}}
        return Job(**(usual | changed))

    assert job(prompt="a", seed=1).key == job(prompt="b", seed=2).key
    others = (
        job(arguments={"steps": 5}),
        job(arguments={"steps": 4.0}),
        job(tensors={"row": Shaped(1, 9)}),
        job(tensors={}),
        job(negative_prompt="dark"),
    )
    assert all(other.key != job().key for other in others)


ABSENT = textwrap.dedent(
    """
    import sys

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {"torch", "diffusers", "transformers", "numpy"}:
                raise ImportError(f"{name} is not here")

    sys.meta_path.insert(0, Absent())

    import asyncio
    from fakes.engine_io import engine_spec
    from omnistage_common.errors import MissingDependency
    from omnistage_common.payloads import PayloadKind
    from omnistage_stage.engines.diffusers import DiffusersEngine

    engine = DiffusersEngine(engine_spec({"image": PayloadKind.IMAGE}, model=sys.argv[1]))

    async def load():
        try:
            await engine.load()
        except MissingDependency as error:
            return error.message
        finally:
            await engine.close()

    print(asyncio.run(load()))
    """
)


def test_without_diffusers_the_engine_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "config.json").touch()
    (tmp_path / "unet" / "model.safetensors").touch()
    (tmp_path / "model_index.json").write_text(
        '{"_class_name": "DDPMPipeline", "unet": ["diffusers", "UNet2DModel"]}', encoding="utf-8"
    )

    done = subprocess.run(
        [sys.executable, "-c", ABSENT, tmp_path.as_uri()],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[4],
        timeout=60,
    )

    assert "pip install 'omnistage[diffusers]'" in done.stdout
