"""The command line of an operator process."""

from pathlib import Path

import pytest

from omnistage_common.addresses import Address
from omnistage_operator.planning.settings import PullPolicy
from omnistage_operator.settings import parse_settings

NEEDED = ["--stage-image", "stage:1"]


def test_an_image_of_stages_is_enough() -> None:
    settings = parse_settings(NEEDED)

    assert settings.planning.stage_image == "stage:1"
    assert settings.planning.gateway_namespace == settings.namespace == "omnistage"
    assert settings.watched == ()
    assert settings.lease == "omnistage-operator"
    assert settings.metrics == Address(host="0.0.0.0", port=8080)  # noqa: S104 - only compared


def test_everything_can_be_said() -> None:
    settings = parse_settings(
        [
            *NEEDED,
            *("--namespace", "own", "--watch-namespaces", "a,b", "--kubeconfig", "k"),
            *("--engine-image", "vllm=gpu:1", "--engine-image", "onnx=cpu:1"),
            *("--image-pull-policy", "Never", "--image-pull-secret", "one"),
            *("--gateway-namespace", "edge", "--gateway-url", "https://models.example"),
            *("--metrics", "127.0.0.1:1", "--workers", "9", "--no-leader-election"),
            *("--log-level", "DEBUG"),
        ]
    )

    planning = settings.planning
    assert (settings.namespace, settings.watched) == ("own", ("a", "b"))
    assert settings.kubeconfig == Path("k")
    assert planning.engine_images == {"vllm": "gpu:1", "onnx": "cpu:1"}
    assert (planning.pull_policy, planning.pull_secrets) == (PullPolicy.NEVER, ("one",))
    assert planning.gateway_namespace == "edge"
    assert planning.gateway_url == "https://models.example"
    assert (settings.workers, settings.lease) == (9, None)


def test_the_pod_is_the_identity_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "operator-abc")

    assert parse_settings(NEEDED).identity == "operator-abc"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--stage-image"),
        ([*NEEDED, "--engine-image", "vllm"], "'vllm' is not ENGINE=IMAGE"),
        ([*NEEDED, "--workers", "0"], "--workers"),
        ([*NEEDED, "--image-pull-policy", "Sometimes"], "Sometimes"),
    ],
)
def test_what_is_wrong_is_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(arguments)

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--help"])

    assert "omnistage-operator --namespace omnistage" in capsys.readouterr().out
