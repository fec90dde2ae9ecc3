"""Qwen3-Omni's talker, stepping the speech of many requests.

A step makes one codec frame for each request: the talker chooses the first code, the code predictor
the others, one after the other. The codes' embeddings and the next row of text go into the next step.

How requests are computed together (`batching`) is the same in every family, see `BatchingSpeaker`.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from msgspec import Struct
from transformers import DynamicCache

from omnistage_stage.engines.protocol import FinishReason
from omnistage_stage.engines.torch.qwen3_omni.prompting import PromptReader, SpecialTokens
from omnistage_stage.engines.torch.qwen3_omni.speech import Speech
from omnistage_stage.engines.torch.sampling import Sampler, SamplingRule
from omnistage_stage.engines.torch.speaking import BatchingSpeaker
from omnistage_stage.engines.torch.speech import SpeechState, TextEnd

__all__ = ["Speaker"]

_RESIDUAL_TOP_K: Final = 50
_RESIDUAL_TOP_P: Final = 0.8
"""How transformers samples the code predictor, whatever the talker's own rule is."""


class _State(SpeechState):
    """What the model keeps for one request."""

    def __init__(self, cache: Any, position: int, seen: Any) -> None:
        super().__init__(cache, position, seen)
        self.codec: Any = None
        """Embeddings of the last frame's codes, summed: [1, 1, h]."""


class _Heard(Struct, frozen=True):
    """What a forward says about some requests."""

    hidden: Any
    """[rows, 1, h]."""
    logits: Any
    """[rows, vocabulary]."""


class Speaker(BatchingSpeaker[Speech]):
    """The talker as a `Stepper` of `Speech`.

    Args:
        talker: A `Qwen3OmniMoeTalkerForConditionalGeneration`.
        embedding: The thinker's.
        special: What its ids mean.
        rule: How first codes are chosen.
        slots: As in `BatchingSpeaker`.
    """

    def __init__(
        self,
        talker: Any,
        embedding: Any,
        special: SpecialTokens,
        *,
        rule: SamplingRule,
        slots: int | None,
    ) -> None:
        super().__init__(slots=slots)
        self._talker = talker
        self._predictor = talker.code_predictor
        with torch.inference_mode():
            self._reader = PromptReader(talker, embedding, special)
        self._first = Sampler(
            rule, vocabulary=talker.config.text_config.vocab_size, device=talker.device
        )
        residual = SamplingRule(
            do_sample=rule.do_sample, top_k=_RESIDUAL_TOP_K, top_p=_RESIDUAL_TOP_P
        )
        self._residual = Sampler(
            residual, vocabulary=self._predictor.config.vocab_size, device=talker.device
        )

    def close(self) -> None:
        """Frees the model."""
        del self._talker, self._predictor, self._reader
        super().close()

    def _step(self, jobs: Sequence[Speech]) -> None:
        beginning = [job for job in jobs if job.state is None]
        running = [job for job in jobs if job.state is not None]
        heard = [self._begin(job) for job in beginning]
        if running:
            heard.append(self._continue(running))
        self._speak(
            beginning + running,
            torch.cat([one.hidden for one in heard]),
            torch.cat([one.logits for one in heard]),
        )

    def _begin(self, job: Speech) -> _Heard:
        """Reads the prompt."""
        rows, positions = self._reader.prefill(job.prompt, job.opening, job.request.speaker)
        cache = DynamicCache(config=self._talker.model.config)
        hidden = self._talker.model(
            inputs_embeds=rows, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        # All rows go through the head, as in `generate`, so that the last gets the same bits.
        logits = self._talker.codec_head(hidden)[:, -1]
        job.input_tokens = rows.shape[1]
        self._keep(job, _State(cache, int(positions[1:].max()) + 1, self._first.unseen()))
        return _Heard(hidden[:, -1:], logits)

    def _continue(self, jobs: Sequence[Speech]) -> _Heard:
        """One decoding step."""
        device = self._talker.device
        text = torch.cat([self._text(job) for job in jobs])
        rows = torch.cat([job.state.codec for job in jobs]) + text
        places, cache, mask = self._advance(jobs, device)
        hidden = self._talker.model(
            inputs_embeds=rows,
            attention_mask=mask,
            position_ids=places.expand(4, -1, -1),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return _Heard(hidden, self._talker.codec_head(hidden)[:, -1])

    def _text(self, job: Speech) -> Any:
        """The row of text that goes with the job's next step, [1, 1, h]."""
        match job.row(job.frames - 1):
            case int() as token:
                return self._reader.text_rows([token])[None]
            case TextEnd.END:
                return self._reader.end
        return self._reader.pad

    def _speak(self, jobs: Sequence[Speech], hidden: Any, logits: Any) -> None:
        """Chooses the codes of one frame for each job whose speech goes on."""
        generators = [job.request.generator for job in jobs]
        seen = torch.stack([job.state.seen for job in jobs])
        first = self._first.choose(logits, seen, generators)
        chosen = first.tolist()
        stop = self._talker.config.codec_eos_token_id
        for job, code in zip(jobs, chosen, strict=True):
            job.state.seen[code] = True
            if code == stop:
                job.finish(FinishReason.STOP)
        going = [index for index, code in enumerate(chosen) if code != stop]
        if not going:
            return
        speaking = [jobs[index] for index in going]
        codes, embedded = self._complete(
            hidden[going], first[going], [job.request.generator for job in speaking]
        )
        frames = codes.cpu()
        for index, job in enumerate(speaking):
            job.state.codec = embedded[index : index + 1]
            job.say(frames[index : index + 1])

    def _complete(self, hidden: Any, first: Any, generators: Sequence[Any]) -> tuple[Any, Any]:
        """Chooses the other codes of a frame.

        Args:
            hidden: What the talker said, [rows, 1, h].
            first: Its codes, [rows].
            generators: One for each row.

        Returns:
            Codes [rows, groups], and the sum of their embeddings [rows, 1, h].
        """
        model = self._predictor.model
        groups = self._talker.config.num_code_groups
        cache = DynamicCache(config=model.config)
        codes = [first]
        embedded = [self._talker.get_input_embeddings()(first[:, None])]
        rows = torch.cat((hidden, embedded[0]), dim=1)
        for group in range(groups - 1):
            said = model(inputs_embeds=rows, past_key_values=cache, use_cache=True)
            logits = self._predictor.lm_head[group](said.last_hidden_state)[:, -1]
            code = self._residual.choose(logits, None, generators)
            rows = model.codec_embedding[group](code[:, None])
            codes.append(code)
            embedded.append(rows)
        return torch.stack(codes, dim=1), torch.cat(embedded, dim=1).sum(1, keepdim=True)
