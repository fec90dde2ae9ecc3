"""Qwen2.5-Omni: the talker, which turns text into speech codes, and token2wav, its vocoder.

talker      the component: ports, voices, requests in and codes out
prompting   what the talker reads: the thinker's prompt, then its answer row by row
speech      one request within the step loop: what is known of its text, when it can go on
speaking    the model: prefill, decoding steps of all requests
token2wav   the component: codes in, waveform out
flowing     codes to a spectrogram, by flow matching
settling    how much of a spectrogram is certain while codes are still coming
vocoding    a spectrogram to a waveform, whole or in parts
voices      the speakers of a checkpoint, `spk_dict.pt`
parts       which modules of the checkpoint each of them loads

The semantics are those of `Qwen2_5OmniForConditionalGeneration.generate` in transformers 5.19.
"""

from omnistage_stage.engines.torch.qwen2_5_omni.talker import Talker
from omnistage_stage.engines.torch.qwen2_5_omni.token2wav import Token2Wav

__all__ = ["Talker", "Token2Wav"]
