"""One request over its stages: what is opened when, with what, and that all of it is closed."""

from collections.abc import Callable

import pytest

from fakes.frames import reference, tensor, text_output
from fakes.graphs import DIAMOND
from fakes.staged_request import CONVERSATION, SPEECH, Stages, cancels, piece, running, turns
from omnistage_common.errors import (
    Draining,
    EngineFailed,
    MissingOutput,
    OmnistageError,
    StageUnavailable,
    TensorLost,
)
from omnistage_common.ids import OutputName, StageName
from omnistage_common.links.frames import Delivery, FinishReason, Phase, Release, Usage
from omnistage_common.links.replica_link import CREDIT
from omnistage_common.payloads import Output, Parameters
from omnistage_common.pipeline.plan import Modality

NewStages = Callable[..., Stages]


async def test_stages_are_opened_one_after_the_other_with_what_they_need(
    new_stages: NewStages,
) -> None:
    stages = new_stages()
    async with running(stages) as request:
        (thinker,) = stages["thinker"].opens
        assert thinker.inputs == (CONVERSATION,)
        assert (thinker.request_id, thinker.credit) == ("request", CREDIT)
        assert thinker.delivery is Delivery.DELTAS
        assert thinker.parameters == Parameters(max_tokens=5)
        assert stages["talker"].opens == []

        stages["thinker"].makes([text_output("hi"), piece("hidden")])
        await turns()
        (talker,) = stages["talker"].opens
        assert talker.inputs == (piece("hidden"),)
        assert talker.delivery is Delivery.FINAL
        assert talker.deadline == thinker.deadline

        stages["talker"].makes([piece("codes")])
        await turns()
        stages["speaker"].makes([SPEECH])
        await request

    assert stages.answer.delivered == [(Modality.TEXT, "hi"), (Modality.AUDIO, tensor(4))]
    assert stages["recogniser"].sent == []


async def test_a_producers_tensors_are_released_when_its_consumer_has_ended(
    new_stages: NewStages,
) -> None:
    stages = new_stages()
    ref = Output(name=OutputName("hidden"), payload=reference().payload)
    async with running(stages):
        stages["thinker"].makes([text_output(), ref])
        await turns()
        assert stages["talker"].opens[0].inputs == (ref,)
        assert stages["thinker"].closes == []

        stages["talker"].makes([piece("codes")])
        await turns()
        assert [type(frame) for frame in stages["thinker"].closes] == [Release]


async def test_what_needs_no_release_costs_no_message(new_stages: NewStages) -> None:
    stages = new_stages()
    async with running(stages) as request:
        for name, made in [("thinker", "hidden"), ("talker", "codes")]:
            stages[name].makes([piece(made)])
            await turns()
        stages["speaker"].makes([SPEECH])
        await request

    assert [link.closes for link in stages.every] == [[]] * len(stages.every)


async def test_independent_stages_run_at_once(new_stages: NewStages) -> None:
    stages = new_stages(DIAMOND)
    async with running(stages) as request:
        stages["top"].makes([text_output("hi"), piece("hidden")])
        await turns()
        assert len(stages["left"].opens) == len(stages["right"].opens) == 1

        stages["right"].makes([text_output("words")])
        await turns()
        assert stages["bottom"].opens == []

        stages["left"].makes([piece("codes")])
        await turns()
        assert [item.name for item in stages["bottom"].opens[0].inputs] == ["codes", "text"]
        stages["bottom"].makes([SPEECH])
        await request


async def test_a_cancelled_request_cancels_every_stage_that_works_on_it(
    new_stages: NewStages,
) -> None:
    stages = new_stages(DIAMOND)
    async with running(stages) as request:
        ref = Output(name=OutputName("hidden"), payload=reference().payload)
        stages["top"].makes([text_output(), ref])
        await turns()

        request.cancel()
        await turns()

        assert request.cancelled()
    assert [frame.reason for frame in cancels(stages)] == ["cancelled"] * 2
    assert [type(frame) for frame in stages["top"].closes] == [Release]
    assert stages["bottom"].sent == []


@pytest.mark.parametrize(
    "error", [EngineFailed("it broke"), StageUnavailable("full"), TensorLost("gone")]
)
async def test_an_error_of_one_stage_ends_the_others(
    new_stages: NewStages, error: OmnistageError
) -> None:
    stages = new_stages(DIAMOND)
    async with running(stages) as request:
        stages["top"].makes([text_output(), piece("hidden")])
        await turns()

        stages["left"].fails(error)

        with pytest.raises(type(error)) as raised:
            await request
        assert raised.value is error
    assert [frame.reason for frame in cancels(stages)] == ["failed"]


async def test_a_broken_link_ends_the_request(new_stages: NewStages) -> None:
    stages = new_stages()
    async with running(stages) as request:
        stages["thinker"].says(text_output())

        stages["thinker"].breaks()

        with pytest.raises(StageUnavailable, match="thinker-0 was lost"):
            await request


async def test_nothing_is_opened_when_a_later_stage_cannot_serve(new_stages: NewStages) -> None:
    stages = new_stages()
    stages["speaker"].says_phase(Phase.DRAINING)

    with pytest.raises(StageUnavailable, match="speaker-0 is draining"):
        await stages.sequence.run(stages.answer)

    assert stages["thinker"].sent == []


async def test_a_stage_that_is_lost_before_its_turn_ends_the_request(
    new_stages: NewStages,
) -> None:
    stages = new_stages()
    async with running(stages) as request:
        stages["talker"].breaks()
        stages["thinker"].makes([piece("hidden")])

        with pytest.raises(StageUnavailable, match="talker-0 is not connected"):
            await request


async def test_a_stage_that_owes_an_output_ends_the_request(new_stages: NewStages) -> None:
    stages = new_stages()
    async with running(stages) as request:
        stages["thinker"].makes([text_output()])

        with pytest.raises(MissingOutput):
            await request


@pytest.mark.parametrize("noticed", [True, False], ids=["refused", "link ended"])
async def test_a_replica_that_went_before_it_began_is_replaced(
    new_stages: NewStages, *, noticed: bool
) -> None:
    """Its last word and our request crossed on the wire; the client need not know."""
    stages = new_stages(replicas=2)
    first, second = stages.links[StageName("thinker")]
    async with running(stages) as request:
        going, other = (first, second) if first.opens else (second, first)
        going.says_phase(Phase.DRAINING)
        if noticed:
            going.fails(Draining("going out of service"))
        else:
            going.breaks(drained=True)
        await turns()

        assert not request.done()
        assert other.opens[0].inputs == (CONVERSATION,)
        other.says(text_output("hi"))
        await turns()
    assert stages.answer.delivered == [(Modality.TEXT, "hi")]
    assert stages.sequence.progress.usages == {}


async def test_a_replica_that_went_and_was_the_last_is_an_error(new_stages: NewStages) -> None:
    stages = new_stages()
    async with running(stages) as request:
        stages["thinker"].says_phase(Phase.DRAINING)
        stages["thinker"].fails(Draining("going out of service"))

        with pytest.raises(StageUnavailable, match="thinker-0 is draining"):
            await request


async def test_what_has_been_heard_is_not_asked_for_again(new_stages: NewStages) -> None:
    stages = new_stages(replicas=2)
    first, second = stages.links[StageName("thinker")]
    async with running(stages) as request:
        going, other = (first, second) if first.opens else (second, first)
        going.says(text_output("hi"))
        await turns()

        going.fails(Draining("going out of service"))

        with pytest.raises(Draining):
            await request
        assert other.opens == []


async def test_credit_is_granted_as_outputs_are_dealt_with(new_stages: NewStages) -> None:
    stages = new_stages()
    async with running(stages):
        for _ in range(CREDIT):
            stages["thinker"].says(text_output("a"))
        await turns()

        assert sum(stages["thinker"].credits) == CREDIT
        assert min(stages["thinker"].credits) >= CREDIT // 2


async def test_a_client_that_does_not_read_grants_nothing(new_stages: NewStages) -> None:
    stages = new_stages()
    stages.answer.reading.clear()
    async with running(stages):
        stages["thinker"].says(text_output("a"))
        await turns()
        for _ in range(CREDIT - 1):
            stages["thinker"].says(text_output("a"))
        await turns()
        assert stages["thinker"].credits == []

        stages.answer.reading.set()
        await turns()
        assert sum(stages["thinker"].credits) >= CREDIT // 2


async def test_a_lost_tensor_of_the_answer_is_an_error(new_stages: NewStages) -> None:
    stages = new_stages()
    async with running(stages) as request:
        for name, made in [("thinker", "hidden"), ("talker", "codes")]:
            stages[name].makes([piece(made)])
            await turns()
        stages["speaker"].says(Output(name=OutputName("speech"), payload=reference().payload))

        with pytest.raises(TensorLost):
            await request


async def test_reports_and_usage_tell_what_each_stage_took(new_stages: NewStages) -> None:
    stages = new_stages()
    async with running(stages) as request:
        for name, made, tokens in [
            ("thinker", piece("hidden"), (7, 16)),
            ("talker", piece("codes"), (0, 40)),
            ("speaker", SPEECH, (0, 1)),
        ]:
            stages[name].says(made)
            usage = Usage(
                input_tokens=tokens[0], output_tokens=tokens[1], queue_us=500, run_us=2000
            )
            stages[name].ends(reason=FinishReason.LENGTH, usage=usage)
            await turns()
        await request

    usage_of_all = stages.sequence.usage()
    assert (usage_of_all.prompt_tokens, usage_of_all.completion_tokens) == (7, 56)
    reports = stages.sequence.reports()
    assert [report.replica for report in reports] == ["thinker-0", "talker-0", "speaker-0"]
    assert {(report.queue_ms, report.run_ms) for report in reports} == {(0.5, 2.0)}
    assert stages.sequence.progress.finish_reason is FinishReason.LENGTH
