"""Rights: exactly those that the code uses, where it uses them, and none to secrets.

The table says which verbs operator and gateway send. It is held against what the operator says of
itself: the kinds that it knows, watches and makes.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

import pytest

from omnistage_common.cluster.kinds import KINDS, ResourceKind
from omnistage_operator.controllers.stages import child_kinds
from omnistage_operator.controllers.watching import watch_everything
from omnistage_operator.planning.settings import OperatorSettings
from unit.charts.rendering import Manifest, Rendered, render

if TYPE_CHECKING:
    from omnistage_common.cluster.caches import Caches

Rights = dict[tuple[str, str], set[str]]
"""API group and resource -> verbs."""

READ: Final = {"get", "list", "watch"}
KEEP: Final = READ | {"create", "delete", "patch"}
"""What it takes to apply objects on the server's side and to prune them."""
OURS: Final = "omnistage.io"

OPERATOR: Final[Rights] = {
    (OURS, "inferencepipelines"): READ,
    (OURS, "inferencepipelines/finalizers"): {"update"},
    (OURS, "inferencepipelines/status"): {"patch"},
    (OURS, "stages"): KEEP,
    (OURS, "stages/finalizers"): {"update"},
    (OURS, "stages/status"): {"patch"},
    ("", "configmaps"): KEEP,
    ("", "pods"): READ,
    ("", "serviceaccounts"): KEEP,
    ("", "services"): KEEP,
    ("apps", "deployments"): KEEP,
    ("autoscaling", "horizontalpodautoscalers"): KEEP,
    ("events.k8s.io", "events"): {"create", "list", "watch"},
    ("leaderworkerset.x-k8s.io", "leaderworkersets"): KEEP,
    ("networking.k8s.io", "networkpolicies"): KEEP,
    ("policy", "poddisruptionbudgets"): KEEP,
}
OPERATOR_IN_THE_CLUSTER: Final[Rights] = {
    (OURS, "pipelinetemplates"): READ,
    (OURS, "stageruntimes"): READ,
}
OPERATOR_AT_HOME: Final[Rights] = {
    ("", "pods"): READ,
    ("coordination.k8s.io", "leases"): {"create", "get", "update"},
}
GATEWAY: Final[Rights] = {
    (OURS, "inferencepipelines"): READ,
    (OURS, "inferencepipelines/status"): {"patch"},
    ("", "configmaps"): READ,
    ("discovery.k8s.io", "endpointslices"): READ,
}
NOT_USED: Final = {
    ("", "nodes"),
    ("discovery.k8s.io", "endpointslices"),
}
"""Kinds that the operator knows and asks for nothing of."""


def rights(roles: Iterable[Manifest]) -> Rights:
    """What some roles allow together."""
    found: Rights = {}
    for role in roles:
        for rule in role["rules"]:
            assert "resourceNames" not in rule
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def granted(rendered: Rendered, component: str, namespace: str | None) -> Rights:
    """What a component may do by roles of a namespace, or of the cluster."""
    kind = "ClusterRole" if namespace is None else "Role"
    bound = {
        each["roleRef"]["name"]
        for each in rendered.objects
        if each["kind"] == f"{kind}Binding"
        and each["metadata"].get("namespace") == namespace
        and each["subjects"][0]["name"].endswith(f"-{component}")
    }
    return rights(
        each
        for each in rendered.objects
        if each["kind"] == kind
        and each["metadata"].get("namespace") == namespace
        and each["metadata"]["name"] in bound
    )


def test_both_may_do_in_the_whole_cluster_what_they_do_and_no_more() -> None:
    rendered = render()

    assert granted(rendered, "operator", None) == OPERATOR | OPERATOR_IN_THE_CLUSTER
    assert granted(rendered, "operator", "omnistage-system") == OPERATOR_AT_HOME
    assert granted(rendered, "gateway", None) == GATEWAY
    assert granted(rendered, "gateway", "omnistage-system") == {}


def test_named_namespaces_bound_both_to_these() -> None:
    rendered = render({"watchNamespaces": ["speech", "vision"]})

    assert granted(rendered, "operator", None) == OPERATOR_IN_THE_CLUSTER
    assert granted(rendered, "gateway", None) == {}
    for namespace in ("speech", "vision"):
        assert granted(rendered, "operator", namespace) == OPERATOR
        assert granted(rendered, "gateway", namespace) == GATEWAY
    operator = rendered.container("omnistage-operator")["args"]
    gateway = rendered.container("omnistage-gateway")["args"]
    assert "--watch-namespaces=speech,vision" in operator
    assert "--namespaces=speech,vision" in gateway


def test_every_kind_that_the_operator_knows_is_in_the_table() -> None:
    known = {(kind.group, kind.plural) for kind in KINDS}
    table = set(OPERATOR | OPERATOR_IN_THE_CLUSTER | OPERATOR_AT_HOME)
    whole = {(group, resource) for group, resource in table if "/" not in resource}

    assert known - whole == NOT_USED
    assert whole <= known


class Noted:
    """Caches that only note what they should keep."""

    def __init__(self) -> None:
        self.kinds: set[ResourceKind] = set()

    def watch(self, kind: ResourceKind, _: object = None) -> None:
        """Notes the kind."""
        self.kinds.add(kind)


def test_the_operator_may_watch_what_it_watches_and_nothing_else() -> None:
    noted = Noted()
    settings = OperatorSettings(
        stage_image="stage:1", gateway_namespace="gateways", leader_worker_sets=True
    )
    watch_everything(cast("Caches", noted), settings)

    watched = {(kind.group, kind.plural) for kind in noted.kinds}
    allowed = OPERATOR | OPERATOR_IN_THE_CLUSTER
    assert watched == {kind for kind, verbs in allowed.items() if "watch" in verbs}


def test_the_operator_may_make_what_stages_own_and_the_stages_of_pipelines() -> None:
    owned = {(kind.group, kind.plural) for kind in child_kinds(leader_worker_sets=True)}

    assert {kind for kind, verbs in OPERATOR.items() if verbs == KEEP} == owned | {(OURS, "stages")}


def test_nobody_reads_secrets_and_nobody_may_do_anything_at_all() -> None:
    for role in (*render().of("ClusterRole").values(), *render().of("Role").values()):
        for rule in role["rules"]:
            assert "secrets" not in rule["resources"]
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])


@pytest.mark.parametrize(
    ("role", "resource", "verbs"),
    [
        ("view", "inferencepipelines", READ),
        ("view", "stages", READ),
        ("edit", "inferencepipelines", {"create", "delete", "deletecollection", "patch", "update"}),
        ("edit", "stages/scale", {"patch", "update"}),
    ],
)
def test_people_of_a_namespace_may_do_with_pipelines_what_they_may_do_with_the_rest(
    role: str, resource: str, verbs: set[str]
) -> None:
    found = render().one("ClusterRole", f"omnistage:omnistage-system:{role}")

    assert rights([found])[OURS, resource] == verbs
    assert found["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{role}"] == "true"


def test_no_person_gets_rights_where_that_is_not_wanted() -> None:
    names = set(render({"rbac": {"aggregate": False}}).of("ClusterRole"))

    assert not any(name.endswith((":view", ":edit", ":models")) for name in names)
