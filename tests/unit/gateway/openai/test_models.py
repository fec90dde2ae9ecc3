"""The list of models as the official client reads it."""

import json

from openai.pagination import SyncPage
from openai.types import Model

from omnistage_gateway.openai.models import ModelBody, model_body, model_list, model_report

REPORT = model_report(["conversation", "audio"], ["text"])
OMNI = ModelBody("omni", 5, REPORT)


def test_every_served_name_is_a_model_in_order() -> None:
    body = model_list([ModelBody("b", 5, REPORT), ModelBody("a", 6, REPORT)])
    page = SyncPage[Model].model_validate_json(body, strict=True)
    assert page.object == "list"
    assert [(model.id, model.created, model.owned_by) for model in page.data] == [
        ("b", 5, "omnistage"),
        ("a", 6, "omnistage"),
    ]


def test_no_model_is_an_empty_list() -> None:
    assert json.loads(model_list([])) == {"object": "list", "data": []}


def test_one_model_is_a_model() -> None:
    model = Model.model_validate_json(model_body(OMNI), strict=True)
    assert (model.id, model.object) == ("omni", "model")


def test_a_model_says_what_it_takes_and_makes() -> None:
    model = json.loads(model_body(OMNI))
    assert model["omnistage"] == {"takes": ["audio", "conversation"], "makes": ["text"]}
