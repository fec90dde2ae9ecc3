"""Qwen2.5-Omni's talker, stepping the speech of many requests.

A step makes one code for each request. The code's embedding and the next row of the answer go into
the next step.

How requests are computed together (`batching`) is the same in every family, see `BatchingSpeaker`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from omnistage_stage.engines.protocol import FinishReason
from omnistage_stage.engines.torch.qwen2_5_omni.prompting import PromptReader, Row, SpecialTokens
from omnistage_stage.engines.torch.qwen2_5_omni.speech import Speech
from omnistage_stage.engines.torch.sampling import Sampler, SamplingRule
from omnistage_stage.engines.torch.speaking import BatchingSpeaker
from omnistage_stage.engines.torch.speech import SpeechState, TextEnd

__all__ = ["Speaker"]


class _State(SpeechState):
    """What the model keeps for one request."""

    def __init__(self, cache: Any, position: int, seen: Any) -> None:
        super().__init__(cache, position, seen)
        self.code = 0
        """The last one made."""


class Speaker(BatchingSpeaker[Speech]):
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
        """Args: see the module; `slots` as in `BatchingSpeaker`."""
        super().__init__(slots=slots)
        self._talker = talker
        self._special = special
        with torch.inference_mode():
            self._reader = PromptReader(talker, embedding, special)
        self._sampler = Sampler(rule, vocabulary=talker.config.vocab_size, device=talker.device)

    def close(self) -> None:
        """Frees the model."""
        del self._talker, self._reader
        super().close()

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
        job.input_tokens = rows.shape[1]
        self._keep(job, _State(cache, int(positions.max()) + 1, seen))
        return logits

    def _continue(self, jobs: Sequence[Speech]) -> Any:
        """One decoding step; returns logits [jobs, vocabulary]."""
        device = self._talker.device
        codes = torch.tensor([[job.state.code] for job in jobs], device=device)
        text = torch.cat([self._text(job) for job in jobs])
        rows = self._talker.get_input_embeddings()(codes) + text
        places, cache, mask = self._advance(jobs, device)
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
                job.finish(FinishReason.STOP)
                continue
            job.state.seen[code] = True
            job.state.code = code
            job.say(torch.tensor([[code]]))
