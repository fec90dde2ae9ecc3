"""How the next token is chosen: the order and the arithmetic of Hugging Face's `generate`.

Penalty, suppression, temperature, top-k, top-p, softmax, draw: in that order, each by the same
operations, so that a request with a seed gets what `generate` gives after `torch.manual_seed(seed)`.
Every request has a generator of its own, and the operations work row by row; so what is chosen for
one request does not depend on who else is in the batch.

A draw is `argmax(probabilities / exponential noise)`, which is how torch draws one sample (see
`at::multinomial`): taken apart here so that each row's noise comes from its own generator while the
rest is one operation for all rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from msgspec import Struct

__all__ = ["Sampler", "SamplingRule", "seeded_generator"]


class SamplingRule(Struct, frozen=True, kw_only=True):
    """How one kind of token is chosen; the same for every request of a stage."""

    do_sample: bool = True
    """False: the likeliest, without draws."""
    temperature: float = 1.0
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    suppressed: tuple[int, ...] = ()
    """Tokens that are never chosen."""


class Sampler:
    """Chooses one token for each row of logits."""

    def __init__(self, rule: SamplingRule, *, vocabulary: int, device: Any) -> None:
        self._rule = rule
        self._vocabulary = vocabulary
        self._device = device
        self._suppressed = None
        if rule.suppressed:
            self._suppressed = torch.zeros(vocabulary, dtype=torch.bool, device=device)
            self._suppressed[list(rule.suppressed)] = True
        self._warpers = _warpers(rule) if rule.do_sample else []

    def unseen(self) -> Any:
        """Which tokens one request has seen, to begin with: none. Shape [vocabulary]."""
        return torch.zeros(self._vocabulary, dtype=torch.bool, device=self._device)

    def choose(self, logits: Any, seen: Any, generators: Sequence[Any]) -> Any:
        """Chooses a token for each row.

        Args:
            logits: [rows, vocabulary], any float type.
            seen: Tokens that each row's request was given before, bool [rows, vocabulary]; None where
                nothing is penalised.
            generators: One for each row; not used without sampling.

        Returns:
            int64 [rows].
        """
        scores = logits.to(copy=True, dtype=torch.float32)
        if self._rule.repetition_penalty != 1.0 and seen is not None:
            penalty = self._rule.repetition_penalty
            penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
            scores = torch.where(seen, penalised, scores)
        if self._suppressed is not None:
            scores = torch.where(self._suppressed, -float("inf"), scores)
        for warp in self._warpers:
            scores = warp(None, scores)
        if not self._rule.do_sample:
            return torch.argmax(scores, dim=-1)
        probabilities = torch.nn.functional.softmax(scores, dim=-1)
        noise = torch.empty_like(probabilities)
        for row, generator in enumerate(generators):
            noise[row : row + 1].exponential_(1, generator=generator)
        return torch.argmax(probabilities / noise, dim=-1)


def seeded_generator(seed: int | None, device: Any) -> Any:
    """A generator for one request.

    Args:
        seed: 64 bits; None: one that nobody knows.
        device: Where it will draw.
    """
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


def _warpers(rule: SamplingRule) -> list[Callable[[Any, Any], Any]]:
    """What `generate` applies when it samples, in its order."""
    from transformers.generation.logits_process import (  # noqa: PLC0415
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    warpers: list[Callable[[Any, Any], Any]] = []
    if rule.temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(rule.temperature))
    if rule.top_k:
        warpers.append(TopKLogitsWarper(top_k=rule.top_k))
    if rule.top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p=rule.top_p))
    return warpers
