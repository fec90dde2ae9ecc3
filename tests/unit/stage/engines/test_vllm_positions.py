"""Positions of prompts out of vLLM: each request's own, once."""

from types import SimpleNamespace
from typing import Any

import pytest

from omnistage_common.errors import SetupError
from omnistage_common.payloads import ElementType
from omnistage_stage.engines.vllm.positions import PromptPositions

torch: Any = pytest.importorskip("torch")


def runner(**requests: Any) -> Any:
    """A model runner with these requests under way: name -> [3, tokens]."""
    held = {
        name: SimpleNamespace(mrope_positions=torch.tensor(positions))
        for name, positions in requests.items()
    }
    return SimpleNamespace(uses_mrope=True, requests=held)


def test_each_request_gets_its_own_positions_once() -> None:
    positions = PromptPositions(
        runner(a=[[0, 1, 1], [0, 1, 2], [0, 1, 1]], b=[[4, 9], [5, 9], [6, 9]])
    )
    positions.begin("a", 3)
    positions.begin("b", 1)

    first, second = positions.take("a"), positions.take("b")

    assert first is not None
    assert (first.header.shape, first.header.element_type) == ((3, 3), ElementType.INT64)
    assert memoryview(first.data).cast("q").tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 1]
    assert second is not None
    assert memoryview(second.data).cast("q").tolist() == [4, 5, 6]
    assert positions.take("a") is None
    assert positions.requests == 0


def test_what_is_generated_has_no_place_among_them() -> None:
    positions = PromptPositions(runner(a=[[0, 1, 2], [0, 1, 2], [0, 1, 2]]))
    positions.begin("a", 2)

    taken = positions.take("a")

    assert taken is not None
    assert taken.header.shape == (2, 3)


def test_a_forgotten_request_is_not_looked_for() -> None:
    positions = PromptPositions(runner())
    positions.begin("a", 2)
    positions.end("a")

    assert positions.take("a") is None
    assert positions.requests == 0


def test_a_model_with_plain_positions_is_refused_by_the_outputs_name() -> None:
    with pytest.raises(SetupError, match="prompt_positions") as refused:
        PromptPositions(SimpleNamespace(uses_mrope=False))
    assert refused.value.field == "produces"
