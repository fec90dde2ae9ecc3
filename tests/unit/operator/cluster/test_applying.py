"""The executor writes what differs, and nothing else."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fakes.api_server import FakeApiServer
from fakes.controlled import config_map, key, pod, running, until
from omnistage_common.cluster.api import Api
from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.errors import ObjectInvalid, WriteConflict, WriteFenced
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.kinds import CONFIG_MAPS, PODS, SERVICES, STAGES
from omnistage_common.cluster.manifests import Manifest
from omnistage_operator.cluster.applying import INTENT_ANNOTATION, Applier, stamped
from omnistage_operator.control.metrics import OperatorMetrics
from omnistage_operator.planning.plans import owner_reference


@pytest.fixture
async def applier(api: Api, caches: Caches, metrics: OperatorMetrics) -> AsyncIterator[Applier]:
    """An executor with config maps, pods and stages at hand."""
    for kind in (CONFIG_MAPS, PODS, STAGES):
        caches.watch(kind)
    async with running(caches.run()):
        await caches.wait_synced()
        yield Applier(api=api, caches=caches, metrics=metrics)


def stage(server: FakeApiServer, **fields: Any) -> Manifest:
    """A stage that is there."""
    return server.put(
        {
            "apiVersion": STAGES.api_version,
            "kind": "Stage",
            "metadata": {"name": "thinker", "namespace": "default"},
            **fields,
        }
    )


async def cached(caches: Caches, server: FakeApiServer, manifest: Manifest) -> Manifest:
    """The state of this stage, once the cache has the one of the server."""
    found = key(manifest["metadata"]["name"])
    await until(lambda: caches.store(STAGES).get(found) is not None)
    await until(
        lambda: (
            (caches.store(STAGES).get(found) or {}).get("metadata", {}).get("resourceVersion")
            == server.need(STAGES, found)["metadata"]["resourceVersion"]
        )
    )
    live = caches.store(STAGES).get(found)
    assert live is not None
    return live


async def test_an_intent_is_written_once(server: FakeApiServer, applier: Applier) -> None:
    for _ in range(5):
        live = await applier.apply(config_map("one", a="1"))

    assert live["data"] == {"a": "1"}
    assert server.writes() == 1


async def test_a_changed_intent_is_written(server: FakeApiServer, applier: Applier) -> None:
    await applier.apply(config_map("one", a="1"))
    await applier.apply(config_map("one", a="2"))

    assert server.need(CONFIG_MAPS, key("one"))["data"] == {"a": "2"}
    assert server.writes() == 2


async def test_a_field_that_an_intent_no_longer_has_is_taken_out(
    server: FakeApiServer, applier: Applier
) -> None:
    await applier.apply(config_map("one", a="1", b="2"))

    await applier.apply(config_map("one", a="1"))

    assert server.need(CONFIG_MAPS, key("one"))["data"] == {"a": "1"}


async def test_what_others_add_stays_and_what_they_change_is_put_right(
    server: FakeApiServer, applier: Applier, caches: Caches
) -> None:
    await applier.apply(config_map("one", a="1"))
    server.set_field(CONFIG_MAPS, key("one"), ("data", "x"), "9", manager="kubectl")
    server.set_field(CONFIG_MAPS, key("one"), ("data", "a"), "7", manager="kubectl")
    await until(lambda: (caches.store(CONFIG_MAPS).get(key("one")) or {})["data"].get("a") == "7")

    await applier.apply(config_map("one", a="1"))

    assert server.need(CONFIG_MAPS, key("one"))["data"] == {"a": "1", "x": "9"}


async def test_a_restarted_operator_writes_nothing(
    server: FakeApiServer, applier: Applier, api: Api
) -> None:
    intents = [config_map(f"m{n}", a=str(n)) for n in range(20)]
    await applier.apply_all(intents)
    before = server.writes()
    metrics = OperatorMetrics(CollectorRegistry())
    caches = Caches(api, metrics=metrics.cluster)
    caches.watch(CONFIG_MAPS)

    async with running(caches.run()):
        await caches.wait_synced()
        await Applier(api=api, caches=caches, metrics=metrics).apply_all(intents)

    assert server.writes() == before


async def test_a_deleted_child_comes_back(
    server: FakeApiServer, applier: Applier, caches: Caches
) -> None:
    await applier.apply(config_map("one"))
    server.remove(CONFIG_MAPS, key("one"))
    await until(lambda: key("one") not in caches.store(CONFIG_MAPS))

    await applier.apply(config_map("one"))

    assert server.get(CONFIG_MAPS, key("one")) is not None


async def test_what_the_server_does_not_keep_is_not_written_again_and_again(
    server: FakeApiServer, applier: Applier, caches: Caches
) -> None:
    server.swallow(PODS, ("spec", "hostNetwork"))
    intent = pod("one") | {"spec": {"hostNetwork": False, "nodeName": "n"}}

    for _ in range(5):
        await applier.apply(intent)
    assert server.writes() == 1
    server.set_field(PODS, key("one"), ("spec", "nodeName"), "m", manager="kubectl")
    await until(lambda: (caches.store(PODS).get(key("one")) or {})["spec"]["nodeName"] == "m")
    await applier.apply(intent)

    assert server.need(PODS, key("one"))["spec"] == {"nodeName": "n"}


async def test_a_kind_that_is_not_watched_is_read_before_it_is_written(
    server: FakeApiServer, applier: Applier
) -> None:
    service = config_map("svc") | {"kind": "Service"}

    await applier.apply(service)
    await applier.apply(service)

    assert server.writes() == 1
    assert server.requests["get", "services"] == 2
    assert server.get(SERVICES, key("svc")) is not None


async def test_an_intent_is_stamped_and_left_as_it_was() -> None:
    intent = config_map("one", a="1")

    first, again = stamped(intent), stamped(config_map("one", a="1"))

    assert "annotations" not in intent["metadata"]
    assert first == again
    digest = first["metadata"]["annotations"][INTENT_ANNOTATION]
    assert digest != stamped(config_map("one", a="2"))["metadata"]["annotations"][INTENT_ANNOTATION]


async def test_without_force_the_owner_of_a_field_wins(
    server: FakeApiServer, applier: Applier, caches: Caches
) -> None:
    await applier.apply(config_map("one", a="1"))
    server.set_field(CONFIG_MAPS, key("one"), ("data", "a"), "7", manager="kubectl")
    await until(lambda: (caches.store(CONFIG_MAPS).get(key("one")) or {})["data"]["a"] == "7")

    with pytest.raises(WriteConflict, match="kubectl"):
        await applier.apply(config_map("one", a="1"), force=False)


async def test_an_intent_that_the_server_refuses_says_why(
    server: FakeApiServer, applier: Applier
) -> None:
    server.faults.fail_next(422, verb="patch")

    with pytest.raises(ObjectInvalid, match="patch configmaps default/one"):
        await applier.apply(config_map("one"))


async def test_a_status_is_written_when_it_says_something_new(
    server: FakeApiServer, applier: Applier, caches: Caches
) -> None:
    live = stage(server)
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "ready": 1}

    assert await applier.write_status(live, ready)
    live = await cached(caches, server, live)
    assert not await applier.write_status(live, ready)
    assert await applier.write_status(live, {"ready": 1})

    assert server.need(STAGES, key("thinker"))["status"] == {"ready": 1}
    assert server.requests["patch", "stages/status"] == 2


async def test_a_status_leaves_what_others_say(
    server: FakeApiServer, applier: Applier, caches: Caches
) -> None:
    live = stage(server, status={"gateways": [{"name": "g1", "serving": "r1"}]})

    assert await applier.write_status(live, {"ready": 1}, foreign=["gateways"])
    live = await cached(caches, server, live)
    assert not await applier.write_status(live, {"ready": 1}, foreign=["gateways"])

    status = server.need(STAGES, key("thinker"))["status"]
    assert status == {"ready": 1, "gateways": [{"name": "g1", "serving": "r1"}]}


async def test_a_status_does_not_move_the_generation(
    server: FakeApiServer, applier: Applier
) -> None:
    live = stage(server, spec={"a": 1})

    await applier.write_status(live, {"ready": 1})

    assert server.need(STAGES, key("thinker"))["metadata"]["generation"] == 1


async def test_a_status_is_of_this_object_and_of_no_successor(
    server: FakeApiServer, applier: Applier
) -> None:
    live = stage(server)
    server.remove(STAGES, key("thinker"))
    assert not await applier.write_status(live, {"ready": 1})
    stage(server)

    with pytest.raises(WriteConflict):
        await applier.write_status(live, {"ready": 1})

    assert "status" not in server.need(STAGES, key("thinker"))


async def test_what_no_intent_keeps_is_pruned_and_nothing_else(
    server: FakeApiServer, applier: Applier, caches: Caches
) -> None:
    owner = stage(server)
    intents = []
    for name in ("keep", "drop"):
        intent = config_map(name)
        intent["metadata"]["ownerReferences"] = [owner_reference(owner)]
        intents.append(await applier.apply(intent))
    await applier.apply(config_map("of-nobody"))

    pruned = await applier.prune(owner, keep=intents[:1], kinds=[CONFIG_MAPS, PODS])
    await until(lambda: key("drop") not in caches.store(CONFIG_MAPS))
    again = await applier.prune(owner, keep=intents[:1], kinds=[CONFIG_MAPS, PODS])

    assert (pruned, again) == ([key("drop")], [])
    names = {found["metadata"]["name"] for found in server.all(CONFIG_MAPS)}
    assert names == {"keep", "of-nobody"}


async def test_what_is_being_deleted_is_left_alone(server: FakeApiServer, applier: Applier) -> None:
    going = config_map("one")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    await applier.delete(server.put(going))

    assert server.writes() == 0


async def test_a_closed_fence_stops_every_write(
    server: FakeApiServer, applier: Applier, fence: Fence
) -> None:
    owner = stage(server)
    kept = await applier.apply(config_map("one"))
    before = server.writes()
    fence.close()

    for write in (
        applier.apply(config_map("two")),
        applier.write_status(owner, {"ready": 1}),
        applier.delete(kept),
    ):
        with pytest.raises(WriteFenced):
            await write
    assert await applier.apply(config_map("one")) == kept

    assert server.writes() == before


async def test_writes_and_skips_are_counted(applier: Applier, registry: CollectorRegistry) -> None:
    for _ in range(3):
        await applier.apply(config_map("one"))

    def count(action: str) -> float | None:
        labels = {"resource": "configmaps", "action": action}
        return registry.get_sample_value("omnistage_operator_writes_total", labels)

    assert (count("apply"), count("skip")) == (1, 2)
