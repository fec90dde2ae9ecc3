"""A kind kept at hand, whatever happens to the connection."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fakes.api_server import FakeApiServer
from fakes.controlled import config_map, key, pod, running, until
from omnistage_common.cluster.api import Api
from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.informing import Informer, WatchOptions, WatchTimings
from omnistage_common.cluster.kinds import CONFIG_MAPS, LEADER_WORKER_SETS, PODS, STAGE_RUNTIMES
from omnistage_common.cluster.manifests import Manifest, labels_of, uid_of
from omnistage_common.cluster.metrics import ClusterMetrics
from omnistage_common.cluster.rates import BackoffRule
from omnistage_common.errors import SetupError

RECEIVED = "omnistage_cluster_watch_events_total"
Changes = list[tuple[Manifest | None, Manifest | None]]


@pytest.fixture
async def config_maps(caches: Caches) -> AsyncIterator[Informer]:
    """Config maps, kept."""
    informer = caches.watch(CONFIG_MAPS)
    async with running(caches.run()):
        await caches.wait_synced()
        yield informer


def data_of(informer: Informer) -> dict[str, Any]:
    """Name -> data of everything in the cache."""
    return {found["metadata"]["name"]: found.get("data") for found in informer.store.all()}


async def settled(server: FakeApiServer, informer: Informer) -> None:
    """Waits until the cache shows a new object: it has seen all that came before."""
    server.put(config_map("last"))
    await until(lambda: key("last") in informer.store)
    server.remove(CONFIG_MAPS, key("last"))
    await until(lambda: key("last") not in informer.store)


def opened(server: FakeApiServer, watches: int) -> Callable[[], bool]:
    """Whether so many watches of config maps were opened."""
    return lambda: server.requests["watch", "configmaps"] == watches


def restarts(registry: CollectorRegistry, reason: str) -> float:
    """How often the watch of config maps began anew for this reason."""
    labels = {"resource": "configmaps", "reason": reason}
    return registry.get_sample_value("omnistage_cluster_watch_restarts_total", labels) or 0.0


async def test_what_was_there_and_what_comes_is_in_the_store(
    server: FakeApiServer, caches: Caches
) -> None:
    for number in range(3):
        server.put(config_map(f"m{number}", n=str(number)))
    informer = caches.watch(CONFIG_MAPS)

    async with running(caches.run()):
        await caches.wait_synced()
        assert data_of(informer) == {f"m{n}": {"n": str(n)} for n in range(3)}
        server.put(config_map("m3", n="3"))
        server.remove(CONFIG_MAPS, key("m0"))
        await until(lambda: set(data_of(informer)) == {"m1", "m2", "m3"})


async def test_listeners_hear_of_each_change_once(server: FakeApiServer, caches: Caches) -> None:
    server.put(config_map("one", a="1"))
    heard: Changes = []
    informer = caches.watch(CONFIG_MAPS)
    informer.on_change(lambda before, after: heard.append((before, after)))

    async with running(caches.run()):
        await caches.wait_synced()
        server.put(config_map("one", a="2"))
        await until(lambda: len(heard) == 2)
        server.remove(CONFIG_MAPS, key("one"))
        await until(lambda: len(heard) == 3)

    shapes = [tuple(state["data"]["a"] if state else None for state in change) for change in heard]
    assert shapes == [(None, "1"), ("1", "2"), ("2", None)]


async def test_a_cut_watch_goes_on_where_it_was(
    server: FakeApiServer, config_maps: Informer, registry: CollectorRegistry
) -> None:
    for cuts in range(1, 5):
        await until(lambda: server.open_watches == 1)
        server.put(config_map("one", n=str(cuts)))
        server.cut_watches()
        server.put(config_map("one", n=str(cuts + 10)))
        await until(opened(server, cuts + 1))
    await settled(server, config_maps)

    assert data_of(config_maps) == {"one": {"n": "14"}}
    assert server.requests["list", "configmaps"] == 1
    assert restarts(registry, "api_unavailable") == 4


async def test_gone_history_is_listed_anew_always(
    server: FakeApiServer, config_maps: Informer, registry: CollectorRegistry
) -> None:
    server.put(config_map("stays"))
    server.put(config_map("goes"))
    await settled(server, config_maps)
    for round_ in range(5):
        server.remove(CONFIG_MAPS, key("goes" if round_ == 0 else f"r{round_ - 1}"))
        server.put(config_map(f"r{round_}"))
        server.expire_watches()
        server.compact()
        await until(lambda: server.open_watches == 0)
        await until(lambda: server.open_watches == 1)
    await settled(server, config_maps)

    assert set(data_of(config_maps)) == {"stays", "r4"}
    assert restarts(registry, "history_gone") >= 5


async def test_what_vanished_while_nobody_watched_is_told(
    server: FakeApiServer, config_maps: Informer
) -> None:
    server.put(config_map("one"))
    await settled(server, config_maps)
    heard: Changes = []
    config_maps.on_change(lambda before, after: heard.append((before, after)))
    server.faults.frozen = True
    server.remove(CONFIG_MAPS, key("one"))
    server.compact()
    server.faults.frozen = False

    server.expire_watches()
    await until(lambda: heard)

    assert [after for _, after in heard] == [None]


@pytest.mark.parametrize("status", [401, 403, 410, 429, 500, 503])
async def test_lists_and_watches_that_are_refused_are_tried_again(
    server: FakeApiServer, caches: Caches, status: int
) -> None:
    server.put(config_map("one"))
    server.faults.fail_next(status, times=7, resource="configmaps")
    informer = caches.watch(CONFIG_MAPS)

    async with running(caches.run()):
        await caches.wait_synced()
        await settled(server, informer)

    assert set(data_of(informer)) == {"one"}


async def test_a_silent_watch_is_taken_for_dead(
    server: FakeApiServer, api: Api, metrics: ClusterMetrics, registry: CollectorRegistry
) -> None:
    timings = WatchTimings(silence_s=0.05, backoff=BackoffRule(first_s=0.001, most_s=0.01))
    caches = Caches(api, metrics=metrics, timings=timings)
    informer = caches.watch(CONFIG_MAPS)
    async with running(caches.run()):
        await caches.wait_synced()
        server.faults.frozen = True
        server.put(config_map("one"))
        await until(lambda: restarts(registry, "silent") >= 2)
        server.faults.heal()
        await until(lambda: key("one") in informer.store)


async def test_bookmarks_are_signs_of_life(
    api: Api, metrics: ClusterMetrics, server: FakeApiServer, registry: CollectorRegistry
) -> None:
    timings = WatchTimings(silence_s=0.5)
    caches = Caches(api, metrics=metrics, timings=timings)
    informer = caches.watch(CONFIG_MAPS)
    async with running(caches.run()):
        await caches.wait_synced()
        await until(lambda: server.open_watches)
        for _ in range(20):
            await asyncio.sleep(0.05)
            server.bookmark()
        assert restarts(registry, "silent") == 0
        assert informer.seconds_since_sign() < 0.5


async def test_the_silence_of_a_dead_server_shows(
    server: FakeApiServer, caches: Caches, config_maps: Informer
) -> None:
    server.faults.fail_next(503, times=10_000)
    server.cut_watches()
    before = caches.stalest()

    await until(lambda: caches.stalest() > before + 0.05)

    assert caches.stalest() == pytest.approx(config_maps.seconds_since_sign(), abs=0.05)


async def test_after_a_bookmark_a_watch_outlives_a_compaction(
    server: FakeApiServer, config_maps: Informer, registry: CollectorRegistry
) -> None:
    await until(lambda: server.open_watches == 1)
    server.put(pod("moves-the-version"))
    server.bookmark()
    await until(lambda: registry.get_sample_value(RECEIVED, {"resource": "configmaps"}))
    server.compact()

    server.cut_watches()
    server.put(config_map("one"))
    await until(lambda: key("one") in config_maps.store)

    assert server.requests["list", "configmaps"] == 1


async def test_an_answer_to_a_write_is_seen_before_the_watch_brings_it(
    server: FakeApiServer, config_maps: Informer
) -> None:
    await until(lambda: server.open_watches == 1)
    server.faults.frozen = True
    written = server.put(config_map("one", a="1"))

    config_maps.observe(written)

    assert config_maps.store.get(key("one")) == written


async def test_a_late_answer_does_not_bring_a_deleted_object_back(
    server: FakeApiServer, config_maps: Informer
) -> None:
    written = server.put(config_map("one", a="1"))
    server.remove(CONFIG_MAPS, key("one"))
    await settled(server, config_maps)

    config_maps.observe(written)

    assert config_maps.store.get(key("one")) is None


async def test_only_some_namespaces_are_kept(
    server: FakeApiServer, api: Api, metrics: ClusterMetrics
) -> None:
    for namespace in ("a", "b", "c"):
        server.put(config_map("one", namespace=namespace))
    caches = Caches(api, metrics=metrics, namespaces=("a", "b"))
    informer = caches.watch(CONFIG_MAPS)
    runtimes = caches.watch(STAGE_RUNTIMES)
    server.put(
        {
            "apiVersion": "omnistage.io/v1alpha1",
            "kind": "StageRuntime",
            "metadata": {"name": "cpu"},
        }
    )

    async with running(caches.run()):
        await caches.wait_synced()
        server.put(config_map("two", namespace="b"))
        server.put(config_map("two", namespace="c"))
        await until(lambda: len(informer.store) == 3)

    keys = informer.store.keys()
    assert {found.namespace for found in keys} == {"a", "b"}
    assert len(runtimes.store) == 1


async def test_one_kind_may_be_kept_in_a_further_namespace(
    server: FakeApiServer, api: Api, metrics: ClusterMetrics
) -> None:
    for namespace in ("a", "gateways", "c"):
        server.put(config_map("one", namespace=namespace))
    caches = Caches(api, metrics=metrics, namespaces=("a",))
    informer = caches.watch(CONFIG_MAPS, WatchOptions(also_in=("gateways",)))

    async with running(caches.run()):
        await caches.wait_synced()

    assert {found.namespace for found in informer.store.keys()} == {"a", "gateways"}  # noqa: SIM118


async def test_a_selector_lets_objects_come_and_go(
    server: FakeApiServer, api: Api, metrics: ClusterMetrics
) -> None:
    caches = Caches(api, metrics=metrics)
    informer = caches.watch(PODS, WatchOptions(labels="app=x"))
    async with running(caches.run()):
        await caches.wait_synced()
        server.put(pod("one", labels={"app": "x"}))
        await until(lambda: len(informer.store) == 1)
        server.put(pod("one", labels={"app": "y"}))
        await until(lambda: len(informer.store) == 0)


async def test_what_nobody_reads_is_not_kept(api: Api, caches: Caches) -> None:
    await api.apply(config_map("one", a="1"), CONFIG_MAPS)
    bare = caches.watch(CONFIG_MAPS)
    others = Caches(api, metrics=ClusterMetrics(CollectorRegistry()))
    full = others.watch(
        CONFIG_MAPS,
        WatchOptions(
            keep_managed_fields=True,
            shrink=lambda manifest: {**manifest, "data": {}},
        ),
    )
    async with running(caches.run(), others.run()):
        await caches.wait_synced()
        await others.wait_synced()

    without, with_ = bare.store.get(key("one")), full.store.get(key("one"))
    assert without is not None
    assert with_ is not None
    assert "managedFields" not in without["metadata"]
    assert "managedFields" in with_["metadata"]
    assert (without["data"], with_["data"]) == ({"a": "1"}, {})


async def test_objects_are_found_by_owner_and_by_own_indexes(
    server: FakeApiServer, caches: Caches
) -> None:
    owner = server.put(config_map("owner"))
    server.put(pod("child", owner=owner))
    server.put(pod("stranger", labels={"tier": "front"}))
    pods = caches.watch(PODS, WatchOptions(indexes={"tier": lambda p: labels_of(p).values()}))
    async with running(caches.run()):
        await caches.wait_synced()

        assert [p["metadata"]["name"] for p in pods.store.owned_by(uid_of(owner))] == ["child"]
        assert [p["metadata"]["name"] for p in pods.store.find("tier", "front")] == ["stranger"]


async def test_a_kind_that_is_not_installed_may_be_missing_and_may_come(
    server: FakeApiServer, caches: Caches
) -> None:
    server.uninstall(LEADER_WORKER_SETS)
    informer = caches.watch(LEADER_WORKER_SETS, WatchOptions(optional=True))
    async with running(caches.run()):
        await caches.wait_synced()
        assert not informer.is_installed
        assert len(informer.store) == 0
        server.install(LEADER_WORKER_SETS)
        await until(lambda: informer.is_installed)


async def test_a_kind_goes_only_when_the_server_says_so_again_and_again(
    server: FakeApiServer, caches: Caches
) -> None:
    informer = caches.watch(CONFIG_MAPS, WatchOptions(optional=True))
    server.put(config_map("one"))
    heard: Changes = []
    async with running(caches.run()):
        await caches.wait_synced()
        informer.on_change(lambda before, after: heard.append((before, after)))
        server.faults.fail_next(404, times=2, resource="configmaps")
        server.cut_watches()
        await settled(server, informer)
        assert [after for _, after in heard][-1:] == [None]
        assert key("one") in informer.store

        server.uninstall(CONFIG_MAPS)
        server.cut_watches()
        await until(lambda: not informer.is_installed)
        assert len(informer.store) == 0


async def test_a_restored_backup_replaces_what_was_seen(
    server: FakeApiServer, config_maps: Informer
) -> None:
    server.put(config_map("one", a="new"))
    await settled(server, config_maps)

    server.restore([config_map("one", a="old"), config_map("two")])
    await until(lambda: data_of(config_maps) == {"one": {"a": "old"}, "two": {}})


async def test_a_kind_is_kept_in_one_way_only(caches: Caches) -> None:
    first = caches.watch(CONFIG_MAPS)

    assert caches.watch(CONFIG_MAPS) is first
    with pytest.raises(SetupError, match="other options"):
        caches.watch(CONFIG_MAPS, WatchOptions(labels="a=b"))


async def test_the_end_of_the_caches_leaves_no_task_and_no_watch(
    server: FakeApiServer, caches: Caches
) -> None:
    before = asyncio.all_tasks()
    for kind in (CONFIG_MAPS, PODS, STAGE_RUNTIMES):
        caches.watch(kind)
    async with running(caches.run()):
        await caches.wait_synced()
        await until(lambda: server.open_watches == 3)

    await until(lambda: server.open_watches == 0)
    await until(lambda: asyncio.all_tasks() <= before)
