"""torchvision can be imported beside a torch whose build its operators do not fit."""

import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from omnistage_stage.engines.vllm.vision_operators import ensure_torchvision

SCRIPT = textwrap.dedent(
    """
    import os
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

    from omnistage_stage.engines.vllm.vision_operators import ensure_torchvision

    architecture = "Qwen2VLForConditionalGeneration"
    assert ensure_torchvision([architecture, "NoSuchArchitecture"])
    assert not ensure_torchvision([architecture])

    import torch
    import torchvision
    from torchvision.transforms.v2 import functional
    from vllm import ModelRegistry

    assert {folder!r} in torchvision.__file__
    resized = functional.resize(torch.ones(3, 8, 8), [4, 4])
    assert resized.shape == (3, 4, 4)
    try:
        torchvision.ops.nms(torch.ones(1, 4), torch.ones(1), 0.5)
    except (NotImplementedError, RuntimeError) as error:
        print("nms:", type(error).__name__)
    # What vLLM knows of the class already, it does not look at in a process of its own.
    print("looked at:", hasattr(ModelRegistry.models[architecture], "model_cls"))
    """
)


def test_where_the_operators_are_there_nothing_is_done() -> None:
    assert not ensure_torchvision(["Qwen2VLForConditionalGeneration"])


def test_signatures_are_declared_where_the_operators_cannot_be_loaded(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    spec = find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(Path(spec.origin).parent, folder / "torchvision")
    for library in (folder / "torchvision").glob("*.so"):
        library.write_text("of another build", encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(folder=str(folder))],
        capture_output=True,
        text=True,
        cwd=folder,  # from where a script given by -c imports first
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert "nms:" in done.stdout
    assert "looked at: True" in done.stdout
