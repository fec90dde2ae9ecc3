"""How far a request is: a state machine without I/O over the stops of its route.

Each stop goes WAITING → OPEN → ENDED → RELEASED. A stop can be opened when every producer on its
`Full` edges has ended and every producer on its `Stream` edges is open. What a producer made for
`Full` edges is kept (references and small payloads) until each of its consumers has ended, then its
tensors may be released; what streams does not come by here. A stop that ends without an output it
owes is an error, except for text, which may be empty.
"""

from collections.abc import Iterable
from enum import Enum

from omnistage_common.errors import MissingOutput, ProtocolViolation
from omnistage_common.ids import OutputName, StageName
from omnistage_common.links.frames import End, FinishReason, Usage
from omnistage_common.payloads import Output, Payload, PayloadKind
from omnistage_common.pipeline.plan import OutputPlan
from omnistage_gateway.pipelines.routing import Route, RouteStage

__all__ = ["Progress", "StopState"]


class StopState(Enum):
    """Where a stop is."""

    WAITING = "waiting"
    OPEN = "open"
    ENDED = "ended"
    RELEASED = "released"


class _Stop:
    __slots__ = ("made", "seen", "stage", "state", "unread", "waits_for")

    def __init__(self, stage: RouteStage) -> None:
        self.stage = stage
        self.state = StopState.WAITING
        self.waits_for = len(stage.producers) + len(stage.streams.arriving)
        """Producers that have not ended, and streams whose producers are not open."""
        self.unread = len(stage.consumers)
        """Consumers that have not ended."""
        self.made: dict[OutputName, list[Output]] = {}
        """What it made for its consumers."""
        self.seen: set[OutputName] = set()
        """Names of all that it made."""


class Progress:
    """The stops of one request."""

    def __init__(self, route: Route) -> None:
        self._stops = {stage.name: _Stop(stage) for stage in route.stages}
        self._openable = {
            stage.name: stage for stage in route.stages if not self._stops[stage.name].waits_for
        }
        self.finish_reason = FinishReason.NONE
        self.usages: dict[StageName, Usage] = {}

    @property
    def done(self) -> bool:
        """Whether every stop has ended."""
        return len(self.usages) == len(self._stops)

    def state(self, name: StageName) -> StopState:
        """Where a stop is."""
        return self._stops[name].state

    def openable(self) -> list[RouteStage]:
        """Stops that have all they wait for, and that were not opened yet."""
        return list(self._openable.values())

    def open(self, name: StageName) -> list[Output]:
        """Notes that a stop is opened, or opened elsewhere; what its edges bring it."""
        self._openable.pop(name, None)
        stop = self._stops[name]
        if stop.state is StopState.WAITING:
            for stream in stop.stage.streams.leaving:
                self._met(stream.consumer)
        stop.state = StopState.OPEN
        inputs: list[Output] = []
        for edge in stop.stage.edges_in:
            made = self._stops[edge.producer].made.get(edge.output, ())
            inputs += _whole(edge.output, made, edge.kind)
        return inputs

    def data(self, name: StageName, outputs: Iterable[Output]) -> list[tuple[OutputPlan, Output]]:
        """Notes what a stop made; those pieces that the client gets.

        Raises:
            ProtocolViolation: The stop is not open.
        """
        stop = self._open_stop(name)
        stage = stop.stage
        deliveries: list[tuple[OutputPlan, Output]] = []
        for output in outputs:
            stop.seen.add(output.name)
            if output.name in stage.feeds:
                stop.made.setdefault(output.name, []).append(output)
            deliveries += [(plan, output) for plan in stage.outputs if plan.output == output.name]
        return deliveries

    def end(self, name: StageName, frame: End) -> list[StageName]:
        """Notes that a stop ended well.

        Returns:
            Stops whose tensors nobody needs any more.

        Raises:
            MissingOutput: It did not make what it owes.
            ProtocolViolation: The stop is not open.
        """
        stop = self._open_stop(name)
        stage = stop.stage
        if not stage.owes <= stop.seen:
            missing = ", ".join(map(repr, sorted(stage.owes - stop.seen)))
            raise MissingOutput(f"stage {name} ended without its output {missing}")
        stop.state = StopState.ENDED
        self.usages[name] = frame.usage
        if stage.writes_text and frame.finish_reason is not FinishReason.NONE:
            self.finish_reason = frame.finish_reason
        for consumer in stage.consumers:
            self._met(consumer)
        return self._released(stop)

    def _met(self, consumer: StageName) -> None:
        """One of the things that a stop waits for is there."""
        waiting = self._stops[consumer]
        waiting.waits_for -= 1
        if not waiting.waits_for:
            self._openable[consumer] = waiting.stage

    def streaming_with(self, name: StageName) -> list[RouteStage]:
        """The open stops that streams join to this one, directly or not, and itself; in order."""
        joined = {name}
        found = 0
        while len(joined) > found:
            found = len(joined)
            for stop in self._stops.values():
                for stream in stop.stage.streams.leaving:
                    if joined & {stream.producer, stream.consumer}:
                        joined |= {stream.producer, stream.consumer}
        return [
            stop.stage
            for stop in self._stops.values()
            if stop.stage.name in joined and stop.state is StopState.OPEN
        ]

    def _open_stop(self, name: StageName) -> _Stop:
        stop = self._stops[name]
        if stop.state is not StopState.OPEN:
            raise ProtocolViolation(f"stage {name} spoke while {stop.state.value}")
        return stop

    def _released(self, ended: _Stop) -> list[StageName]:
        """Stops that this end was the last to read, and itself when nobody reads it."""
        released: list[StageName] = []
        for producer in ended.stage.producers:
            stop = self._stops[producer]
            stop.unread -= 1
            if not stop.unread:
                released.append(producer)
        if not ended.unread:
            released.append(ended.stage.name)
        for name in released:
            self._stops[name].state = StopState.RELEASED
            self._stops[name].made.clear()
        return released


def _whole(name: OutputName, pieces: Iterable[Output], kind: PayloadKind) -> list[Output]:
    """The items that the pieces make up: deltas of one text joined, everything else as it is.

    A producer that had nothing to say made one empty text.
    """
    if kind is not PayloadKind.TEXT:
        return list(pieces)
    texts: dict[int, list[str]] = {}
    for piece in pieces:
        texts.setdefault(piece.index, []).append(str(piece.payload.content))
    if not texts:
        texts[0] = []
    return [
        Output(name=name, index=index, payload=Payload(kind=kind, content="".join(texts[index])))
        for index in sorted(texts)
    ]
