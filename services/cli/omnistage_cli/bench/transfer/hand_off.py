"""How long a small tensor takes from the engine of one stage to the engine of the next.

Two real stage processes and a gateway, as `omnistage up` runs them, with a `Stream` edge between the two
and engines that compute nothing but note the time. Each piece travels alone, so what is measured is the
way and not a queue; how long both stages sleep between two pieces is another matter, which is why there
are two paces.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from omnistage_cli.asking import Question, ask
from omnistage_cli.bench.transfer.engines import PIECE_BYTES, Emission
from omnistage_cli.bench.transfer.methods import PAUSES, Method
from omnistage_cli.bench.transfer.orders import Move, Round
from omnistage_cli.runtime import Launch, Site
from omnistage_common.errors import ServerError
from omnistage_common.pipeline.loading import load_text
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.pipeline.resolver import resolve

__all__ = ["LAUNCH", "HandOff", "hand_off_plan"]

_PIECES: Final = 40
"""In one request that count."""
_FIRST: Final = 5
"""Pieces of each request that are not counted: the consumer is still subscribing."""

_PIPELINE: Final = """
apiVersion: omnistage.io/v1alpha1
kind: PipelineTemplate
metadata: {name: hand-off}
spec:
  stages:
    - name: producer
      execution: Generation
      consumes:
        - {name: conversation, kind: conversation}
      produces:
        - {name: frames, kind: codec_frames}
      defaults: {engine: bench-departure}
    - name: consumer
      execution: Generation
      produces:
        - {name: text, kind: text}
      defaults: {engine: bench-arrival}
  edges:
    - {from: producer, to: consumer, output: frames, mode: Stream}
  outputs:
    - {stage: consumer, output: text, modality: text}
---
apiVersion: omnistage.io/v1alpha1
kind: InferencePipeline
metadata: {name: hand-off}
spec:
  template: {name: hand-off}
  model: {servedNames: [hand-off]}
"""
LAUNCH: Final = Launch(stage=(sys.executable, "-P", "-m", "omnistage_cli.bench.transfer.stage"))
"""What runs the plan."""


def hand_off_plan() -> PipelinePlan:
    """The plan of the two stages; to be run with `LAUNCH`."""
    return resolve(load_text(_PIPELINE, file="hand-off"))


class HandOff:
    """A session of the local runtime that has tensors handed over.

    Args:
        plan: Of the two stages.
        methods: At which paces.
        rounds: Requests of each.
        progress: Told what happens.
        heard: Told of each round when it is over.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        *,
        methods: tuple[Method, ...],
        rounds: int,
        progress: Callable[[str], None],
        heard: Callable[[Round], None],
    ) -> None:
        self.plan = plan
        self.done = False
        """Whether all was measured."""
        self._methods = methods
        self._rounds = rounds
        self._progress = progress
        self._heard = heard

    async def __call__(self, site: Site) -> None:
        """Measures the running pipeline; the first request of each pace is not counted."""
        self._progress(f"hand-off: {self._rounds} x {_PIECES} tensors of {PIECE_BYTES} bytes")
        for number in range(1 + self._rounds):
            for method in self._methods:
                moves = await self._ask(site, method)
                if number:
                    self._heard(Round(bytes=PIECE_BYTES, moves=moves))
        self.done = True

    async def _ask(self, site: Site, method: Method) -> tuple[Move, ...]:
        """What the pieces of one request took.

        Raises:
            ServerError: The answer is something else.
        """
        emission = Emission(pieces=_FIRST + _PIECES, pause_seconds=PAUSES[method])
        question = Question(text=msgspec.json.encode(emission).decode())
        model = self.plan.served_names[0]
        reply = await asyncio.to_thread(ask, site.url, model, question, spoken=False)
        try:
            taken = msgspec.json.decode(reply.text, type=list[int])
        except msgspec.DecodeError as other:
            raise ServerError(f"the consumer did not answer with times: {other}") from other
        return tuple(Move(method=method, total=each) for each in taken[_FIRST:])
