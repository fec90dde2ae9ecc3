"""An engine's module can be imported, and its arguments checked, where its runtime is not."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CHECK = textwrap.dedent(
    """
    import sys

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {absent}:
                raise ImportError(f"{{name}} is not here")

    sys.meta_path.insert(0, Absent())

    import asyncio
    from fakes.engine_io import engine_spec
    from omnistage_common.errors import MissingDependency, SetupError
    from omnistage_common.payloads import PayloadKind
    from {module} import {engine}

    made = {engine}(engine_spec({{PayloadKind.{kind}.value: PayloadKind.{kind}}}, model="{model}"))
    try:
        {engine}(engine_spec({{PayloadKind.{kind}.value: PayloadKind.{kind}}}, nonsense=1))
    except SetupError as error:
        assert error.field == "engineArgs.nonsense"

    async def load():
        try:
            await made.load()
        except MissingDependency as error:
            return error.message
        finally:
            await made.close()

    print(asyncio.run(load()))
    """
)
RUNTIMES = {"torch", "vllm", "transformers", "onnxruntime", "hibari", "pocketsphinx", "gguf"}


@pytest.mark.parametrize(
    ("module", "engine", "kind", "extra"),
    [
        ("omnistage_stage.engines.hibari", "HibariEngine", "WAVEFORM", "omnistage[onnx]"),
        (
            "omnistage_stage.engines.pocketsphinx",
            "PocketsphinxEngine",
            "TEXT",
            "omnistage[recognition]",
        ),
        ("omnistage_stage.engines.vllm", "VllmEngine", "TEXT", "omnistage[vllm]"),
    ],
)
def test_an_engine_without_its_runtime_says_what_to_install(
    tmp_path_factory: pytest.TempPathFactory, module: str, engine: str, kind: str, extra: str
) -> None:
    model = tmp_path_factory.mktemp("model")
    (model / "config.json").write_text("{}", encoding="utf-8")
    script = CHECK.format(
        absent=RUNTIMES, module=module, engine=engine, kind=kind, model=model.as_uri()
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=60,
    )

    assert f"pip install '{extra}'" in done.stdout
