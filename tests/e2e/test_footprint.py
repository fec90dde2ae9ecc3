"""What processes that compute nothing cost: memory, and the time until they serve.

The figures are printed. Time is the best of three starts, since a machine that does
other things as well can only make it longer; a machine that is overloaded gets more in proportion.
"""

import os
from pathlib import Path

import httpx
import pytest

from fakes.deployment import (
    Deploy,
    Deployment,
    Gateway,
    StageReplica,
    resolved_plan,
    write_assignments,
)
from fakes.raw_client import PATH, question
from omnistage_cli.runtime.ports import free_ports
from omnistage_common.ids import ReplicaId, StageName
from omnistage_common.processes import resident_bytes

MB = 1_000_000
STAGE_MB = 70
GATEWAY_MB = 120
READY_S = 2.0
STARTS = 3


def crowding() -> float:
    """How many processes there are to a processor; 1 at least."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def test_a_simulated_stage_is_small_and_ready_soon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_assignments(resolved_plan(), tmp_path)
    thinker, (port,) = StageName("thinker"), free_ports(1)
    seconds, megabytes = [], []
    for _ in range(STARTS):
        stage = StageReplica(thinker, ReplicaId("thinker-0"), port, tmp_path)
        stage.start()
        try:
            seconds.append(stage.wait_serving() - stage.started_at)
            megabytes.append(resident_bytes(stage.pid) / MB)
        finally:
            stage.close()

    with capsys.disabled():
        print(f"\nstage: {max(megabytes):.1f} MB, ready in {min(seconds):.2f} s")  # noqa: T201
    assert max(megabytes) < STAGE_MB
    assert min(seconds) < READY_S * crowding()


def test_stages_and_gateway_stay_small_while_they_serve(
    omni: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(50):
        for speak in (False, True):
            body = question("simulated-omni", speak=speak)
            httpx.post(omni.gateway.url + PATH, json=body).raise_for_status()

    gateway = resident_bytes(omni.gateway.pid) / MB
    stages = {name: resident_bytes(each.pid) / MB for name, each in omni.replicas.items()}

    stage = max(stages.values())
    with capsys.disabled():
        print(f"\nafter 100 requests: gateway {gateway:.1f} MB, stages {stage:.1f} MB")  # noqa: T201
    assert gateway < GATEWAY_MB
    assert stage < STAGE_MB, stages


def test_only_a_gateway_that_takes_recordings_loads_what_decodes_them(
    pair: Deployment, deploy: Deploy
) -> None:
    silent = deploy(resolved_plan())

    def decodes(gateway: Gateway) -> bool:
        return "sndfile" in Path(f"/proc/{gateway.pid}/maps").read_text()

    assert decodes(pair.add_gateway()), "before the first recording comes"
    assert not decodes(silent.gateway)
