"""The command line of a gateway and the file that names its replicas."""

from pathlib import Path

import pytest

from omnistage_common.addresses import Address
from omnistage_common.errors import SetupError
from omnistage_common.ids import ReplicaId, StageName
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint
from omnistage_gateway.settings import (
    ClusterSource,
    FileSource,
    parse_settings,
    read_endpoints,
)

NEEDED = ("--plan", "p.json", "--endpoints", "e.json", "--listen", "127.0.0.1:8000")
IN_CLUSTER = ("--cluster", "--name", "gateway-0", "--listen", "127.0.0.1:8000")
MIB = 1024 * 1024


def test_what_is_not_said_has_a_bound() -> None:
    settings = parse_settings(NEEDED)

    assert settings.listen == Address(host="127.0.0.1", port=8000)
    assert settings.source == FileSource(plan=Path("p.json"), endpoints=Path("e.json"))
    assert settings.leave_after == 0
    assert settings.max_requests == 1024
    assert settings.max_body_bytes == 25 * MIB
    assert settings.body_budget_bytes == 256 * MIB
    assert settings.slab_bytes == 256 * MIB
    assert settings.log_level == "INFO"
    assert not settings.exit_with_parent


def test_a_cluster_takes_the_place_of_the_files() -> None:
    settings = parse_settings(IN_CLUSTER)

    assert settings.source == ClusterSource(name="gateway-0")
    assert settings.leave_after > 0
    assert parse_settings((*IN_CLUSTER, "--leave-after", "0")).leave_after == 0


def test_a_cluster_may_be_looked_at_in_part_and_from_outside() -> None:
    settings = parse_settings((*IN_CLUSTER, "--namespaces", "a,b", "--kubeconfig", "c"))

    assert settings.source == ClusterSource(
        name="gateway-0", namespaces=("a", "b"), kubeconfig=Path("c")
    )


def test_help_shows_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--help"])

    examples = capsys.readouterr().out.split("examples:")[1]
    for line in examples.splitlines():
        if "omnistage-gateway" in line:
            parse_settings(
                line.replace("$POD_NAME", "g-0").replace("$POD_IP", "1.2.3.4").split()[1:]
            )
    assert examples.count("--cluster --name") >= 1
    assert "--plan" in examples


def test_sizes_are_given_in_mebibytes() -> None:
    settings = parse_settings(
        (*NEEDED, "--max-body-mib", "0.5", "--body-budget-mib", "2", "--slab-mib", "3")
    )

    assert settings.max_body_bytes == MIB // 2
    assert settings.body_budget_bytes == 2 * MIB
    assert settings.slab_bytes == 3 * MIB


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (NEEDED[2:], "--plan"),
        (NEEDED[:2] + NEEDED[4:], "--endpoints"),
        (NEEDED[:4], "--listen"),
        ((*NEEDED[:5], "8000"), "--listen"),
        ((*NEEDED, "--max-requests", "many"), "--max-requests"),
        ((*NEEDED, "--max-requests", "-1"), "--max-requests"),
        ((*NEEDED, "--max-body-mib", "-1"), "--max-body-mib"),
        ((*NEEDED, "--max-body-mib", "nan"), "--max-body-mib"),
        ((*NEEDED, "--max-body-mib", "inf"), "--max-body-mib"),
        ((*NEEDED, "--body-budget-mib", "0"), "--body-budget-mib"),
        ((*NEEDED, "--slab-mib", "0"), "--slab-mib"),
        ((*NEEDED, "--max-body-mib", "49"), "--max-body-mib"),
        ((*NEEDED, "--max-body-mib", "30", "--body-budget-mib", "29"), "--body-budget-mib"),
        ((*NEEDED, "--leave-after", "-1"), "--leave-after"),
        ((*NEEDED, "--leave-after", "3601"), "--leave-after"),
        ((*NEEDED, "--leave-after", "nan"), "--leave-after"),
        ((*NEEDED, "--cluster", "--name", "a"), "--plan and --cluster exclude each other"),
        ((*NEEDED, "--name", "a"), "--name is for a cluster"),
        ((*NEEDED, "--namespaces", "a"), "--namespaces is for a cluster"),
        ((*NEEDED, "--kubeconfig", "a"), "--kubeconfig is for a cluster"),
        (NEEDED[4:], "--plan and --endpoints must be given"),
        ((*IN_CLUSTER, "--endpoints", "e"), "--endpoints and --cluster exclude each other"),
        (("--cluster", *IN_CLUSTER[3:]), "--cluster needs --name"),
        ((*IN_CLUSTER, "--name", "Gateway"), "--name 'Gateway' is not the name of a pod"),
        ((*IN_CLUSTER, "--name", ""), "--name '' is not the name of a pod"),
        ((*IN_CLUSTER, "--namespaces", "a,B"), "--namespaces: 'B'"),
        ((*IN_CLUSTER, "--namespaces", "a,"), "--namespaces: ''"),
        ((*NEEDED, "--log-level", "LOUD"), "--log-level"),
        ((*NEEDED, "--colour", "red"), "--colour"),
    ],
)
def test_a_wrong_command_line_ends_with_usage(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(arguments)

    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "usage: omnistage-gateway" in said
    assert words in said.splitlines()[-1]


def test_help_shows_how_endpoints_look(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--help"])

    said = capsys.readouterr().out
    example = next(line for line in said.splitlines() if line.strip().startswith('{"replicas"'))
    path = tmp_path / "endpoints.json"
    path.write_text(example)
    assert read_endpoints(path) == (
        ReplicaEndpoint(
            stage=StageName("thinker"),
            replica=ReplicaId("thinker-0"),
            address="127.0.0.1:7001",
        ),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read the endpoints"),
        ("", "does not name endpoints"),
        ("[]", "does not name endpoints"),
        ('{"replicas": [{"stage": "thinker"}]}', "replica"),
        ('{"replicas": [], "more": 1}', "more"),
        ('{"replicas": [{"stage": "a", "replica": "a-0", "address": 7}]}', "address"),
    ],
)
def test_endpoints_that_cannot_be_read_are_a_setup_error(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "endpoints.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(SetupError, match=words) as wrong:
        read_endpoints(path)

    assert wrong.value.field == "--endpoints"
    assert str(path) in wrong.value.message
