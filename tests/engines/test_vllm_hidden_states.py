"""Rows of hidden states: from the right layer, each position once, in the model's own precision.

The model here is a few lines of torch with the shape of vLLM's: a runner with a batch, and layers
that hand on what is still to be added to the residual beside the residual.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from omnistage_common.errors import EngineFailed, SetupError
from omnistage_common.payloads import ElementType, Tensor
from omnistage_stage.engines.vllm.hidden_states import HiddenStates, observed_layer

WIDTH = 4
LAYERS = 3


class Part(torch.nn.Module):  # type: ignore[misc]
    """A part of the model."""


class Layer(Part):
    """Adds one to the residual."""

    def forward(self, _positions: Any, states: Any, residual: Any) -> Any:
        """The layer."""
        residual = states if residual is None else states + residual
        return torch.ones_like(residual), residual


class Stack(Part):
    """Layers and a norm that makes everything negative."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, states: Any) -> Any:
        """The model proper."""
        residual = None
        for layer in self.layers:
            states, residual = layer(None, states, residual)
        return -(states + residual)


class Model(Part):
    """What the runner calls."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Stack()

    def forward(self, states: Any) -> Any:
        """The whole model."""
        return self.model(states)


class Runner:
    """Runs steps in which a request's state at position p is p + 1000 x its number."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.model = Model()
        self.input_batch = SimpleNamespace(
            req_ids=[], num_computed_tokens_cpu=np.zeros(8, np.int32)
        )
        self.query_start_loc = SimpleNamespace(np=np.zeros(9, np.int32))
        self._dtype = dtype

    def step(self, *parts: tuple[int, int, int], padding: int = 0) -> None:
        """Computes positions from (inclusive) to (exclusive) of requests (number, from, to)."""
        self.input_batch.req_ids = [f"{number}-abc" for number, _, _ in parts]
        bounds = np.cumsum([0, *(end - begin for _, begin, end in parts)])
        self.query_start_loc.np[: len(bounds)] = bounds
        self.input_batch.num_computed_tokens_cpu[: len(parts)] = [begin for _, begin, _ in parts]
        states = [float(p + 1000 * n) for n, begin, end in parts for p in range(begin, end)]
        column = torch.tensor(states + [0.0] * padding, dtype=self._dtype)[:, None]
        self.model(column.expand(-1, WIDTH).contiguous())


def numbers(tensor: Tensor | None) -> list[float] | None:
    """The first column of rows that are equal in every column."""
    if tensor is None:
        return None
    rows = np.frombuffer(tensor.data, tensor.header.element_type.value).reshape(tensor.header.shape)
    assert (rows == rows[:, :1]).all()
    return [float(number) for number in rows[:, 0]]


def taken(hidden: HiddenStates, number: int, *, last: bool = False) -> tuple[Any, Any]:
    prompt, generated = hidden.take(f"{number}-abc", last=last)
    return numbers(prompt), numbers(generated)


def collecting(
    runner: Runner, *, layer: int | None = 0, of_prompts: bool = True, **prompts: int
) -> HiddenStates:
    hidden = HiddenStates(runner, layer, of_prompts=of_prompts)
    for name, length in prompts.items():
        hidden.begin(f"{name[1:]}-abc", length)
    return hidden


@pytest.mark.parametrize(("layer", "expected"), [(0, 5.0), (1, 6.0), (2, 7.0), (None, -8.0)])
def test_a_layer_is_counted_as_hugging_face_counts_it(layer: int | None, expected: float) -> None:
    runner = Runner()
    hidden = collecting(runner, layer=layer, r0=6)
    runner.step((0, 0, 6))
    prompt, _ = taken(hidden, 0)

    assert prompt[5] == expected


def test_requests_of_a_step_each_get_their_own_rows() -> None:
    runner = Runner()
    hidden = collecting(runner, r1=2, r2=3, r3=9)
    runner.step((1, 0, 2), (2, 0, 3), padding=3)
    runner.step((2, 3, 4), (1, 2, 3))

    assert taken(hidden, 1) == ([1000, 1001], [1002])
    assert taken(hidden, 2) == ([2000, 2001, 2002], [2003])
    assert taken(hidden, 3) == (None, None)


def test_a_prompt_read_in_several_steps_is_one_piece() -> None:
    runner = Runner()
    hidden = collecting(runner, r1=5)
    runner.step((1, 0, 2))
    assert taken(hidden, 1) == (None, None)
    runner.step((1, 2, 4))
    runner.step((1, 4, 5))

    assert taken(hidden, 1) == ([1000, 1001, 1002, 1003, 1004], None)
    runner.step((1, 5, 6))
    assert taken(hidden, 1) == (None, [1005])


@pytest.mark.parametrize("taken_before", [False, True])
@pytest.mark.parametrize("steps", [[(0, 6)], [(0, 2), (2, 6)], [(0, 4), (4, 5), (5, 6)]])
def test_what_is_computed_again_is_not_kept_again(
    steps: list[tuple[int, int]], *, taken_before: bool
) -> None:
    runner = Runner()
    hidden = collecting(runner, r1=3)
    runner.step((1, 0, 3))
    runner.step((1, 3, 4))
    runner.step((1, 4, 5))
    first = taken(hidden, 1) if taken_before else (None, None)
    for begin, end in steps:
        runner.step((1, begin, end))
    prompt, generated = taken(hidden, 1)

    assert (first[0] or prompt) == [1000, 1001, 1002]
    assert [*(first[1] or []), *generated] == [1003, 1004, 1005]


def test_a_prompt_that_is_interrupted_begins_again_and_is_still_whole() -> None:
    runner = Runner()
    hidden = collecting(runner, r1=5)
    runner.step((1, 0, 3))
    runner.step((1, 0, 2))
    runner.step((1, 2, 5))

    assert taken(hidden, 1) == ([1000, 1001, 1002, 1003, 1004], None)


def test_rows_of_prompts_are_left_alone_where_nobody_wants_them() -> None:
    runner = Runner()
    hidden = collecting(runner, of_prompts=False, r1=40)
    runner.step((1, 32, 40))
    runner.step((1, 40, 41))

    assert taken(hidden, 1) == (None, [1040])


def test_a_hole_is_an_error_and_no_row_takes_anothers_place() -> None:
    runner = Runner()
    collecting(runner, r1=5)

    with pytest.raises(EngineFailed, match="positions 0 to 1 were never computed"):
        runner.step((1, 2, 5))


def test_the_last_piece_is_a_tensor_even_if_nothing_was_ever_generated() -> None:
    runner = Runner()
    hidden = collecting(runner, r1=1)
    runner.step((1, 0, 1))
    prompt, generated = hidden.take("1-abc", last=True)

    assert prompt is not None
    assert generated is not None
    assert generated.header.shape == (0, WIDTH)
    assert generated.header.element_type is prompt.header.element_type


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_keep_the_precision_that_the_model_computes_in(dtype: str) -> None:
    runner = Runner(getattr(torch, dtype))
    hidden = collecting(runner, layer=1, r0=3)
    runner.step((0, 0, 3))
    tensor, _ = hidden.take("0-abc", last=False)

    assert tensor is not None
    assert tensor.header.element_type is ElementType(dtype)
    assert len(tensor.data) == tensor.header.length
    expected = torch.tensor([[1.0], [2.0], [3.0]], dtype=getattr(torch, dtype)).expand(-1, WIDTH)
    assert bytes(tensor.data) == expected.contiguous().view(torch.uint8).numpy().tobytes()


def test_the_models_buffers_may_be_used_again() -> None:
    runner = Runner()
    hidden = HiddenStates(runner, None, of_prompts=True)
    hidden.begin("1-abc", 2)
    buffer = torch.ones(2, WIDTH)
    runner.model.register_forward_hook(lambda *_: buffer)
    runner.step((1, 0, 2))
    before = taken(hidden, 1)
    buffer.zero_()

    assert before == ([-1003, -1004], None)


def test_a_forgotten_request_collects_nothing() -> None:
    runner = Runner()
    hidden = collecting(runner, r1=2, r2=2)
    hidden.end("1-abc")
    runner.step((1, 0, 2), (2, 0, 2))

    assert hidden.requests == 1
    assert taken(hidden, 2) == ([2000, 2001], None)


def config(layers: int, **talker: int) -> Any:
    whole = (
        SimpleNamespace(talker_config=SimpleNamespace(**talker)) if talker else SimpleNamespace()
    )
    return SimpleNamespace(
        hf_config=whole, hf_text_config=SimpleNamespace(num_hidden_layers=layers)
    )


@pytest.mark.parametrize(
    ("asked", "checkpoint", "layer"),
    [
        (None, config(48, accept_hidden_layer=24), 24),
        (None, config(28, vocab_size=9), None),
        (None, config(28), None),
        ("final", config(48, accept_hidden_layer=24), None),
        (0, config(48, accept_hidden_layer=24), 0),
        (48, config(48), None),
    ],
)
def test_the_checkpoints_talker_says_which_layer_unless_the_stage_does(
    asked: int | str | None, checkpoint: Any, layer: int | None
) -> None:
    assert observed_layer(asked, checkpoint) == layer


def test_a_layer_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(SetupError, match="the model has 48 layers") as refused:
        observed_layer(49, config(48))

    assert refused.value.field == "engineArgs.hidden_states_layer"


def test_layers_that_cannot_be_found_are_refused() -> None:
    runner = Runner()
    runner.model.model = torch.nn.Identity()

    with pytest.raises(SetupError, match="the layers of Model are unknown"):
        HiddenStates(runner, 1, of_prompts=False)
