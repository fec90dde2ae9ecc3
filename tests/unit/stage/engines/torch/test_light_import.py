"""A torch stage is made and checked without its runtime, and says what to install when it lacks it."""

import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = textwrap.dedent(
    """
    import asyncio
    import sys

    from fakes.engine_io import engine_spec
    from omnistage_common.errors import MissingDependency
    from omnistage_common.payloads import PayloadKind
    from omnistage_stage.engines.torch import TorchEngine

    made = TorchEngine(
        engine_spec({"out": PayloadKind.CODEC_FRAMES}, model="file:///none", component="talker")
    )
    assert not {"torch", "transformers", "numpy"} & set(sys.modules)

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {"torch", "transformers"}:
                raise ImportError(f"{name} is not here")

    sys.meta_path.insert(0, Absent())

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


def test_an_engine_without_torch_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[4],
        timeout=60,
    )

    assert "pip install 'omnistage[torch]'" in done.stdout
