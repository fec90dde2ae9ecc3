"""Qwen2.5-Omni's talker, stepping the speech of many requests.

A step makes one code for each request. The code's embedding and the next row of the answer go into
the next step.

How requests are computed together is a choice (`batching`). `exact`: one after the other, each with
the calls that transformers makes for it alone, so that nothing can make a difference. `padded`: in
one forward over a `SlotCache`; matrix products of another shape may then round the last bit another
way. Prefill is always per request.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.protocol import EngineResult, FinishReason
from omnistage_stage.engines.torch.conversion import to_payload
from omnistage_stage.engines.torch.qwen2_5_omni.prompting import PromptReader, Row, SpecialTokens
from omnistage_stage.engines.torch.qwen2_5_omni.speech import Speech, TextEnd
from omnistage_stage.engines.torch.sampling import Sampler, SamplingRule
from omnistage_stage.engines.torch.slots import SlotCache

__all__ = ["Speaker"]


class _State:
    """What the model keeps for one request."""

    def __init__(self, cache: Any, position: int, seen: Any) -> None:
        self.cache = cache
        """The request's own cache; None where it has a slot."""
        self.slot: int | None = None
        self.position = position
        """Of the next step, in all dimensions."""
        self.seen = seen
        """Codes so far, bool [vocabulary]."""
        self.code = 0
        """The last one made."""
        self._slots: SlotCache | None = None

    def move_to(self, slots: SlotCache) -> None:
        """Moves the request's cache into a slot."""
        self.slot = slots.occupy(self.cache)
        self.cache = None
        self._slots = slots

    def release(self) -> None:
        """Gives back the slot."""
        self.cache = None
        if self._slots is not None and self.slot is not None:
            self._slots.vacate(self.slot)


class Speaker:
    """The talker as a `Stepper` of `Speech`."""

    def __init__(
        self,
        talker: Any,
        embedding: Any,
        special: SpecialTokens,
        *,
        rule: SamplingRule,
        slots: int | None,
    ) -> None:
        """Args: see the module; `slots` None stands for exact, else how many requests there may be."""
        self._talker = talker
        self._special = special
        self._slots = None if slots is None else SlotCache(slots=slots)
        with torch.inference_mode():
            self._reader = PromptReader(talker, embedding, special)
        self._sampler = Sampler(rule, vocabulary=talker.config.vocab_size, device=talker.device)

    @property
    def slots(self) -> int:
        """Slots that requests have."""
        return 0 if self._slots is None else self._slots.occupied

    def step(self, jobs: Sequence[Speech]) -> None:
        """Makes the next code of every one of these, or its end."""
        with torch.inference_mode():
            if self._slots is not None:
                self._step(jobs)
                return
            for job in jobs:
                self._step([job])

    def close(self) -> None:
        """Frees the model."""
        del self._talker, self._reader
        self._slots = None

    def _step(self, jobs: Sequence[Speech]) -> None:
        beginning = [job for job in jobs if job.state is None]
        running = [job for job in jobs if job.state is not None]
        logits = [self._begin(job) for job in beginning]
        if running:
            logits.append(self._continue(running))
        self._choose(beginning + running, torch.cat(logits))

    def _begin(self, job: Speech) -> Any:
        """Reads the prompt; returns logits [1, vocabulary]."""
        rows, positions = self._reader.prefill(job.prompt, job.request.speaker, job.first_row)
        cache = DynamicCache(config=self._talker.model.config)
        logits = self._forward(rows, positions, cache, mask=None)
        seen = self._sampler.unseen()
        special = self._special
        seen[[special.codec_mask, special.codec_padding, special.codec_begin]] = True
        job.state = _State(cache, int(positions.max()) + 1, seen)
        job.input_tokens = rows.shape[1]
        if self._slots is not None:
            job.state.move_to(self._slots)
        return logits

    def _continue(self, jobs: Sequence[Speech]) -> Any:
        """One decoding step; returns logits [jobs, vocabulary]."""
        device = self._talker.device
        codes = torch.tensor([[job.state.code] for job in jobs], device=device)
        text = torch.cat([self._text(job) for job in jobs])
        rows = self._talker.get_input_embeddings()(codes) + text
        places = torch.tensor([[job.state.position] for job in jobs], device=device)
        for job in jobs:
            job.state.position += 1
        if self._slots is None:
            cache, mask = jobs[0].state.cache, None
        else:
            cache = self._slots.step([job.state.slot for job in jobs])
            mask = cache.mask
        return self._forward(rows, places.expand(3, -1, -1), cache, mask=mask)

    def _forward(self, rows: Any, positions: Any, cache: Any, *, mask: Any) -> Any:
        talker = self._talker
        hidden = talker.model(
            inputs_embeds=talker.thinker_to_talker_proj(rows),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        # All rows go through the head, as in `generate`, so that the last gets the same bits.
        return talker.codec_head(hidden)[:, -1]

    def _text(self, job: Speech) -> Any:
        """The row of the answer that goes with the job's next step, [1, 1, H]."""
        match job.next_row:
            case Row() as row:
                return self._reader.answer_row(row)
            case TextEnd.END:
                return self._reader.end
        return self._reader.pad

    def _choose(self, jobs: Sequence[Speech], logits: Any) -> None:
        seen = torch.stack([job.state.seen for job in jobs])
        codes = self._sampler.choose(logits, seen, [job.request.generator for job in jobs])
        stops = (self._special.codec_end, self._special.codec_padding)
        for job, code in zip(jobs, codes.tolist(), strict=True):
            if code in stops:
                job.end = _result(job, FinishReason.STOP)
                continue
            job.state.seen[code] = True
            job.state.code = code
            job.frames += 1
            job.made.append(to_payload(torch.tensor([[code]]), PayloadKind.CODEC_FRAMES))
            if job.frames == job.request.max_frames:
                job.end = _result(job, FinishReason.LENGTH)


def _result(job: Speech, reason: FinishReason) -> EngineResult:
    return EngineResult(
        finish_reason=reason, input_tokens=job.input_tokens, output_tokens=job.frames
    )
