"""A gateway's HTTP application whose replicas answer what a test told them to, at once.

Everything is real but for the links: the application, its routes, its admission, its tensor plane.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client import CollectorRegistry

from fakes.scripted_link import ScriptedLink
from omnistage_common.errors import OmnistageError
from omnistage_common.ids import OutputName, RequestNumber, new_incarnation, this_host
from omnistage_common.links.frames import Progress, Usage
from omnistage_common.payloads import (
    ElementType,
    Output,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
)
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.tensors import TensorPlane
from omnistage_gateway.admission import Admission
from omnistage_gateway.app import build_app
from omnistage_gateway.endpoints.exchange import Services
from omnistage_gateway.metrics import GatewayMetrics
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.pipelines.pipeline import Pipeline
from omnistage_gateway.replicas.pool import StagePool
from omnistage_gateway.tensor_planes import TensorPlanes

__all__ = [
    "MAX_REQUESTS",
    "AnsweringLink",
    "AskedGateway",
    "image_output",
    "sound_output",
    "video_output",
]

SLAB_BYTES: Final = 1 << 20
MAX_BODY_BYTES: Final = 1 << 20
MAX_REQUESTS: Final = 4
TURNS: Final = 10
"""Of the event loop: time for what was said to reach the client."""


def _output(name: str, kind: PayloadKind, header: TensorHeader, fill: int, index: int) -> Output:
    tensor = Tensor(header=header, data=bytes((fill,)) * header.length)
    return Output(name=OutputName(name), payload=Payload(kind=kind, content=tensor), index=index)


def image_output(
    fill: int = 0, *, index: int = 0, height: int = 8, width: int = 16, name: str = "image"
) -> Output:
    """An image of one grey."""
    header = TensorHeader(element_type=ElementType.UINT8, shape=(height, width, 3))
    return _output(name, PayloadKind.IMAGE, header, fill, index)


def video_output(frames: int = 3, *, rate_hz: int = 8, name: str = "video") -> Output:
    """Some black frames of a video."""
    header = TensorHeader(element_type=ElementType.UINT8, shape=(frames, 8, 16, 3), rate_hz=rate_hz)
    return _output(name, PayloadKind.VIDEO, header, 0, 0)


def sound_output(samples: int = 240, fill: int = 1, *, name: str = "speech") -> Output:
    """Some equal samples of sound."""
    header = TensorHeader(element_type=ElementType.INT16, shape=(samples,), rate_hz=24_000)
    return _output(name, PayloadKind.WAVEFORM, header, fill, 0)


class AnsweringLink(ScriptedLink):
    """A replica that has answered by the time it was asked.

    Attributes:
        outputs: What it makes, a frame each; an error ends the request with it.
        steps: Progress that it reports before.
        answers: False for a replica that says nothing by itself.
        slow: True for one that lets some turns pass before every frame.
    """

    def __init__(self, stage: str, outputs: Iterable[Output | OmnistageError]) -> None:
        super().__init__(stage)
        self.outputs = tuple(outputs)
        self.steps: tuple[tuple[int, int], ...] = ()
        self.input_tokens = 0
        self.answers = True
        self.slow = False

    def open(self, *args: Any, **kwargs: Any) -> RequestNumber:
        """Opens a request and answers it."""
        number = super().open(*args, **kwargs)
        if self.slow:
            self._say_slowly(list(self._frames()), TURNS)
        elif self.answers:
            for say in self._frames():
                say()
        return number

    def reports(self, done: int, total: int) -> None:
        """The last request is that far."""
        self._receive(Progress(request=self.opens[-1].request, done=done, total=total))

    def _frames(self) -> Iterator[Callable[[], None]]:
        """What it says, one thing after the other."""
        for done, total in self.steps:
            yield partial(self.reports, done, total)
        for output in self.outputs:
            if isinstance(output, OmnistageError):
                yield partial(self.fails, output)
                return
            yield partial(self.says, output)
        yield partial(self.ends, usage=Usage(input_tokens=self.input_tokens))

    def _say_slowly(self, frames: list[Callable[[], None]], turns: int) -> None:
        if not turns:
            frames.pop(0)()
            turns = TURNS
        if frames:
            asyncio.get_running_loop().call_soon(self._say_slowly, frames, turns - 1)


class AskedGateway:
    """See the module.

    Args:
        plan: What it serves.
        makes: Stage -> what its replica makes of every request.
        folder: For shared memory.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        makes: Mapping[str, Iterable[Output | OmnistageError]],
        folder: Path,
    ) -> None:
        self.links = {
            stage.name: AnsweringLink(stage.name, makes[stage.name]) for stage in plan.stages
        }
        pools = {name: StagePool(name, [link]) for name, link in self.links.items()}
        catalog = Catalog()
        pipeline = Pipeline(plan, pools)
        catalog.put(pipeline)
        catalog.direct(pipeline.key, pipeline.revision)
        self.admission = Admission(
            max_requests=MAX_REQUESTS,
            max_body_bytes=MAX_BODY_BYTES,
            body_budget_bytes=2 * MAX_BODY_BYTES,
        )
        self.plane = TensorPlane(
            incarnation=new_incarnation(),
            host=this_host(),
            slab_bytes=SLAB_BYTES,
            directory=folder,
        )
        registry = CollectorRegistry()
        services = Services(
            catalog=catalog,
            admission=self.admission,
            planes=TensorPlanes(lambda _: self.plane),
            metrics=GatewayMetrics(registry, admission=self.admission, catalog=catalog),
        )
        self.app = build_app(services, registry, check_ready=lambda: None)

    def __getitem__(self, stage: str) -> AnsweringLink:
        return next(link for name, link in self.links.items() if name == stage)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """An HTTP client; at the end nothing of its requests may be left."""
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client
        held = self.plane.statistics()
        assert (held.leases, held.waiting, self.admission.requests) == (0, 0, 0)
        assert all(link.outstanding == 0 for link in self.links.values())
        self.plane.close()
