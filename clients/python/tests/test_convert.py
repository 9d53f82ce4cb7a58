"""Arguments and results of annotated kinds."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import uuid
from typing import Any, Optional

import pytest

from turnwise_client import App, Context
from turnwise_client._convert import dump, load


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Item:
    id: uuid.UUID
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Order:
    items: list[Item]
    at: datetime.datetime
    first: Optional[Item] = None
    by_name: dict[str, Item] = dataclasses.field(default_factory=dict)
    pair: tuple[int, Item] | None = None


ITEM = Item(uuid.UUID(int=7))
ORDER = Order([ITEM], datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc), ITEM, {"a": ITEM}, (1, ITEM))


def through_json(annotation: Any, value: Any) -> Any:
    return load(annotation, json.loads(json.dumps(dump(value))))


def test_dataclasses_come_back_with_all_that_is_in_them() -> None:
    assert through_json(Order, ORDER) == ORDER
    assert through_json(list[Order] | None, [ORDER]) == [ORDER]
    assert through_json(Order | None, None) is None
    assert load(datetime.datetime, "2026-01-02T00:00:00Z") == ORDER.at
    with pytest.raises(ValueError):
        load(tuple[int, int], [1])


def test_values_of_other_kinds_stay_as_they_are() -> None:
    for annotation in (None, Any, int, str, dict, "later", int | str):
        assert load(annotation, {"a": [1]}) == {"a": [1]}
    with pytest.raises(TypeError, match="no form in JSON"):
        dump(object())


def test_models_of_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Model", n=(int, ...), at=(datetime.date, ...))
    value = model(n=1, at="2026-01-02")
    assert through_json(model, value) == value and through_json(list[model], [value]) == [value]
    with pytest.raises(ValueError):
        load(model, {"n": "x"})


def test_structs_of_msgspec() -> None:
    msgspec = pytest.importorskip("msgspec")
    struct: Any = msgspec.defstruct("Struct", [("n", int)])
    assert through_json(struct, struct(n=1)) == struct(n=1)
    with pytest.raises(ValueError):
        load(struct, {"n": "x"})


def test_options_are_bound_to_the_names_of_arguments() -> None:
    app = App("x")

    def plain(context: Context, order: Order, *, more: int = 2, **others: int) -> None: ...

    async def wrong(context: Context) -> None: ...

    # mypy does not take a context and `**others` apart.
    function: Any = app.task()(plain)
    options = function.new(ORDER, more=3, other=4)[1]
    assert options == {"order": dump(ORDER), "more": 3, "other": 4}
    assert function.signature.arguments(options) == {"order": ORDER, "more": 3, "other": 4}
    with pytest.raises(TypeError):
        function.signature.arguments({"more": 1})
    with pytest.raises(TypeError, match="no object"):
        function.signature.arguments([1])
    with pytest.raises(TypeError, match="positional"):
        app.task(name="no")(lambda *values: None)
    with pytest.raises(TypeError, match="AsyncContext"):
        app.task(name="wrong")(wrong)
