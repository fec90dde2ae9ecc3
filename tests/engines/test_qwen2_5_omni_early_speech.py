"""What of an unfinished answer is certain, computed early, is what the whole answer will have."""

import itertools
import math
from typing import Any

import pytest
import torch

from fakes.qwen2_5_omni import load_model, some_codes, write_model
from omnistage_stage.engines.torch.qwen2_5_omni.flowing import Flow
from omnistage_stage.engines.torch.qwen2_5_omni.settling import Settling
from omnistage_stage.engines.torch.qwen2_5_omni.vocoding import Vocoder
from omnistage_stage.engines.torch.qwen2_5_omni.voices import Voice

ROUNDING = 2e-5
"""What something computed early may differ by from the same of the whole: kernels treat the last rows
of their input otherwise than the others, and this model has layers so narrow that their kernels depend
on the length of the input."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The whole model, monolithic."""
    torch.set_num_threads(1)
    return load_model(write_model(tmp_path_factory.mktemp("qwen2.5-omni")))


@pytest.fixture(scope="module")
def flow(model: Any) -> Flow:
    """The whole model's flow, of two steps."""
    return Flow(model.token2wav.code2wav_dit_model, points=3, guidance=0.5, sway=-1.0)


@pytest.fixture(scope="module")
def voice(model: Any) -> Voice:
    """One of its voices."""
    speaker = model.speaker_map["Chelsie"]
    return Voice(
        name="Chelsie",
        token=speaker["bos_token"],
        embedding=speaker["cond"],
        reference=speaker["ref_mel"],
    )


def spectrogram(flow: Flow, codes: Any, voice: Voice) -> Any:
    """What flows from some codes, [bins, frames]."""
    return flow.spectrogram(codes[:, 0], voice, 7, lambda _done: None)[0]


def measures(flow: Flow) -> Settling:
    """Those of the tiny model."""
    return Settling(block=24, repeats=2, look_ahead=flow.look_ahead, context=38, window=264)


def test_a_block_depends_on_as_many_blocks_ahead_as_is_said_and_on_no_more(
    flow: Flow, voice: Voice
) -> None:
    codes = some_codes(360)
    changed = codes.clone()
    changed[348:] = (changed[348:] + 100) % 500
    last = 360 * 2 // 24 - 1

    moved = spectrogram(flow, codes, voice) != spectrogram(flow, changed, voice)

    blocks = moved.any(0).view(-1, 24).any(1).nonzero().flatten().tolist()
    assert flow.look_ahead == 8
    assert blocks[0] == last - flow.look_ahead


@pytest.mark.parametrize("known", [240, 264, 336])
def test_what_is_settled_has_the_values_that_it_will_have_in_the_end(
    flow: Flow, voice: Voice, known: int
) -> None:
    codes = some_codes(371)
    settled = measures(flow).settled(known)

    early = spectrogram(flow, codes[:known], voice)
    whole = spectrogram(flow, codes, voice)

    assert settled == known * 2 - 8 * 24
    assert (early - whole[:, : known * 2])[:, :settled].abs().max() <= ROUNDING
    # That is not so because nothing depends on anything.
    assert (early - whole[:, : known * 2])[:, -24:].abs().max() > 500 * ROUNDING


def test_with_the_published_measures_ten_seconds_are_enough_to_begin() -> None:
    # 22 layers of which one looks ahead, nine steps of four evaluations.
    published = Settling(block=24, repeats=2, look_ahead=36, context=38, window=264)

    begun = next(codes for codes in range(2000) if published.next_flow(codes, 0))

    assert begun == 576
    assert published.settled(begun) == 288
    assert published.settled(begun - 144) == 0


def test_flows_are_so_rare_that_their_work_is_within_four_times_the_last() -> None:
    published = Settling(block=24, repeats=2, look_ahead=36, context=38, window=264)

    for length in range(500, 4096, 97):
        flows, last = [], 0
        for known in range(length + 1):
            if codes := published.next_flow(known, last):
                flows.append(codes)
                last = codes
        assert sum(flows) + length <= 4 * length


def test_a_sample_depends_on_no_frame_beyond_the_context(model: Any) -> None:
    vocoder = Vocoder(model.token2wav.code2wav_bigvgan_model)
    frames = torch.zeros(1, 80, 200)
    frames[..., 100] = math.nan

    touched = vocoder.part(frames, 0, 200).isnan().nonzero().flatten()

    assert vocoder.hop == 240
    assert int(touched[0]) >= (100 - vocoder.context) * 240
    assert int(touched[-1]) < (101 + vocoder.context) * 240
    # Nor is the context far too long.
    assert int(touched[-1]) - int(touched[0]) > (2 * vocoder.context - 12) * 240


@pytest.mark.parametrize("cuts", [(300,), (270, 290, 380)])
def test_parts_together_are_the_whole(model: Any, cuts: tuple[int, ...]) -> None:
    vocoder = Vocoder(model.token2wav.code2wav_bigvgan_model)
    frames = torch.randn(1, 80, 460, generator=torch.Generator().manual_seed(1))
    bounds = (0, *cuts, 460)

    parts = [
        vocoder.part(frames[..., : min(460, end + vocoder.context)], start, end)
        for start, end in itertools.pairwise(bounds)
    ]

    whole = vocoder.part(frames, 0, 460)
    assert torch.cat(parts).shape == whole.shape
    assert (torch.cat(parts) - whole).abs().max() <= ROUNDING
