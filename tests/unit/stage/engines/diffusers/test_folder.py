"""A model folder is read and found wanting before anything is loaded from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnistage_common.errors import InvalidWeights
from omnistage_stage.engines.diffusers.arguments import Component
from omnistage_stage.engines.diffusers.folder import Needs, needs_of, read_model_folder

INDEX = {
    "_class_name": "WanPipeline",
    "_diffusers_version": "0.42.1",
    "boundary_ratio": None,
    "expand_timesteps": False,
    "scheduler": ["diffusers", "UniPCMultistepScheduler"],
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "tokenizer": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "transformer_2": [None, None],
    "vae": ["diffusers", "AutoencoderKLWan"],
}
FILES = (
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "tokenizer/tokenizer.json",
    "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors.index.json",
    "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
    "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with everything; no file holds anything real."""
    for file in FILES:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}", encoding="utf-8")
    shards = {f"layer.{index}": Path(FILES[6 + index]).name for index in range(2)}
    (tmp_path / FILES[5]).write_text(json.dumps({"weight_map": shards}), encoding="utf-8")
    write_index(tmp_path, INDEX)
    return tmp_path


def write_index(folder: Path, index: Any) -> None:
    """Writes `model_index.json`."""
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")


def check(folder: Path, component: Component = Component.WHOLE) -> None:
    """What an engine does first."""
    read = read_model_folder(folder)
    read.require(needs_of(component, read.submodules))


def test_a_whole_folder_is_read(model: Path) -> None:
    read = read_model_folder(model)

    assert read.pipeline == "WanPipeline"
    assert sorted(read.submodules) == [
        "scheduler",
        "text_encoder",
        "tokenizer",
        "transformer",
        "vae",
    ]
    assert read.options == {"boundary_ratio": None, "expand_timesteps": False}
    for component in Component:
        check(model, component)


def test_each_component_needs_its_own_and_the_shape_of_others() -> None:
    names = ("scheduler", "text_encoder", "text_encoder_2", "tokenizer", "transformer", "vae")

    assert needs_of(Component.WHOLE, names) == Needs(loaded=names, shapes=())
    assert needs_of(Component.TEXT_ENCODER, names) == Needs(
        loaded=("text_encoder", "text_encoder_2", "tokenizer"), shapes=("transformer", "vae")
    )
    assert needs_of(Component.DENOISER, (*names, "projection_model")) == Needs(
        loaded=("projection_model", "scheduler", "transformer"), shapes=("vae",)
    )
    assert needs_of(Component.DECODER, names) == Needs(loaded=("vae",), shapes=("transformer",))


@pytest.mark.parametrize(
    ("file", "component", "words"),
    [
        (FILES[0], Component.DENOISER, "scheduler/ has no scheduler_config.json"),
        (FILES[1], Component.TEXT_ENCODER, "text_encoder/config.json is missing"),
        (FILES[2], Component.TEXT_ENCODER, "text_encoder/ has no *.safetensors"),
        (FILES[3], Component.TEXT_ENCODER, "tokenizer/ has no tokenizer_config.json"),
        (FILES[4], Component.DECODER, "transformer/config.json is missing"),
        (FILES[7], Component.DENOISER, f"names {FILES[7]}, which is missing"),
        (FILES[8], Component.TEXT_ENCODER, "vae/config.json is missing"),
        (FILES[9], Component.DECODER, "vae/ has no *.safetensors"),
    ],
)
def test_a_missing_file_is_named(model: Path, file: str, component: Component, words: str) -> None:
    (model / file).unlink()

    for needing in (component, Component.WHOLE):
        with pytest.raises(InvalidWeights) as refused:
            check(model, needing)
        assert words in refused.value.message
        assert refused.value.field == "model"


def test_everything_that_is_missing_is_named_at_once(model: Path) -> None:
    (model / FILES[9]).unlink()
    (model / FILES[2]).unlink()
    (model / "tokenizer" / "tokenizer.json").unlink()
    (model / "tokenizer").rmdir()

    with pytest.raises(InvalidWeights) as refused:
        check(model)

    for words in ("vae/ has no", "text_encoder/ has no", "there is no folder tokenizer/"):
        assert words in refused.value.message


def test_what_only_other_components_need_may_be_missing(model: Path) -> None:
    (model / FILES[9]).unlink()
    check(model, Component.DENOISER)
    check(model, Component.TEXT_ENCODER)
    (model / FILES[6]).unlink()
    check(model, Component.TEXT_ENCODER)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ([], "is not a JSON object"),
        ({}, "_class_name is None"),
        ({"_class_name": ["my_pipeline", "MyPipeline"]}, "code of their own"),
        ({"_class_name": "X", "vae": ["diffusers"]}, "vae is ['diffusers']"),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, index: Any, words: str) -> None:
    write_index(tmp_path, index)

    with pytest.raises(InvalidWeights) as refused:
        read_model_folder(tmp_path)
    assert words in refused.value.message
    assert "model_index.json" in refused.value.message


def test_a_folder_in_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidWeights, match=r"no model_index\.json"):
        read_model_folder(tmp_path)
    (tmp_path / "model_index.json").write_bytes(b"\xff{")
    with pytest.raises(InvalidWeights, match="is not JSON"):
        read_model_folder(tmp_path)


def test_a_component_of_which_the_model_has_nothing_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, {"_class_name": "X", "unet": ["diffusers", "UNet2DModel"]})

    with pytest.raises(InvalidWeights, match="it names unet"):
        check(tmp_path, Component.DECODER)


def test_an_index_of_shards_that_lists_none_is_refused(model: Path) -> None:
    (model / FILES[5]).write_text("[]", encoding="utf-8")

    with pytest.raises(InvalidWeights, match="no object weight_map"):
        check(model, Component.DENOISER)
