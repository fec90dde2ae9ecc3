"""How far a request is: a state machine without I/O over the stops of its route.

Each stop goes WAITING → OPEN → ENDED → RELEASED. A stop can be opened when every producer on its
edges has ended; what a producer made is kept (references and small payloads) until each of its
consumers has ended, then its tensors may be released. A stop that ends without an output it owes is
an error, except for text, which may be empty.
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
    __slots__ = ("delivered", "made", "stage", "state", "wanted")

    def __init__(self, stage: RouteStage) -> None:
        self.stage = stage
        self.state = StopState.WAITING
        self.wanted = {edge.output for edge in stage.edges_out}
        self.made: dict[OutputName, list[Output]] = {}
        self.delivered: set[OutputName] = set()


class Progress:
    """The stops of one request."""

    def __init__(self, route: Route) -> None:
        self._stops = {stage.name: _Stop(stage) for stage in route.stages}
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
        """Stops whose producers have all ended, and that were not opened yet."""
        return [
            stop.stage
            for stop in self._stops.values()
            if stop.state is StopState.WAITING
            and all(edge.producer in self.usages for edge in stop.stage.edges_in)
        ]

    def open(self, name: StageName) -> list[Output]:
        """Notes that a stop is opened, or opened elsewhere; what its edges bring it."""
        stop = self._stops[name]
        stop.state = StopState.OPEN
        inputs: list[Output] = []
        for edge in stop.stage.edges_in:
            inputs += _whole(self._stops[edge.producer].made.get(edge.output, ()), edge.kind)
        return inputs

    def data(self, name: StageName, outputs: Iterable[Output]) -> list[tuple[OutputPlan, Output]]:
        """Notes what a stop made; those pieces that the client gets.

        Raises:
            ProtocolViolation: The stop is not open.
        """
        stop = self._open_stop(name)
        deliveries: list[tuple[OutputPlan, Output]] = []
        for output in outputs:
            if output.name in stop.wanted:
                stop.made.setdefault(output.name, []).append(output)
            for plan in stop.stage.outputs:
                if plan.output == output.name:
                    stop.delivered.add(output.name)
                    deliveries.append((plan, output))
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
        for edge in stop.stage.edges_out:
            if edge.kind is not PayloadKind.TEXT and edge.output not in stop.made:
                raise MissingOutput(f"stage {name} ended without its output {edge.output!r}")
        for plan in stop.stage.outputs:
            if plan.kind is not PayloadKind.TEXT and plan.output not in stop.delivered:
                raise MissingOutput(f"stage {name} ended without its output {plan.output!r}")
        stop.state = StopState.ENDED
        self.usages[name] = frame.usage
        if frame.finish_reason is not FinishReason.NONE and self._writes_text(stop):
            self.finish_reason = frame.finish_reason
        return self._releasable()

    def _open_stop(self, name: StageName) -> _Stop:
        stop = self._stops[name]
        if stop.state is not StopState.OPEN:
            raise ProtocolViolation(f"stage {name} spoke while {stop.state.value}")
        return stop

    def _writes_text(self, stop: _Stop) -> bool:
        return any(plan.kind is PayloadKind.TEXT for plan in stop.stage.outputs)

    def _releasable(self) -> list[StageName]:
        released: list[StageName] = []
        for name, stop in self._stops.items():
            consumers = (edge.consumer for edge in stop.stage.edges_out)
            if stop.state is StopState.ENDED and all(
                consumer in self.usages for consumer in consumers
            ):
                stop.state = StopState.RELEASED
                stop.made.clear()
                released.append(name)
        return released


def _whole(pieces: Iterable[Output], kind: PayloadKind) -> list[Output]:
    """The items that the pieces make up: deltas of one text joined, everything else as it is."""
    if kind is not PayloadKind.TEXT:
        return list(pieces)
    texts: dict[tuple[OutputName, int], list[str]] = {}
    for piece in pieces:
        texts.setdefault((piece.name, piece.index), []).append(str(piece.payload.content))
    return [
        Output(
            name=name, index=index, payload=Payload(kind=kind, content="".join(texts[name, index]))
        )
        for name, index in sorted(texts)
    ]
