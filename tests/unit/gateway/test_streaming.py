"""Stages that stream to one another: how they are introduced, and what happens when one is lost."""

from collections.abc import Callable

import pytest

from fakes.frames import tensor, text_output
from fakes.graphs import CHUNKS, STREAMING
from fakes.staged_request import CONVERSATION, SPEECH, Stages, cancels, running, turns
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import Draining, EngineFailed, StageUnavailable
from omnistage_common.ids import Incarnation, RequestId, RequestNumber, StageName
from omnistage_common.links.frames import Data, Delivery, End, Error, Open, Phase, Progress
from omnistage_common.payloads import Parameters
from omnistage_common.pipeline.plan import Modality

NewStages = Callable[..., Stages]
CHAIN = ("thinker", "talker", "speaker")


def opened(stages: Stages, name: str) -> Open:
    """The one request that a stage's replicas were sent last."""
    return next(link.opens[-1] for link in stages.links[StageName(name)] if link.opens)


async def test_stages_that_stream_are_all_opened_at_once(new_stages: NewStages) -> None:
    stages = new_stages(STREAMING)
    async with running(stages):
        assert [len(stages[name].opens) for name in CHAIN] == [1, 1, 1]
        assert opened(stages, "thinker").inputs == (CONVERSATION,)
        assert opened(stages, "talker").inputs == ()


async def test_each_pair_is_introduced_with_a_token_of_its_own(new_stages: NewStages) -> None:
    stages = new_stages(STREAMING)
    async with running(stages):
        thinker, talker, speaker = (opened(stages, name) for name in CHAIN)

        (to_talker,), (from_thinker,) = thinker.outlets, talker.inlets
        assert to_talker.token == from_thinker.token
        assert to_talker.outputs == from_thinker.outputs == ("hidden", "tokens")
        assert from_thinker.address == stages["thinker"].endpoint.address
        assert from_thinker.incarnation == stages["thinker"].incarnation
        (to_speaker,), (from_talker,) = talker.outlets, speaker.inlets
        assert to_speaker.token == from_talker.token != to_talker.token
        assert speaker.outlets == ()
        assert thinker.inlets == ()


async def test_tokens_are_never_used_twice(new_stages: NewStages) -> None:
    tokens = set()
    for _ in range(3):
        stages = new_stages(STREAMING)
        async with running(stages):
            tokens |= {opened(stages, name).outlets[0].token for name in ("thinker", "talker")}

    assert len(tokens) == 6
    assert all(len(token) == 32 for token in tokens)


async def test_what_only_streams_carry_does_not_come_by_the_gateway(
    new_stages: NewStages,
) -> None:
    stages = new_stages(STREAMING)
    async with running(stages):
        assert set(opened(stages, "thinker").withheld) == {"hidden", "tokens"}
        assert opened(stages, "talker").withheld == ("codes",)
        assert opened(stages, "speaker").withheld == ()


async def test_a_stage_whose_outputs_nobody_takes_later_frees_them_with_credit(
    new_stages: NewStages,
) -> None:
    streaming, full = new_stages(STREAMING), new_stages()
    async with running(streaming), running(full):
        assert opened(streaming, "speaker").credit_releases
        assert not opened(full, "thinker").credit_releases


async def test_pieces_go_uncut_and_frames_in_the_chunks_of_the_edge(
    new_stages: NewStages,
) -> None:
    stages = new_stages(STREAMING)
    async with running(stages):
        (hidden,) = opened(stages, "thinker").outlets
        (codes,) = opened(stages, "talker").outlets

    assert (hidden.first_frames, hidden.frames) == (1, 1)
    assert (codes.first_frames, codes.frames) == (CHUNKS.first_frames[0], CHUNKS.frames)


async def test_a_client_may_say_how_large_the_first_chunk_is(new_stages: NewStages) -> None:
    stages = new_stages(STREAMING, first_frames=7)
    async with running(stages):
        (codes,) = opened(stages, "talker").outlets

    assert codes.first_frames == 7


class Nobody:
    """Opened a request and does not care."""

    def received(self, frame: Data | Progress | End | Error) -> None:
        """Drops a frame."""


async def test_a_busy_consumer_gets_a_larger_first_chunk(new_stages: NewStages) -> None:
    stages = new_stages(STREAMING)
    other = stages["speaker"].open(
        Nobody(),
        request_id=RequestId("other"),
        deadline=Deadline.after(30),
        delivery=Delivery.DELTAS,
        inputs=(),
        parameters=Parameters(),
    )
    async with running(stages):
        (codes,) = opened(stages, "talker").outlets
        stages["speaker"].close(other, "done")

    assert codes.first_frames == CHUNKS.first_frames[-1]


async def test_the_answer_is_whole_when_every_stage_has_ended(new_stages: NewStages) -> None:
    stages = new_stages(STREAMING)
    async with running(stages) as request:
        stages["speaker"].says(SPEECH)
        stages["thinker"].makes([text_output("hi")])
        await turns()
        stages["talker"].ends()
        await turns()
        assert not request.done()
        stages["speaker"].ends()
        await request

    assert stages.answer.delivered == [(Modality.AUDIO, tensor(4)), (Modality.TEXT, "hi")]


async def test_a_stage_that_fails_ends_those_that_stream_with_it(new_stages: NewStages) -> None:
    stages = new_stages(STREAMING)
    async with running(stages) as request:
        stages["talker"].fails(EngineFailed("it broke"))
        with pytest.raises(EngineFailed):
            await request

    assert [frame.reason for frame in cancels(stages)] == ["failed"] * 2


async def test_a_request_that_is_not_wanted_is_cancelled_everywhere(
    new_stages: NewStages,
) -> None:
    stages = new_stages(STREAMING)
    async with running(stages) as request:
        request.cancel()
        await turns()

    assert [frame.reason for frame in cancels(stages)] == ["cancelled"] * 3


async def test_a_consumer_that_goes_takes_its_producers_to_another(new_stages: NewStages) -> None:
    stages = new_stages(STREAMING, replicas=2)
    async with running(stages) as request:
        going = next(link for link in stages.links[StageName("speaker")] if link.opens)
        before = opened(stages, "talker").outlets[0].token
        going.says_phase(Phase.DRAINING)
        going.fails(Draining("going out of service"))
        await turns()

        assert not request.done()
        other = next(link for link in stages.links[StageName("speaker")] if link is not going)
        (inlet,) = other.opens[-1].inlets
        producer = next(
            link
            for link in stages.links[StageName("talker")]
            if link.endpoint.address == inlet.address and link.opens
        )
        assert any(inlet.token == frame.outlets[0].token for frame in producer.opens)
        assert inlet.token != before


async def test_what_the_client_has_heard_is_not_made_again(new_stages: NewStages) -> None:
    stages = new_stages(STREAMING, replicas=2)
    async with running(stages) as request:
        thinker = next(link for link in stages.links[StageName("thinker")] if link.opens)
        thinker.says(text_output("hi"))
        await turns()
        going = next(link for link in stages.links[StageName("speaker")] if link.opens)
        going.fails(Draining("going out of service"))

        with pytest.raises(Draining):
            await request


async def test_a_producer_that_is_lost_before_its_consumer_is_opened_is_an_error(
    new_stages: NewStages,
) -> None:
    stages = new_stages(STREAMING)
    stages["thinker"].incarnation = None

    with pytest.raises(StageUnavailable, match="thinker-0 was lost"):
        await stages.sequence.run(stages.answer)
    assert stages.outstanding == 0


async def test_a_stream_is_for_one_life_of_its_producer(new_stages: NewStages) -> None:
    stages = new_stages(STREAMING)
    stages["thinker"].incarnation = Incarnation("second life")
    async with running(stages):
        (inlet,) = opened(stages, "talker").inlets

    assert inlet.incarnation == "second life"


async def test_progress_reaches_the_answer(new_stages: NewStages) -> None:
    stages = new_stages(STREAMING)
    async with running(stages):
        link = stages["speaker"]
        number = RequestNumber(link.opens[-1].request)
        link._receive(Progress(request=number, done=3, total=8))
        await turns()

    assert stages.answer.steps == [("speaker", 3, 8)]
