"""Statuses are written in the form that the definitions store, and read from a newer release too."""

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from fakes.resource_table import VALID
from omnistage_common.ids import Revision, StageName
from omnistage_common.pipeline.loading import load_text
from omnistage_common.pipeline.resources.status import (
    MAX_MESSAGE,
    REASON_PATTERN,
    Condition,
    ConditionStatus,
    GatewayStatus,
    InferencePipelineStatus,
    PipelineRevisionStatus,
    PipelineStageStatus,
    RevisionPhase,
    StageReason,
    StageRevisionStatus,
    StageStatus,
)
from omnistage_operator.definitions.schema import structural_schema

OLD, NEW = Revision("0123456789"), Revision("abcdef0123")
READY = Condition(
    type="Ready",
    status=ConditionStatus.FALSE,
    observed_generation=3,
    last_transition_time="2026-11-30T10:00:00Z",
    reason=StageReason.INSUFFICIENT_CAPACITY.value,
    message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
)
PIPELINE = InferencePipelineStatus(
    observed_generation=3,
    current_revision=OLD,
    target_revision=NEW,
    conditions=(READY,),
    stages_ready="1/2",
    stages=(
        PipelineStageStatus(
            name=StageName("thinker"),
            stage="chat-thinker",
            desired=2,
            ready=1,
            routable=1,
            updated=1,
            revision=NEW,
            reason=StageReason.MODEL_LOADING.value,
            message="40 % of the weights are loaded",
        ),
    ),
    revisions=(
        PipelineRevisionStatus(revision=OLD, phase=RevisionPhase.SERVING),
        PipelineRevisionStatus(revision=NEW, phase=RevisionPhase.PREPARING),
    ),
    gateways=(GatewayStatus(name="gateway-0", serving=OLD, routable=(OLD,), in_use=(OLD,)),),
    url="http://gateway.omnistage.svc/v1",
)
STAGE = StageStatus(
    observed_generation=1,
    conditions=(READY,),
    replicas=2,
    ready_replicas=1,
    selector="omnistage.io/stage=thinker",
    revision=NEW,
    reason=StageReason.PROGRESSING.value,
    revisions=(
        StageRevisionStatus(
            revision=NEW, desired=2, ready=1, updated=2, phase=RevisionPhase.PREPARING
        ),
    ),
)


@pytest.mark.parametrize("status", [PIPELINE, STAGE], ids=lambda status: type(status).__name__)
def test_a_status_passes_its_schema_and_reads_back_as_it_was(
    status: InferencePipelineStatus | StageStatus,
) -> None:
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)

    jsonschema.validate(written, structural_schema(type(status)))
    assert type(status).model_validate(written) == status


def test_names_outside_are_in_camel_case() -> None:
    written = PIPELINE.model_dump(mode="json", by_alias=True)

    assert written["stagesReady"] == "1/2"
    assert written["gateways"][0]["inUse"] == [OLD]
    assert written["conditions"][0]["lastTransitionTime"] == "2026-11-30T10:00:00Z"


def test_what_a_newer_release_adds_is_left_aside() -> None:
    written = {"observedGeneration": 1, "adapters": [{"name": "later"}]}

    assert StageStatus.model_validate(written) == StageStatus(observed_generation=1)


@pytest.mark.parametrize("reason", StageReason, ids=lambda reason: reason.value)
def test_every_reason_fits_where_reasons_stand(reason: StageReason) -> None:
    pattern = structural_schema(StageStatus)["properties"]["reason"]["pattern"]

    assert pattern == REASON_PATTERN
    assert PipelineStageStatus(name=StageName("s"), reason=reason.value).reason == reason.value


def test_reasons_stay_open_in_a_cluster() -> None:
    assert "enum" not in structural_schema(StageStatus)["properties"]["reason"]
    assert StageStatus(reason="OutOfPatience").reason == "OutOfPatience"


@pytest.mark.parametrize("reason", ["not in camel case", "1st", ""])
def test_a_reason_is_one_word(reason: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        StageStatus(reason=reason)


@pytest.mark.parametrize("kind", ["Ready", "Reconciling", "Stalled", "GraphValid", "x.io/Own"])
def test_conditions_of_any_tool_are_allowed(kind: str) -> None:
    assert READY.model_copy(update={"type": kind}).type == kind
    jsonschema.validate(
        {"conditions": [{**_written(READY), "type": kind}]}, structural_schema(StageStatus)
    )


def test_a_message_has_an_end() -> None:
    assert len(StageStatus(message="m" * MAX_MESSAGE).message) == MAX_MESSAGE
    with pytest.raises(ValidationError, match="at most 4096 characters"):
        StageStatus(message="m" * (MAX_MESSAGE + 1))


def test_a_file_that_was_exported_from_a_cluster_is_read_without_its_status() -> None:
    exported = {
        **VALID["Stage"],
        "metadata": {
            "name": "table",
            "uid": "0",
            "generation": 2,
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-30T10:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
        },
        "status": _written(STAGE),
    }

    resources = load_text(yaml.safe_dump(exported), file="exported.yaml")

    assert resources.problems == ()
    assert [stage.resource.metadata.name for stage in resources.stages] == ["table"]


def _written(model: Condition | StageStatus) -> dict[str, object]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
