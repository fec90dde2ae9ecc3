"""Small processes stay small: what their entry points must not pull in."""

import json
import subprocess
import sys

import pytest

RUNTIMES = {"torch", "vllm", "transformers", "onnxruntime", "hibari", "pocketsphinx", "gguf"}
OTHERS = {"omnistage_cli", "typer", "openai", "yaml"}


def modules_after(entry_point: str) -> set[str]:
    """Top-level names in `sys.modules` of a fresh process that imported one module."""
    script = f"import json, sys, {entry_point}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize(
    ("entry_point", "unwanted"),
    [
        (
            "omnistage_stage.__main__",
            RUNTIMES | OTHERS | {"numpy", "pydantic", "fastapi", "omnistage_gateway"},
        ),
        ("omnistage_gateway.__main__", RUNTIMES | OTHERS | {"omnistage_stage"}),
        ("omnistage_cli.__main__", RUNTIMES | {"numpy", "fastapi"}),
    ],
)
def test_an_entry_point_imports_no_more_than_it_needs(entry_point: str, unwanted: set[str]) -> None:
    assert modules_after(entry_point) & unwanted == set()


def test_the_gateway_does_without_the_models_of_the_resources() -> None:
    script = (
        "import sys, omnistage_gateway.__main__;"
        "sys.exit('omnistage_common.pipeline.resources' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", script], check=True)
