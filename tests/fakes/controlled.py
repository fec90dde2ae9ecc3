"""What tests of the operator share: work that runs beside a test, waiting, and small objects."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from omnistage_common.cluster.manifests import Manifest, ObjectKey

__all__ = ["config_map", "key", "pod", "running", "until"]


@asynccontextmanager
async def running(*works: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Runs endless work beside the test; it must end within a second of being cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(tasks, timeout=1.0)
        assert not pending, f"still running a second after its end: {pending}"
        for task in tasks:
            if not task.cancelled():
                task.result()


async def until(holds: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Lets the event loop turn until this holds."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - it waits for whatever a test can see
            await asyncio.sleep(0.001)


def key(name: str, namespace: str = "default") -> ObjectKey:
    """Where an object of a test is."""
    return ObjectKey(namespace, name)


def config_map(name: str, *, namespace: str = "default", **data: str) -> Manifest:
    """A small object."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


def pod(
    name: str,
    *,
    namespace: str = "default",
    labels: dict[str, str] | None = None,
    owner: Manifest | None = None,
) -> Manifest:
    """A pod, perhaps owned."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": labels or {}}
    if owner is not None:
        metadata["ownerReferences"] = [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}
