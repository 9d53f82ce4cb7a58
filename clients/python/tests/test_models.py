"""The models, and what jobs and tasks can state, are those of the API's description."""

from __future__ import annotations

import datetime
import json
import pathlib
import typing
from typing import Any

import pytest

from turnwise_client import App, AsyncContext, Context, Handle, JobOptions, TaskOptions, models
from turnwise_client._spec import new_job, terms, when

SCHEMAS: dict[str, Any] = json.loads(
    (pathlib.Path(__file__).parents[3] / "docs" / "openapi.json").read_text()
)["components"]["schemas"]
MODELS = {name: value for name, value in vars(models).items() if typing.is_typeddict(value) and not name.startswith("_")}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_members_of_its_schema(name: str) -> None:
    model, schema = MODELS[name], SCHEMAS[name]
    assert set(model.__annotations__) == set(schema["properties"])
    assert model.__required_keys__ == set(schema.get("required", ()))


def test_states_and_levels_are_those_of_the_api() -> None:
    assert list(typing.get_args(models.State)) == SCHEMAS["State"]["enum"]
    assert list(typing.get_args(models.LogLevel)) == SCHEMAS["LogLevel"]["enum"]


EVERYTHING: dict[str, Any] = {
    "id": "1", "task": "a", "tenant": "t", "user": "u", "priority": 1, "delay": 1, "after": [Handle(None, "x", "1")],  # type: ignore[arg-type]
    "not_before": datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), "inputs": {"a": {"job": "x/1"}}, "group": "g",
    "tags": ("a",), "reasons": ["b"], "summary": {}, "unique": True, "rate": "1/1s", "locks": {}, "backoff": [1, 2.5],
    "max_attempts": 1, "max_snoozes": 1, "jitter": False, "timeout": datetime.timedelta(minutes=1), "heartbeat_timeout": 1,
    "start_within": 1, "keep": 1, "on_lost": "count", "if_exists": "keep",
}  # fmt: skip


def test_jobs_can_state_all_that_the_api_takes() -> None:
    assert EVERYTHING.keys() == JobOptions.__annotations__.keys()
    job = new_job("x", {"a": 1}, typing.cast(JobOptions, EVERYTHING))
    # Arrays, and names within a request, are not supported yet.
    assert set(SCHEMAS["NewJob"]["properties"]) - {"name", "count", "at_once"} == set(job)
    assert job["backoff"] == {"list_ms": [1000, 2500]} and job["timeout_ms"] == 60_000
    assert job["not_before_us"] == 1_767_225_600_000_000 and job["after"] == [{"type": "x", "id": "1"}]
    assert job["reason"] == ["b", "rate:1/1s:x.a"] and job["unique"] == {"mode": "until_end", "within": "task"}


def test_tasks_can_state_all_terms_of_the_api() -> None:
    stated = {name: EVERYTHING[name] for name in TaskOptions.__annotations__ if name in EVERYTHING}
    assert set(terms({**stated, "final_errors": ("A",)})) == set(SCHEMAS["TaskTerms"]["properties"])


def test_backoffs_and_times() -> None:
    assert new_job("x", None, {"backoff": 2}) == {"type": "x", "backoff": {"fixed_ms": 2000}}
    grows = new_job("x", None, {"backoff": {"first": 1, "factor": 2, "most": 60}})
    assert grows["backoff"] == {"exponential": {"first_ms": 1000, "factor": 2, "most_ms": 60_000}}
    assert when("30 2 * * * Europe/Berlin") == {"cron": "30 2 * * *", "zone": "Europe/Berlin"}
    assert when("0 0 * * MON") == {"cron": "0 0 * * MON"} and when("@daily UTC") == {"cron": "@daily", "zone": "UTC"}
    assert when(10) == {"every_ms": 10_000}
    with pytest.raises(ValueError, match="time zone"):
        new_job("x", None, {"not_before": datetime.datetime(2026, 1, 1)})
    with pytest.raises(TypeError, match="no speed"):
        new_job("x", None, typing.cast(JobOptions, {"speed": 1}))


def test_an_app_knows_its_tasks() -> None:
    app = App("types")

    @app.task(max_attempts=3)
    def plain(context: Context, to: str, count: int = 1) -> int:
        return count

    @app.task()
    async def coroutine(context: AsyncContext, to: str) -> list[str]:
        return [to]

    @app.task()
    async def bare(to: str) -> bytes:
        return to.encode()

    assert list(app.tasks) == ["plain", "coroutine", "bare"]
    assert plain.new("a", count=2) == ("types", {"to": "a", "count": 2}, {"task": "plain"})
