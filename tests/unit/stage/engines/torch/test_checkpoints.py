"""A checkpoint folder is looked at before anything is imported: what is missing is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnistage_common.errors import InvalidWeights
from omnistage_stage.engines.torch.checkpoints import open_checkpoint

CONFIG = {"model_type": "qwen3_omni_moe", "talker_config": {"speaker_id": {"ethan": 7}}}


def folder_with(path: Path, config: Any = CONFIG, **files: str) -> Path:
    """A folder with a configuration and other files."""
    text = config if isinstance(config, str) else json.dumps(config)
    (path / "config.json").write_text(text, encoding="utf-8")
    for name, content in files.items():
        (path / name.replace("__", ".")).write_text(content, encoding="utf-8")
    return path


def test_a_whole_folder_opens_and_its_values_are_found_by_path(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder_with(tmp_path, model__safetensors=""))

    assert checkpoint.model_type == "qwen3_omni_moe"
    assert checkpoint.require("talker_config.speaker_id.ethan") == 7
    assert checkpoint.require_file("model.safetensors") == tmp_path / "model.safetensors"


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidWeights, match=r"no readable config\.json") as refused:
        open_checkpoint(tmp_path)
    assert refused.value.field == "model"


@pytest.mark.parametrize("config", ["{", "[]", "{}", '{"model_type": 3}'])
def test_a_configuration_that_says_no_family_is_refused(tmp_path: Path, config: str) -> None:
    with pytest.raises(InvalidWeights, match=r"config\.json (is not JSON|has no model_type)"):
        open_checkpoint(folder_with(tmp_path, config, model__safetensors=""))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidWeights, match=r"neither model\.safetensors nor"):
        open_checkpoint(folder_with(tmp_path))


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    folder = folder_with(
        tmp_path,
        model__safetensors__index__json=json.dumps(index),
        one__safetensors="",
    )

    with pytest.raises(InvalidWeights, match=r"no two\.safetensors, which model\.safetensors\.i"):
        open_checkpoint(folder)


def test_an_index_without_a_map_is_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, model__safetensors__index__json="{}")

    with pytest.raises(InvalidWeights, match=r"index\.json has no weight_map"):
        open_checkpoint(folder)


@pytest.mark.parametrize("field", ["code2wav_config", "talker_config.codec", "model_type.part"])
def test_a_value_that_is_not_there_is_named_with_its_file(tmp_path: Path, field: str) -> None:
    checkpoint = open_checkpoint(folder_with(tmp_path, model__safetensors=""))

    with pytest.raises(InvalidWeights, match=rf"config\.json has no {field}"):
        checkpoint.require(field)
    with pytest.raises(InvalidWeights, match=r"has no spk_dict\.pt"):
        checkpoint.require_file("spk_dict.pt")
