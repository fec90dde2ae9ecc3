"""Qwen3-Omni: the talker, which turns text into codec frames, and code2wav, its vocoder.

talker      the component: ports, voices, requests in and frames out
prompting   what the talker reads: the user's part, the assistant's part, text row by row
speech      one request within the step loop: what is known of its text, when it can go on
speaking    the model: prefill, decoding steps of all requests, the other codebooks
code2wav    the component: frames in, waveform out
vocoding    the vocoder as a stream: exact for any boundaries between chunks
parts       which modules of the checkpoint each of them loads

The semantics are those of `Qwen3OmniMoeForConditionalGeneration.generate` in transformers 5.19.
"""

from omnistage_stage.engines.torch.qwen3_omni.code2wav import Code2Wav
from omnistage_stage.engines.torch.qwen3_omni.talker import Talker

__all__ = ["Code2Wav", "Talker"]
