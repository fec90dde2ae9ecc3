"""The verbs: what they send, what refusals become, what is sent again and what is not."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from fakes.api_server import FakeApiServer
from fakes.controlled import config_map, key, pod, running, until
from omnistage_common.cluster.api import Api, Limits
from omnistage_common.cluster.connecting import Connection
from omnistage_common.cluster.errors import (
    AccessDenied,
    AlreadyExists,
    ApiBusy,
    ApiError,
    ApiUnavailable,
    HistoryGone,
    ObjectInvalid,
    ObjectNotFound,
    WriteConflict,
    WriteFenced,
)
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.kinds import (
    CONFIG_MAPS,
    LEADER_WORKER_SETS,
    NODES,
    PODS,
    STAGES,
    ResourceKind,
)
from omnistage_common.cluster.manifests import Uid, uid_of
from omnistage_common.cluster.messages import EventKind, Selection, path_of
from omnistage_common.cluster.metrics import ClusterMetrics
from omnistage_common.cluster.rates import BackoffRule


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (path_of(PODS), "/api/v1/pods"),
        (path_of(PODS, "a", "b"), "/api/v1/namespaces/a/pods/b"),
        (path_of(NODES, "", "n"), "/api/v1/nodes/n"),
        (path_of(STAGES, "a"), "/apis/omnistage.io/v1alpha1/namespaces/a/stages"),
        (
            path_of(STAGES, "a", "b", "status"),
            "/apis/omnistage.io/v1alpha1/namespaces/a/stages/b/status",
        ),
    ],
)
def test_paths_are_those_of_the_api(path: str, expected: str) -> None:
    assert path == expected


async def test_the_check_at_the_start_says_who_we_are(api: Api) -> None:
    identity = await api.check()

    assert identity.version.startswith("v1.")
    assert identity.user == "system:serviceaccount:omnistage:operator"


async def test_the_check_fails_where_nobody_knows_us(server: FakeApiServer, api: Api) -> None:
    server.rotate_token("another", publish=False)

    with pytest.raises(AccessDenied, match="check the service account or the kubeconfig"):
        await api.check()


async def test_a_server_that_is_not_there_is_unavailable(
    connection: Connection, server: FakeApiServer, metrics: ClusterMetrics
) -> None:
    api = Api(
        connection,
        field_manager="test",
        fence=Fence.always_open(),
        metrics=metrics.api(),
        limits=Limits.once(request_s=5),
    )
    await server.__aexit__()

    with pytest.raises(ApiUnavailable, match="get version"):
        await api.check()


async def test_an_object_is_read_as_it_is(server: FakeApiServer, api: Api) -> None:
    server.put(config_map("one", text="ünï"))

    found = await api.get(CONFIG_MAPS, key("one"))

    assert found["data"] == {"text": "ünï"}
    assert found["kind"] == "ConfigMap"


async def test_what_a_server_does_not_know_is_told_before_it_is_asked_for(
    server: FakeApiServer, api: Api
) -> None:
    assert await api.serves(LEADER_WORKER_SETS)

    server.uninstall(LEADER_WORKER_SETS)
    other = ResourceKind(group="apps", version="v1", plural="gangs", kind="Gang")

    assert not await api.serves(LEADER_WORKER_SETS)
    assert not await api.serves(other)


async def test_a_list_comes_in_pages_with_kinds_filled_in(
    server: FakeApiServer, connection: Connection, metrics: ClusterMetrics
) -> None:
    api = Api(
        connection,
        field_manager="test",
        fence=Fence.always_open(),
        metrics=metrics.api(),
        limits=Limits(page=4),
    )
    for number in range(10):
        server.put(config_map(f"m{number}"))

    pages = [page async for page in api.pages(CONFIG_MAPS)]

    assert [len(page.items) for page in pages] == [4, 4, 2]
    assert {item["kind"] for page in pages for item in page.items} == {"ConfigMap"}
    assert {page.version for page in pages} == {"10"}


async def test_selectors_reach_the_server(server: FakeApiServer, api: Api) -> None:
    server.put(pod("a", labels={"app": "x"}))
    server.put(pod("b", labels={"app": "y"}))
    server.put(pod("c", labels={"app": "x"}, namespace="other"))

    by_label = await api.list_all(PODS, Selection(labels="app=x"))
    by_all = await api.list_all(
        PODS, Selection(namespace="default", labels="app", fields="metadata.name=b")
    )

    assert [item["metadata"]["name"] for item in by_label] == ["a", "c"]
    assert [item["metadata"]["name"] for item in by_all] == ["b"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("app in (x,y)", ["a", "b"]),
        ("app notin (x)", ["b", "c"]),
        ("app!=x", ["b", "c"]),
        ("!app", ["c"]),
        ("app,app==y", ["b"]),
    ],
)
async def test_the_fake_server_selects_as_a_real_one(
    server: FakeApiServer, api: Api, labels: str, expected: list[str]
) -> None:
    server.put(pod("a", labels={"app": "x"}))
    server.put(pod("b", labels={"app": "y"}))
    server.put(pod("c"))

    found = await api.list_all(PODS, Selection(labels=labels))

    assert [item["metadata"]["name"] for item in found] == expected


async def test_a_watch_tells_what_happened_since(server: FakeApiServer, api: Api) -> None:
    first = server.put(config_map("one", a="1"))
    server.put(config_map("one", a="2"))
    server.remove(CONFIG_MAPS, key("one"))
    server.bookmark()

    version = first["metadata"]["resourceVersion"]
    async with api.watch(CONFIG_MAPS, version, for_s=30) as events:
        kinds = [(await anext(events)).kind for _ in range(3)]

    assert kinds == [EventKind.MODIFIED, EventKind.DELETED, EventKind.BOOKMARK]


async def test_a_watch_ends_by_itself(api: Api) -> None:
    async with api.watch(CONFIG_MAPS, "0", for_s=1) as events:
        assert [event async for event in events] == []


async def test_a_watch_that_is_cut_says_so(server: FakeApiServer, api: Api) -> None:
    async with api.watch(CONFIG_MAPS, "0", for_s=30) as events:
        server.cut_watches()

        with pytest.raises(ApiUnavailable, match="watch configmaps"):
            await anext(events)


async def test_history_can_be_gone_at_the_start_and_on_the_way(
    server: FakeApiServer, api: Api
) -> None:
    server.put(config_map("one"))
    async with api.watch(CONFIG_MAPS, "0", for_s=30) as events:
        server.expire_watches()
        with pytest.raises(HistoryGone):
            async for _ in events:
                pass
    server.compact()

    with pytest.raises(HistoryGone):
        async with api.watch(CONFIG_MAPS, "0", for_s=30):
            pass


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ObjectInvalid),
        (403, AccessDenied),
        (404, ObjectNotFound),
        (409, WriteConflict),
        (410, HistoryGone),
        (422, ObjectInvalid),
        (429, ApiBusy),
        (500, ApiUnavailable),
        (504, ApiUnavailable),
        (418, ApiUnavailable),
    ],
)
async def test_each_refusal_has_its_class(
    server: FakeApiServer, api: Api, status: int, kind: type[ApiError]
) -> None:
    server.faults.fail_next(status, times=100)

    with pytest.raises(kind, match="get configmaps default/one: made to fail") as caught:
        await api.get(CONFIG_MAPS, key("one"))

    assert type(caught.value) is kind


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_what_may_pass_is_asked_again(server: FakeApiServer, api: Api, status: int) -> None:
    server.put(config_map("one"))
    server.faults.fail_next(status, times=4)

    await api.get(CONFIG_MAPS, key("one"))

    assert server.requests["get", "configmaps"] == 5


async def test_asking_again_ends(server: FakeApiServer, api: Api) -> None:
    server.faults.fail_next(503, times=100)

    with pytest.raises(ApiUnavailable):
        await api.get(CONFIG_MAPS, key("one"))

    assert server.requests["get", "configmaps"] == Limits().tries


async def test_a_busy_server_says_when_to_come_back(server: FakeApiServer, api: Api) -> None:
    server.put(config_map("one"))
    server.faults.fail_next(429, retry_after="1")
    clock = asyncio.get_running_loop().time
    begun = clock()

    await api.get(CONFIG_MAPS, key("one"))

    assert clock() - begun >= 1.0


async def test_a_server_that_asks_for_a_long_pause_is_left_alone(
    server: FakeApiServer, api: Api
) -> None:
    server.faults.fail_next(429, retry_after="30")

    with pytest.raises(ApiBusy) as caught:
        await api.get(CONFIG_MAPS, key("one"))

    assert caught.value.retry_after == 30
    assert server.requests["get", "configmaps"] == 1


async def test_an_answer_that_is_no_object_is_no_answer(server: FakeApiServer, api: Api) -> None:
    server.faults.answer_with(b"<html>sign in</html>")

    with pytest.raises(ApiUnavailable, match="not what the API promises"):
        await api.get(CONFIG_MAPS, key("one"))
    with pytest.raises(ApiUnavailable, match="not what the API promises"):
        await api.list_all(CONFIG_MAPS)
    async with api.watch(CONFIG_MAPS, "0", for_s=1) as events:
        with pytest.raises(ApiUnavailable, match="not what the API promises"):
            await anext(events)


async def test_a_create_whose_answer_is_lost_is_not_repeated(
    server: FakeApiServer, api: Api
) -> None:
    server.faults.fail_next(500, verb="create", after_write=True)

    with pytest.raises(ApiUnavailable):
        await api.create(config_map("one"), CONFIG_MAPS)

    assert server.requests["create", "configmaps"] == 1
    with pytest.raises(AlreadyExists):
        await api.create(config_map("one"), CONFIG_MAPS)


async def test_an_apply_whose_answer_is_lost_is_repeated(server: FakeApiServer, api: Api) -> None:
    server.faults.fail_next(500, verb="patch", after_write=True)

    applied = await api.apply(config_map("one", a="1"), CONFIG_MAPS)

    assert server.requests["patch", "configmaps"] == 2
    assert applied == server.get(CONFIG_MAPS, key("one"))


async def test_an_apply_owns_its_fields_and_leaves_others(server: FakeApiServer, api: Api) -> None:
    await api.apply(config_map("one", a="1", b="2"), CONFIG_MAPS)
    server.set_field(CONFIG_MAPS, key("one"), ("data", "c"), "3", manager="kubectl")

    applied = await api.apply(config_map("one", a="1"), CONFIG_MAPS)

    assert applied["data"] == {"a": "1", "c": "3"}
    assert server.seen[-1].query["fieldManager"] == "omnistage-operator"


async def test_an_apply_without_force_meets_the_owner_of_a_field(
    server: FakeApiServer, api: Api
) -> None:
    await api.apply(config_map("one", a="1"), CONFIG_MAPS)
    server.set_field(CONFIG_MAPS, key("one"), ("data", "a"), "2", manager="kubectl")

    with pytest.raises(WriteConflict, match="kubectl"):
        await api.apply(config_map("one", a="1"), CONFIG_MAPS, force=False)
    taken = await api.apply(config_map("one", a="1"), CONFIG_MAPS)

    assert taken["data"] == {"a": "1"}


async def test_a_replace_meets_a_later_version(server: FakeApiServer, api: Api) -> None:
    before = server.put(config_map("one", a="1"))
    server.put(config_map("one", a="2"))

    with pytest.raises(WriteConflict):
        await api.replace(before, CONFIG_MAPS)


async def test_a_delete_is_of_this_object_or_of_none(server: FakeApiServer, api: Api) -> None:
    live = server.put(config_map("one"))

    with pytest.raises(WriteConflict):
        await api.delete(CONFIG_MAPS, key("one"), uid=Uid("of-a-predecessor"))
    await api.delete(CONFIG_MAPS, key("one"), uid=uid_of(live))
    await api.delete(CONFIG_MAPS, key("one"), uid=uid_of(live))

    assert server.all(CONFIG_MAPS) == []


async def test_a_closed_fence_lets_reads_through_and_no_write(
    server: FakeApiServer, api: Api, fence: Fence
) -> None:
    live = server.put(config_map("one"))
    fence.close()

    await api.get(CONFIG_MAPS, key("one"))
    for write in (
        api.apply(config_map("one"), CONFIG_MAPS),
        api.apply_status(config_map("one"), CONFIG_MAPS),
        api.create(config_map("two"), CONFIG_MAPS),
        api.replace(live, CONFIG_MAPS),
        api.delete(CONFIG_MAPS, key("one"), uid=uid_of(live)),
    ):
        with pytest.raises(WriteFenced):
            await write

    assert server.writes() == 0


async def test_a_fence_that_closes_between_two_tries_stops_the_second(
    server: FakeApiServer, api: Api, fence: Fence
) -> None:
    server.faults.fail_next(429, retry_after="1", verb="patch")

    async def apply() -> None:
        with pytest.raises(WriteFenced):
            await api.apply(config_map("one"), CONFIG_MAPS)

    async with running(apply()) as (task,):
        await until(lambda: server.requests["patch", "configmaps"])
        fence.close()
        await task

    assert server.requests["patch", "configmaps"] == 1


async def test_a_write_does_not_outlast_the_right_to_write(
    server: FakeApiServer, connection: Connection, metrics: ClusterMetrics
) -> None:
    now = 100.0
    fence = Fence(clock=lambda: now)
    fence.open_until(100.2)
    api = Api(
        connection,
        field_manager="test",
        fence=fence,
        metrics=metrics.api(),
        limits=Limits.once(request_s=60),
    )
    server.faults.hold()

    with pytest.raises(ApiUnavailable, match=r"no answer within 0\.2 s"):
        await api.apply(config_map("one"), CONFIG_MAPS)


async def test_requests_keep_to_the_limits(
    server: FakeApiServer, connection: Connection, metrics: ClusterMetrics
) -> None:
    limits = Limits(per_second=50, burst=5, in_flight=2, backoff=BackoffRule())
    api = Api(
        connection,
        field_manager="test",
        fence=Fence.always_open(),
        metrics=metrics.api(),
        limits=limits,
    )
    server.put(config_map("one"))
    clock = asyncio.get_running_loop().time
    begun = clock()

    await asyncio.gather(*(api.get(CONFIG_MAPS, key("one")) for _ in range(20)))

    assert clock() - begun >= 0.25


async def test_a_rotated_token_is_read_anew_and_nobody_notices(
    server: FakeApiServer, api: Api
) -> None:
    server.put(config_map("one"))
    await api.get(CONFIG_MAPS, key("one"))
    server.rotate_token("second-token")

    await asyncio.gather(*(api.get(CONFIG_MAPS, key("one")) for _ in range(20)))
    async with api.watch(CONFIG_MAPS, "0", for_s=30):
        server.rotate_token("third-token")
    await api.apply(config_map("one"), CONFIG_MAPS)

    assert server.requests["unauthorized", ""] <= 21


async def test_a_cancelled_request_leaves_nothing(server: FakeApiServer, api: Api) -> None:
    held = server.faults.hold()
    asked = asyncio.create_task(api.get(CONFIG_MAPS, key("one")))
    await until(lambda: server.requests["get", "configmaps"])
    before = asyncio.all_tasks()

    asked.cancel()
    await asyncio.wait({asked}, timeout=1)

    assert asked.cancelled()
    assert asyncio.all_tasks() <= before - {asked} | {asyncio.current_task()}
    held.set()


async def test_requests_are_counted_by_verb_resource_and_outcome(
    server: FakeApiServer, api: Api, registry: CollectorRegistry
) -> None:
    server.put(config_map("one"))
    await api.get(CONFIG_MAPS, key("one"))
    with pytest.raises(ObjectNotFound):
        await api.apply_status(pod("gone"), PODS)

    def count(verb: str, resource: str, outcome: str) -> float | None:
        labels = {"verb": verb, "resource": resource, "outcome": outcome}
        return registry.get_sample_value("omnistage_cluster_api_requests_total", labels)

    assert count("get", "configmaps", "ok") == 1
    assert count("patch", "pods/status", "object_not_found") == 1
