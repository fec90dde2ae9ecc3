"""How far a request is: the state machine of its stops, as tables of steps."""

import pytest

from fakes.frames import reference, tensor, text_output
from fakes.graphs import DIAMOND, SPEAKING
from omnistage_common.errors import MissingOutput, ProtocolViolation
from omnistage_common.ids import OutputName, RequestNumber, StageName
from omnistage_common.links.frames import End, FinishReason, Usage
from omnistage_common.payloads import Output, Payload, PayloadKind
from omnistage_common.pipeline.plan import Modality, PipelinePlan
from omnistage_gateway.pipelines.routing import find_route
from omnistage_gateway.requests.progress import Progress, StopState

BOTH = frozenset({Modality.TEXT, Modality.AUDIO})
TYPED = frozenset({OutputName("conversation")})
SPOKEN = TYPED | {OutputName("audio")}


def progress_on(
    plan: PipelinePlan,
    brings: frozenset[OutputName] = TYPED,
    wants: frozenset[Modality] = BOTH,
) -> Progress:
    """A request that has just come in."""
    return Progress(find_route(plan, brings, wants))


def openable(progress: Progress) -> list[str]:
    """Names of the stops that can be opened."""
    return [stop.name for stop in progress.openable()]


def piece(name: str) -> Output:
    """A small tensor under a name."""
    payload = Payload(kind=PayloadKind.HIDDEN_STATES, content=tensor(4))
    return Output(name=OutputName(name), payload=payload)


def ended(reason: FinishReason = FinishReason.NONE) -> End:
    """An End."""
    return End(
        request=RequestNumber(1),
        finish_reason=reason,
        usage=Usage(output_tokens=3),
        data_frames=1,
    )


def run(progress: Progress, name: str, *outputs: Output) -> list[str]:
    """Takes a stop from its opening to its end; the stops whose tensors may go then."""
    stage = StageName(name)
    progress.open(stage)
    progress.data(stage, outputs)
    return list(progress.end(stage, ended()))


def states(progress: Progress, *names: str) -> list[StopState]:
    """Where stops are."""
    return [progress.state(StageName(name)) for name in names]


def test_a_chain_opens_one_stop_after_the_other() -> None:
    progress = progress_on(SPEAKING)
    chain = ("thinker", "talker", "speaker")

    assert openable(progress) == ["thinker"]
    assert run(progress, "thinker", piece("hidden")) == []
    assert openable(progress) == ["talker"]
    assert run(progress, "talker", piece("codes")) == ["thinker"]
    assert states(progress, *chain) == [StopState.RELEASED, StopState.ENDED, StopState.WAITING]
    assert not progress.done
    assert openable(progress) == ["speaker"]
    assert run(progress, "speaker", piece("speech")) == ["talker", "speaker"]
    assert states(progress, *chain) == [StopState.RELEASED] * 3
    assert openable(progress) == []
    assert progress.done


def test_an_open_stop_is_not_opened_again() -> None:
    progress = progress_on(SPEAKING)
    progress.open(StageName("thinker"))

    assert openable(progress) == []
    assert states(progress, "thinker", "talker") == [StopState.OPEN, StopState.WAITING]


def test_a_producer_is_released_with_the_last_of_its_consumers() -> None:
    progress = progress_on(DIAMOND)
    run(progress, "top", piece("hidden"))

    assert openable(progress) == ["left", "right"]
    assert run(progress, "right", text_output("words")) == []
    assert openable(progress) == ["left"]
    assert states(progress, "top") == [StopState.ENDED]
    assert run(progress, "left", piece("codes")) == ["top"]
    assert openable(progress) == ["bottom"]
    assert set(run(progress, "bottom", piece("speech"))) == {"left", "right", "bottom"}
    assert progress.done


def test_a_consumer_gets_what_all_its_producers_made() -> None:
    progress = progress_on(DIAMOND)
    run(progress, "top", piece("hidden"))
    run(progress, "right", text_output("wo"), text_output("rds"))
    run(progress, "left", piece("codes"), piece("codes"))

    inputs = progress.open(StageName("bottom"))

    assert [item.name for item in inputs] == ["codes", "codes", "text"]
    assert inputs[2].payload.content == "words"


def test_both_consumers_of_one_output_get_it() -> None:
    progress = progress_on(DIAMOND)
    run(progress, "top", piece("hidden"))

    left, right = progress.open(StageName("left")), progress.open(StageName("right"))

    assert left == right == [piece("hidden")]


def test_the_inputs_are_the_same_when_a_stop_is_opened_elsewhere() -> None:
    progress = progress_on(SPEAKING)
    run(progress, "thinker", piece("hidden"))

    assert progress.open(StageName("talker")) == progress.open(StageName("talker"))


def test_texts_are_joined_item_by_item_and_come_in_order() -> None:
    progress = progress_on(SPEAKING, SPOKEN)
    pieces = [("b", 1), ("first ", 0), ("c", 1), ("second", 0)]
    run(
        progress,
        "recogniser",
        *(text_output(text, name="transcript", index=index) for text, index in pieces),
    )

    inputs = progress.open(StageName("thinker"))

    assert [(item.index, item.payload.content) for item in inputs] == [
        (0, "first second"),
        (1, "bc"),
    ]


def test_references_are_handed_on_untouched() -> None:
    progress = progress_on(SPEAKING)
    ref = Output(name=OutputName("hidden"), payload=reference().payload)
    run(progress, "thinker", ref)

    assert progress.open(StageName("talker")) == [ref]


def test_pieces_that_the_client_gets_come_back_with_their_plan() -> None:
    progress = progress_on(SPEAKING)
    progress.open(StageName("thinker"))

    delivered = progress.data(
        StageName("thinker"), [text_output("a"), piece("hidden"), text_output("b")]
    )

    assert [(plan.modality, output.payload.content) for plan, output in delivered] == [
        (Modality.TEXT, "a"),
        (Modality.TEXT, "b"),
    ]


def test_outputs_that_nobody_wants_are_dropped() -> None:
    progress = progress_on(SPEAKING, wants=frozenset({Modality.TEXT}))
    progress.open(StageName("thinker"))

    assert progress.data(StageName("thinker"), [piece("hidden"), piece("unheard-of")]) == []
    assert progress.end(StageName("thinker"), ended()) == ["thinker"]


@pytest.mark.parametrize(
    ("done", "stop", "made", "missing"),
    [
        ((), "thinker", text_output(), "hidden"),
        (("thinker.hidden",), "talker", piece("speech"), "codes"),
        (("thinker.hidden", "talker.codes"), "speaker", piece("codes"), "speech"),
    ],
)
def test_a_stop_that_ends_without_what_it_owes_is_an_error(
    done: tuple[str, ...], stop: str, made: Output, missing: str
) -> None:
    progress = progress_on(SPEAKING)
    for each in done:
        name, output = each.split(".")
        run(progress, name, piece(output))

    with pytest.raises(MissingOutput, match=f"{stop} ended without its output '{missing}'"):
        run(progress, stop, made)


def test_text_may_be_empty() -> None:
    progress = progress_on(DIAMOND)
    run(progress, "top", piece("hidden"))
    run(progress, "left", piece("codes"))

    assert run(progress, "right") == ["top"]
    assert progress.open(StageName("bottom")) == [piece("codes"), text_output("")]


def test_a_producer_with_nothing_to_say_hands_on_an_empty_text() -> None:
    progress = progress_on(SPEAKING, SPOKEN)
    run(progress, "recogniser")

    assert progress.open(StageName("thinker")) == [text_output("", name="transcript")]


def test_the_reason_of_the_stage_that_writes_is_the_reason_of_the_request() -> None:
    progress = progress_on(SPEAKING, SPOKEN)
    for name, made, reason in [
        ("recogniser", text_output(name="transcript"), FinishReason.LENGTH),
        ("thinker", piece("hidden"), FinishReason.STOP),
        ("talker", piece("codes"), FinishReason.LENGTH),
        ("speaker", piece("speech"), FinishReason.NONE),
    ]:
        stage = StageName(name)
        progress.open(stage)
        progress.data(stage, [made])
        progress.end(stage, ended(reason))

    assert progress.finish_reason is FinishReason.STOP
    assert list(progress.usages) == ["recogniser", "thinker", "talker", "speaker"]
    assert progress.usages[StageName("talker")].output_tokens == 3


@pytest.mark.parametrize("opened", [False, True], ids=["before its opening", "after its end"])
def test_a_stop_that_speaks_out_of_turn_breaks_the_protocol(*, opened: bool) -> None:
    progress = progress_on(SPEAKING)
    stage = StageName("thinker")
    if opened:
        run(progress, stage, piece("hidden"))

    with pytest.raises(ProtocolViolation, match="thinker spoke while"):
        progress.data(stage, [text_output()])
    with pytest.raises(ProtocolViolation, match="thinker spoke while"):
        progress.end(stage, ended())
