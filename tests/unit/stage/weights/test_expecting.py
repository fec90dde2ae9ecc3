"""A folder is refused for what an engine cannot do without, and for nothing else."""

from pathlib import Path

import pytest

from omnistage_common.errors import InvalidWeights
from omnistage_common.ids import EngineName
from omnistage_stage.weights.__main__ import main
from omnistage_stage.weights.expecting import require_expected


@pytest.mark.parametrize("engine", ["vllm", "torch"])
@pytest.mark.parametrize("weights", ["model.safetensors", "model-00001-of-2.safetensors", "x.bin"])
def test_a_checkpoint_folder_is_accepted(tmp_path: Path, engine: str, weights: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / weights).write_bytes(b"w")

    require_expected(tmp_path, EngineName(engine))


def test_a_pipeline_folder_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")

    require_expected(tmp_path, EngineName("diffusers"))


def test_everything_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidWeights) as refused:
        require_expected(tmp_path, EngineName("vllm"))

    assert refused.value.field == "model"
    assert refused.value.message == (
        f"{tmp_path} has no config.json and no *.safetensors or *.bin or *.pt; the vllm engine "
        "reads a checkpoint folder in Hugging Face format"
    )


def test_a_folder_in_place_of_a_file_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").mkdir()

    with pytest.raises(InvalidWeights, match="has no model_index"):
        require_expected(tmp_path, EngineName("diffusers"))


def test_an_engine_that_says_nothing_takes_any_folder(tmp_path: Path) -> None:
    require_expected(tmp_path, EngineName("mine"))


def test_the_command_refuses_the_folder_for_the_engine_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", tmp_path.as_uri()]) == 0
    assert main(["prepare", "--engine", "torch", tmp_path.as_uri()]) == 1
    assert "has no config.json" in capsys.readouterr().err
