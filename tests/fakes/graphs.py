"""Plans of any graph in a few words, for what walks the graph and never runs it."""

from collections.abc import Mapping
from typing import Final

from omnistage_common.ids import (
    EngineName,
    ModelName,
    OutputName,
    PipelineName,
    Revision,
    StageName,
)
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.plan import (
    ChunkPlan,
    EdgeMode,
    EdgePlan,
    Execution,
    InputPlan,
    Limits,
    Modality,
    OutputPlan,
    PipelinePlan,
    ProducePlan,
    StagePlan,
    Timeouts,
)

__all__ = ["CHUNKS", "DIAMOND", "SPEAKING", "STREAMING", "graph_plan"]

_KINDS: Final = {
    "audio": PayloadKind.WAVEFORM,
    "codes": PayloadKind.CODEC_FRAMES,
    "conversation": PayloadKind.CONVERSATION,
    "hidden": PayloadKind.HIDDEN_STATES,
    "image": PayloadKind.IMAGE,
    "speech": PayloadKind.WAVEFORM,
    "text": PayloadKind.TEXT,
    "tokens": PayloadKind.TOKENS,
    "transcript": PayloadKind.TEXT,
    "video": PayloadKind.VIDEO,
}
"""Name of an input or output -> what it is."""


CHUNKS: Final = ChunkPlan(first_frames=(2, 4, 8, 16), frames=25)
"""How codec frames are gathered on a stream."""


def graph_plan(
    stages: Mapping[str, str],
    *edges: str,
    outputs: Mapping[str, str],
    name: str = "graph",
    request_seconds: float = 30.0,
) -> PipelinePlan:
    """A plan of simulated stages.

    Args:
        stages: Name -> what it takes from the request, e.g. `conversation audio?`; producers first.
        edges: `producer.output consumer`, with a question mark at the end where it is optional, and
            a tilde before the consumer where it streams; codes stream in `CHUNKS`.
        outputs: `stage.output` -> its modality, empty for a transcript of the client's input.
        name: Of the pipeline, and of its model.
        request_seconds: Its timeout.
    """
    every = tuple(_edge(edge) for edge in edges)
    finals = tuple(_final(output, modality) for output, modality in outputs.items())
    made = {(edge.producer, edge.output) for edge in every}
    made |= {(final.stage, final.output) for final in finals}
    return PipelinePlan(
        name=PipelineName(name),
        namespace="default",
        served_names=(ModelName(name),),
        stages=tuple(
            _stage(stage, takes, sorted(output for maker, output in made if maker == stage))
            for stage, takes in stages.items()
        ),
        edges=every,
        outputs=finals,
        timeouts=Timeouts(request=request_seconds, drain=1.0),
        revision=Revision("r"),
        origins={},
    )


def _edge(text: str) -> EdgePlan:
    made, consumer = text.removesuffix("?").split()
    producer, output = made.split(".")
    streams = consumer.startswith("~")
    return EdgePlan(
        producer=StageName(producer),
        consumer=StageName(consumer.removeprefix("~")),
        output=OutputName(output),
        kind=_KINDS[output],
        mode=EdgeMode.STREAM if streams else EdgeMode.FULL,
        optional=text.endswith("?"),
        chunk=CHUNKS if streams and output == "codes" else None,
    )


def _final(text: str, modality: str) -> OutputPlan:
    stage, output = text.split(".")
    return OutputPlan(
        stage=StageName(stage),
        output=OutputName(output),
        kind=_KINDS[output],
        modality=Modality(modality) if modality else None,
    )


def _stage(name: str, takes: str, makes: list[OutputName]) -> StagePlan:
    return StagePlan(
        name=StageName(name),
        execution=Execution.GENERATION,
        engine=EngineName("simulated"),
        engine_args={},
        model="",
        consumes=tuple(_input(each) for each in takes.split()),
        produces=tuple(ProducePlan(name=output, kind=_KINDS[output]) for output in makes),
        replicas=1,
        limits=Limits(max_running=4, max_queued=4, slab_bytes=1 << 20),
        env={},
        revision=Revision("r"),
    )


def _input(text: str) -> InputPlan:
    name = text.removesuffix("?")
    return InputPlan(name=OutputName(name), kind=_KINDS[name], optional=text.endswith("?"))


SPEAKING: Final = graph_plan(
    {"recogniser": "audio", "thinker": "conversation", "talker": "", "speaker": ""},
    *("recogniser.transcript thinker?", "thinker.hidden talker", "talker.codes speaker"),
    outputs={"thinker.text": "text", "speaker.speech": "audio", "recogniser.transcript": ""},
)
"""Speech or text in, text and speech out."""

DIAMOND: Final = graph_plan(
    {"top": "conversation", "left": "", "right": "", "bottom": ""},
    *("top.hidden left", "top.hidden right", "left.codes bottom", "right.text bottom"),
    outputs={"top.text": "text", "bottom.speech": "audio"},
)
"""One producer with two consumers, one consumer with two producers."""

STREAMING: Final = graph_plan(
    {"recogniser": "audio", "thinker": "conversation", "talker": "", "speaker": ""},
    "recogniser.transcript thinker?",
    *("thinker.hidden ~talker", "thinker.tokens ~talker", "talker.codes ~speaker"),
    outputs={"thinker.text": "text", "speaker.speech": "audio", "recogniser.transcript": ""},
)
"""The same, with everything after the thinker's start chunk by chunk."""
