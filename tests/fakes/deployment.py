"""A pipeline as real processes: stages and gateways, started, asked, broken and ended by a test.

Synchronous throughout, so that one deployment can serve tests that each have an event loop of their
own. It starts the services as they ship, from a plan that the resolver made; nothing in it knows
what a pipeline computes. Whatever a test does to it, `close` leaves no process and no shared memory.
"""

import contextlib
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc
import msgspec
from grpc_health.v1 import health_pb2

from omnistage_cli.runtime.ports import LOOPBACK, free_ports
from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.ids import ReplicaId, StageName
from omnistage_common.pipeline.assignments import assignment_of, encode_assignment
from omnistage_common.pipeline.loading import load_file, load_text
from omnistage_common.pipeline.overrides import parse_override
from omnistage_common.pipeline.plan import PipelinePlan, encode_plan
from omnistage_common.pipeline.resolver import resolve
from omnistage_common.tensors import SHARED_MEMORY_FOLDER
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc

__all__ = [
    "SIMULATED_OMNI",
    "Deploy",
    "Deployment",
    "Gateway",
    "Service",
    "StageReplica",
    "deployed",
    "plan_from_text",
    "resolved_plan",
    "within",
    "write_assignments",
]

SIMULATED_OMNI: Final = Path(__file__).parents[2] / "deploy" / "pipelines" / "simulated-omni.yaml"
START_SECONDS: Final = 180.0
"""Bound of every start; a loaded machine takes a multiple of what an idle one takes."""
STOP_SECONDS: Final = 20.0
_STARTER: Final = ThreadPoolExecutor(1, thread_name_prefix="starter")
"""Starts every process: to the kernel, the thread that starts a child is the parent whose end it
is told of, and a test's own threads end with the test."""


def resolved_plan(*overrides: str, file: Path = SIMULATED_OMNI) -> PipelinePlan:
    """The plan of the pipeline in a file; overrides as `omnistage up --set` takes them."""
    return resolve(load_file(file), overrides=[parse_override(text) for text in overrides])


def plan_from_text(text: str) -> PipelinePlan:
    """The plan of the only pipeline in YAML text."""
    return resolve(load_text(text, file="test.yaml"))


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true within that time; asks a hundred times a second."""
    pause = threading.Event()
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        pause.wait(0.01)
    return True


class Service:
    """A process and its log."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._arguments = arguments
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._terminated = False
        self.started_at = 0.0

    def start(self) -> None:
        """Starts the process, again if it has ended."""
        self.started_at = time.monotonic()
        self._terminated = False
        self._process = _STARTER.submit(self._popen).result()

    def _popen(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", *self._arguments, "--exit-with-parent"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        if self._process is None:
            raise AssertionError(f"{self.name} was not started")
        return self._process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def log(self) -> str:
        """All that it wrote, over all its lives."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Ends it without a chance to say so."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)
        self.remove_segments()

    def freeze(self) -> None:
        """Stops it from running; its sockets stay open."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it run again."""
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Asks it to drain, once: a second signal would end it at once."""
        if self._process is not None and not self._terminated:
            self._terminated = True
            self.thaw()
            self.process.terminate()

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(STOP_SECONDS)

    def close(self) -> None:
        """Ends it, whatever state it is in."""
        if self._process is None:
            return
        self.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.remove_segments()

    def segments(self) -> list[Path]:
        """Its shared memory."""
        return list(SHARED_MEMORY_FOLDER.glob(f"omnistage-{self.pid}-*"))

    def remove_segments(self) -> None:
        """Removes what a killed process cannot remove itself."""
        for segment in self.segments():
            segment.unlink(missing_ok=True)

    def check_alive(self) -> None:
        """Fails with its log when it has ended."""
        status = self.process.poll()
        if status is not None:
            raise AssertionError(f"{self.name} ended with {status}:\n{self.log[-4000:]}")


def write_assignments(plan: PipelinePlan, folder: Path) -> None:
    """Writes what the replicas of each stage read."""
    for stage in plan.stages:
        path = folder / f"stage-{stage.name}.json"
        path.write_bytes(encode_assignment(assignment_of(plan, stage.name)))


class StageReplica(Service):
    """One replica of one stage."""

    def __init__(self, stage: StageName, replica: ReplicaId, port: int, folder: Path) -> None:
        self.stage = stage
        self.address = f"{LOOPBACK}:{port}"
        assignment, log = folder / f"stage-{stage}.json", folder / f"{replica}.log"
        super().__init__(
            replica,
            (
                "omnistage_stage",
                *("--assignment", str(assignment), "--replica", replica),
                *("--listen", self.address),
            ),
            log,
        )

    def wait_serving(self) -> float:
        """Returns when it serves; the time of that."""
        with grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            watch = channel.unary_stream(
                "/grpc.health.v1.Health/Watch",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            request = health_pb2.HealthCheckRequest(service="")
            try:
                for answer in watch(request, wait_for_ready=True, timeout=START_SECONDS):
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return time.monotonic()
            except grpc.RpcError as broken:
                self.check_alive()
                raise AssertionError(f"{self.name} does not serve:\n{self.log[-4000:]}") from broken
        raise AssertionError(f"{self.name} ended its health stream:\n{self.log[-4000:]}")

    def describe(self) -> stage_pb2.DescribeResponse:
        """What it says of itself."""
        with grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            stub = stage_pb2_grpc.StageServiceStub(channel)
            return stub.Describe(stage_pb2.DescribeRequest(), timeout=5.0)

    def restart(self) -> None:
        """Starts it again and waits until it serves."""
        self.start()
        self.wait_serving()


class Gateway(Service):
    """One gateway process."""

    def __init__(self, name: str, port: int, folder: Path, arguments: Sequence[str]) -> None:
        self.port = port
        self.url = f"http://{LOOPBACK}:{port}"
        plan, endpoints = folder / "plan.json", folder / "endpoints.json"
        super().__init__(
            name,
            (
                "omnistage_gateway",
                *("--plan", str(plan), "--endpoints", str(endpoints)),
                *("--listen", f"{LOOPBACK}:{port}", *arguments),
            ),
            folder / f"{name}.log",
        )

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET; status 0 when nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 - ours
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""

    @property
    def ready(self) -> bool:
        """Whether every stage can be reached through it."""
        self.check_alive()
        return self.get("/readyz")[0] == 200

    def wait_ready(self) -> float:
        """Returns when it is ready; the time of that."""
        assert within(START_SECONDS, lambda: self.ready), self.log[-4000:]
        return time.monotonic()

    def times_found(self, replica: str) -> int:
        """How often it has found a replica ready, as its log says."""
        words = (f'"replica": "{replica}"', '"phase": "ready"')
        return sum(all(word in line for word in words) for line in self.log.splitlines())

    def wait_found(self, replica: str, times: int) -> None:
        """Returns when it has found a replica ready that often."""
        assert within(START_SECONDS, lambda: self.times_found(replica) >= times), self.log[-4000:]

    def metric(self, name: str) -> float:
        """Sum over all samples of a metric whose lines begin with the name."""
        lines = self.get("/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


class Deployment:
    """The replicas of a plan and a gateway in front of them.

    Args:
        plan: Each stage gets as many replicas as it says.
        folder: For plan, endpoints and logs.
        arguments: More arguments for the first gateway.
    """

    def __init__(self, plan: PipelinePlan, folder: Path, arguments: Sequence[str] = ()) -> None:
        self.plan = plan
        self._folder = folder
        slots = [(stage.name, index) for stage in plan.stages for index in range(stage.replicas)]
        self.replicas = {
            ReplicaId(f"{stage}-{index}"): StageReplica(
                stage, ReplicaId(f"{stage}-{index}"), port, folder
            )
            for (stage, index), port in zip(slots, free_ports(len(slots)), strict=True)
        }
        (folder / "plan.json").write_bytes(encode_plan(plan))
        write_assignments(plan, folder)
        endpoints = [
            ReplicaEndpoint(stage=replica.stage, replica=name, address=replica.address)
            for name, replica in self.replicas.items()
        ]
        (folder / "endpoints.json").write_bytes(msgspec.json.encode({"replicas": endpoints}))
        self.gateways: list[Gateway] = []
        self._arguments = arguments

    def start(self) -> None:
        """Starts everything and waits until it serves."""
        for replica in self.replicas.values():
            replica.start()
        self.add_gateway(*self._arguments)

    def add_gateway(self, *arguments: str) -> Gateway:
        """Starts one more gateway in front of the same replicas and waits until it is ready."""
        name = f"gateway-{len(self.gateways)}"
        gateway = Gateway(name, free_ports(1)[0], self._folder, arguments)
        self.gateways.append(gateway)
        gateway.start()
        gateway.wait_ready()
        return gateway

    @property
    def gateway(self) -> Gateway:
        """The first gateway."""
        return self.gateways[0]

    @property
    def services(self) -> list[Service]:
        """All processes."""
        return [*self.gateways, *self.replicas.values()]

    def replica(self, name: str) -> StageReplica:
        """A replica by its name."""
        return self.replicas[ReplicaId(name)]

    def revive(self, name: str) -> None:
        """Starts a replica again and waits until the gateways that run have found it."""
        gateways = [each for each in self.gateways if each.process.poll() is None]
        before = [gateway.times_found(name) for gateway in gateways]
        self.replica(name).restart()
        for gateway, times in zip(gateways, before, strict=True):
            gateway.wait_found(name, times + 1)

    @property
    def idle(self) -> bool:
        """Whether every replica says that it holds nothing."""
        return not any(self.held().values())

    def held(self) -> dict[str, int]:
        """What all replicas hold together, as they say."""
        occupancies = [replica.describe().occupancy for replica in self.replicas.values()]
        return {
            "running": sum(each.running for each in occupancies),
            "queued": sum(each.queued for each in occupancies),
            "leases": sum(each.leases for each in occupancies),
            "slab_bytes": sum(each.slab_bytes for each in occupancies),
            "open_requests": sum(each.open_requests for each in occupancies),
        }

    def segments(self) -> set[str]:
        """Names of the shared memory of all processes."""
        return {path.name for service in self.services for path in service.segments()}

    def close(self) -> None:
        """Ends everything, gateways first."""
        for service in self.services:
            service.terminate()
        for service in self.services:
            service.close()


Deploy = Callable[..., Deployment]
"""Starts a deployment from a plan and more arguments for its gateway, and ends it by itself."""


@contextlib.contextmanager
def deployed(plan: PipelinePlan, folder: Path, *arguments: str) -> Iterator[Deployment]:
    """A deployment that serves, ended when the context ends."""
    deployment = Deployment(plan, folder, arguments)
    try:
        deployment.start()
        yield deployment
    finally:
        deployment.close()
