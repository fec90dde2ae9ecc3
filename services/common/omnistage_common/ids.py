"""Names and numbers that must not be mixed up.

Each is a `NewType`: free at run time, and a wrong one is a type error.
"""

import secrets
from pathlib import Path
from typing import NewType

__all__ = [
    "EngineName",
    "HostId",
    "Incarnation",
    "LeaseId",
    "ModelName",
    "OutputName",
    "PipelineName",
    "ReplicaId",
    "RequestId",
    "RequestNumber",
    "Revision",
    "StageName",
    "StreamToken",
    "TensorToken",
    "new_incarnation",
    "new_request_id",
    "new_stream_token",
    "new_tensor_token",
    "this_host",
]

PipelineName = NewType("PipelineName", str)
"""Name of an `InferencePipeline`."""

StageName = NewType("StageName", str)
"""Name of a stage within its pipeline, e.g. `thinker`."""

EngineName = NewType("EngineName", str)
"""Name of an entry point in the group `omnistage.engines`."""

ModelName = NewType("ModelName", str)
"""What a client writes in the `model` field."""

OutputName = NewType("OutputName", str)
"""Name of something a stage produces or consumes; a port of the graph."""

ReplicaId = NewType("ReplicaId", str)
"""`<stage>-<index>`: one serving unit of a stage."""

RequestId = NewType("RequestId", str)
"""Id of a request, the same at the gateway and on every stage."""

RequestNumber = NewType("RequestNumber", int)
"""Number of a request on one link; rising, never reused."""

Revision = NewType("Revision", str)
"""Content hash of everything that makes a stage's or a pipeline's pods."""

Incarnation = NewType("Incarnation", str)
"""One life of one process; unguessable."""

StreamToken = NewType("StreamToken", str)
"""What lets a consumer subscribe to one producer's outputs in one request; unguessable."""

TensorToken = NewType("TensorToken", str)
"""What lets a consumer read one tensor of a producer; unguessable."""

HostId = NewType("HostId", str)
"""Identity of a running host (its boot id)."""

LeaseId = NewType("LeaseId", int)
"""A lease, unique within the producer's incarnation."""


def new_request_id() -> RequestId:
    """A fresh request id: 96 random bits in hexadecimal."""
    return RequestId(secrets.token_hex(12))


def new_stream_token() -> StreamToken:
    """A fresh stream token: 128 random bits in hexadecimal."""
    return StreamToken(secrets.token_hex(16))


def new_tensor_token() -> TensorToken:
    """A fresh tensor token: 128 random bits in hexadecimal."""
    return TensorToken(secrets.token_hex(16))


def new_incarnation() -> Incarnation:
    """A fresh incarnation: 128 random bits in hexadecimal."""
    return Incarnation(secrets.token_hex(16))


def this_host() -> HostId:
    """The boot id of the running kernel: equal exactly for processes that share memory."""
    return HostId(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
