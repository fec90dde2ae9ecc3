"""Which stages a request visits, as a table: plan, what it brings, what it wants, and the stops."""

import pytest

from fakes.deployment import SIMULATED_OMNI, resolved_plan
from fakes.graphs import DIAMOND, SPEAKING, STREAMING, graph_plan
from omnistage_common.errors import UnsupportedModality
from omnistage_common.ids import OutputName, StageName
from omnistage_common.links.frames import Delivery
from omnistage_common.pipeline.plan import Modality, PipelinePlan
from omnistage_gateway.pipelines.routing import Route, Routes, RouteStage, find_route

PLANS = {
    "voice-assistant": resolved_plan(file=SIMULATED_OMNI.with_name("voice-assistant.yaml")),
    "simulated-omni": resolved_plan(),
    "speaking": SPEAKING,
    "diamond": DIAMOND,
    "two readers": graph_plan(
        {"eye": "image?", "ear": "audio?", "thinker": "conversation"},
        *("eye.hidden thinker?", "ear.hidden thinker?"),
        outputs={"thinker.text": "text"},
    ),
    "chorus": graph_plan(
        {"first": "conversation", "second": "audio"},
        outputs={"first.text": "text", "second.text": "text"},
    ),
    "hearing": graph_plan({"thinker": "conversation audio?"}, outputs={"thinker.text": "text"}),
}


def route(plan: str, brings: str, wants: str) -> Route:
    """The route on a plan of the table."""
    return find_route(
        PLANS[plan],
        frozenset(OutputName(name) for name in brings.split()),
        frozenset(Modality(name) for name in wants.split()),
    )


@pytest.mark.parametrize(
    ("plan", "brings", "wants", "stops"),
    [
        ("voice-assistant", "conversation", "text", "thinker"),
        ("voice-assistant", "conversation", "text audio", "thinker speaker"),
        ("voice-assistant", "conversation audio", "text", "recogniser thinker"),
        ("voice-assistant", "conversation audio", "text audio", "recogniser thinker speaker"),
        ("voice-assistant", "conversation", "audio", "thinker speaker"),
        ("simulated-omni", "conversation", "text", "thinker"),
        ("simulated-omni", "conversation", "text audio", "thinker talker code2wav"),
        ("speaking", "conversation audio", "audio", "recogniser thinker talker speaker"),
        ("diamond", "conversation", "text", "top"),
        ("diamond", "conversation", "audio", "top left right bottom"),
        ("two readers", "conversation", "text", "thinker"),
        ("two readers", "conversation image", "text", "eye thinker"),
        ("two readers", "conversation image audio", "text", "eye ear thinker"),
        ("chorus", "conversation audio", "text", "first second"),
        ("hearing", "conversation", "text", "thinker"),
        ("hearing", "conversation audio", "text", "thinker"),
    ],
)
def test_a_request_visits_what_its_answer_needs(
    plan: str, brings: str, wants: str, stops: str
) -> None:
    assert [stop.name for stop in route(plan, brings, wants).stages] == stops.split()


@pytest.mark.parametrize(
    ("plan", "brings", "wants", "field", "words"),
    [
        ("voice-assistant", "conversation", "text image", "modalities", "does not make image"),
        ("voice-assistant", "conversation", "video", "modalities", "makes: audio, text"),
        ("voice-assistant", "conversation image", "text", "messages", "does not take image"),
        ("voice-assistant", "audio", "text", "messages", "cannot make text from audio"),
        ("voice-assistant", "", "text", "messages", "cannot make text from nothing"),
        ("simulated-omni", "conversation audio", "text", "messages", "does not take audio"),
        ("chorus", "conversation", "text", "messages", "cannot make text from conversation"),
        ("hearing", "audio", "text", "messages", "cannot make text from audio"),
        ("hearing", "conversation", "text audio", "modalities", "does not make audio"),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused_by_field(
    plan: str, brings: str, wants: str, field: str, words: str
) -> None:
    with pytest.raises(UnsupportedModality, match=words) as refused:
        route(plan, brings, wants)

    assert refused.value.field == field
    assert PLANS[plan].name in refused.value.message


def stop_of(found: Route, name: str) -> RouteStage:
    """A stop by its name."""
    return next(stop for stop in found.stages if stop.name == name)


def test_a_stop_takes_nothing_from_stages_that_do_not_run() -> None:
    thinker = stop_of(route("voice-assistant", "conversation", "text audio"), "thinker")

    assert thinker.edges_in == ()
    assert [edge.consumer for edge in thinker.edges_out] == ["speaker"]
    assert thinker.request_inputs == ("conversation",)


def test_a_stop_gives_nothing_to_stages_that_do_not_run() -> None:
    thinker = stop_of(route("speaking", "conversation", "text"), "thinker")

    assert thinker.edges_out == ()
    assert [output.modality for output in thinker.outputs] == [Modality.TEXT]


def test_a_stop_takes_only_the_inputs_that_were_brought() -> None:
    assert stop_of(route("hearing", "conversation", "text"), "thinker").request_inputs == (
        "conversation",
    )
    assert stop_of(route("hearing", "conversation audio", "text"), "thinker").request_inputs == (
        "conversation",
        "audio",
    )


def test_text_that_was_not_asked_for_is_not_delivered() -> None:
    found = route("speaking", "conversation", "audio")

    assert stop_of(found, "thinker").outputs == ()
    assert [output.output for output in stop_of(found, "speaker").outputs] == ["speech"]


def test_a_transcript_is_delivered_whenever_its_stage_runs() -> None:
    found = route("speaking", "conversation audio", "text")

    (transcript,) = stop_of(found, "recogniser").outputs
    assert (transcript.output, transcript.modality) == ("transcript", None)


@pytest.mark.parametrize(
    ("stop", "stream", "delivery"),
    [
        ("thinker", True, Delivery.DELTAS),
        ("thinker", False, Delivery.FINAL),
        ("talker", True, Delivery.FINAL),
        ("code2wav", True, Delivery.DELTAS),
    ],
)
def test_only_what_the_client_sees_is_delivered_piece_by_piece(
    stop: str, *, stream: bool, delivery: Delivery
) -> None:
    found = route("simulated-omni", "conversation", "text audio")

    assert stop_of(found, stop).delivery(stream=stream) is delivery


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_producers_stand_before_their_consumers(plan: PipelinePlan) -> None:
    brings = frozenset(item.name for stage in plan.stages for item in stage.consumes)
    wants = frozenset(output.modality for output in plan.outputs if output.modality)
    seen: set[StageName] = set()
    for stop in find_route(plan, brings, wants).stages:
        assert {edge.producer for edge in stop.edges_in} <= seen
        seen.add(stop.name)


def test_a_route_is_worked_out_once() -> None:
    routes = Routes(SPEAKING)
    brings, wants = frozenset({OutputName("conversation")}), frozenset({Modality.TEXT})

    assert routes.find(brings, wants) is routes.find(brings, wants)
    with pytest.raises(UnsupportedModality):
        routes.find(brings, frozenset({Modality.VIDEO}))


def test_what_streams_is_neither_kept_nor_owed_at_the_gateway() -> None:
    thinker, talker, speaker = find_route(
        STREAMING,
        frozenset({OutputName("conversation")}),
        frozenset({Modality.TEXT, Modality.AUDIO}),
    ).stages

    assert (thinker.producers, thinker.consumers, thinker.feeds) == ((), (), frozenset())
    assert thinker.owes == talker.owes == frozenset()
    assert speaker.owes == {"speech"}
    assert thinker.streams.leaving == talker.streams.arriving
    assert thinker.streams.leaving[0].outputs == ("hidden", "tokens")
    assert talker.makes_frames
    assert not thinker.makes_frames


def test_an_output_that_only_optional_edges_take_may_be_left_out() -> None:
    plan = graph_plan(
        {"encoder": "conversation", "dit": ""},
        *("encoder.hidden dit", "encoder.tokens dit?"),
        outputs={"dit.image": "image"},
    )

    encoder, _ = find_route(
        plan, frozenset({OutputName("conversation")}), frozenset({Modality.IMAGE})
    ).stages

    assert encoder.owes == {"hidden"}
    assert encoder.feeds == {"hidden", "tokens"}
