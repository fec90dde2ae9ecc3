"""A stage process that computes nothing, as the local runtime sees one.

It keeps the contract of `python -m omnistage_stage` (arguments, health, Describe, SIGTERM, exit
codes, shared memory), notes its process id in `plan.json.pids`
of its run, and misbehaves as the variable
FAKE_STAGE of its plan's `env` says:

    crash    writes a line and exits with code 1
    setup    exits with code 3, as one whose arguments are wrong
    deaf     ignores SIGTERM
    parent   starts a process of its own, whose id it writes to `plan.json.<replica>.child`
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Never

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from omnistage_common.channels import SERVER_OPTIONS
from omnistage_common.processes import exit_with_parent, resident_bytes
from omnistage_common.tensors import SHARED_MEMORY_FOLDER
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc


class Servicer(stage_pb2_grpc.StageServiceServicer):
    """Says what it is; does nothing else."""

    async def Describe(self, _request: object, _context: object) -> stage_pb2.DescribeResponse:  # noqa: N802
        """As if two requests ran and one waited."""
        return stage_pb2.DescribeResponse(
            phase=stage_pb2.PHASE_READY,
            occupancy=stage_pb2.Occupancy(running=2, queued=1),
            resident_bytes=resident_bytes(),
            pid=os.getpid(),
        )

    def Link(self, _requests: object, _context: object) -> Never:  # noqa: N802
        """Is not asked for."""
        raise NotImplementedError

    def Drain(self, _request: object, _context: object) -> Never:  # noqa: N802
        """Is not asked for."""
        raise NotImplementedError


def arguments() -> argparse.Namespace:
    """What the runtime passed."""
    parser = argparse.ArgumentParser()
    for option in ("--assignment", "--replica", "--listen", "--metrics"):
        parser.add_argument(option, required=True)
    parser.add_argument("--exit-with-parent", action="store_true")
    return parser.parse_args()


async def serve(options: argparse.Namespace, *, deaf: bool) -> None:
    """Loads for a moment, then serves until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, (lambda: None) if deaf else stop.set
    )
    server = grpc.aio.server(options=SERVER_OPTIONS)
    stage_pb2_grpc.add_StageServiceServicer_to_server(Servicer(), server)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    server.add_insecure_port(options.listen)
    await server.start()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    await stop.wait()
    await server.stop(0)


def main() -> None:
    """Runs as FAKE_STAGE says."""
    options = arguments()
    behaviour = os.environ.get("FAKE_STAGE", "")
    if options.exit_with_parent:
        exit_with_parent()
    plan = Path(options.assignment).parent / "plan.json"
    with Path(f"{plan}.pids").open("a") as note:
        note.write(f"{os.getpid()}\n")
    segment = SHARED_MEMORY_FOLDER / f"omnistage-{os.getpid()}-{os.urandom(8).hex()}"
    segment.write_bytes(b"tensor")
    if behaviour == "crash":
        sys.stderr.write('{"event": "the model is not there", "level": "error"}\n')
        sys.exit(1)
    if behaviour == "setup":
        sys.stderr.write("unknown engine argument\n")
        sys.exit(3)
    if behaviour == "parent":
        child = subprocess.Popen(["/bin/sleep", "1000"])
        Path(f"{plan}.{options.replica}.child").write_text(str(child.pid))
    asyncio.run(serve(options, deaf=behaviour == "deaf"))
    segment.unlink()


if __name__ == "__main__":
    main()
