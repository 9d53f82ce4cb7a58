"""Tasks, their results, errors, logs and reports, from `add` to the end, with a worker in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Server, eventually

import jobs
from turnwise_client import App, AsyncClient, Client, Handle, JobFailed, NotEnded, NotFound, Refused, Task
from turnwise_client.context import LOCK_WAIT_S

pytestmark = pytest.mark.usefixtures("connected")


@pytest.fixture
def connected(server: Server, client: Client) -> Iterator[None]:
    jobs.app.connect(server.url)
    server.worker("--slots", "4")
    yield
    jobs.app.close()


def test_functions_and_coroutines_get_arguments_and_return_results() -> None:
    assert jobs.add.add(1, b=2).result(20) == 3
    assert jobs.add_async.add(a=4).result(20) == 5
    assert jobs.add.function(1, 2) == 3
    with pytest.raises(TypeError):
        jobs.add.add(1, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        jobs.add.add(c=1)  # type: ignore[call-arg]


def test_dataclasses_are_arguments_and_results() -> None:
    assert jobs.order.add(jobs.Order(1, ["a"])).result(20) == jobs.Order(2, ["a", "done"])


def test_many_jobs_are_added_together(client: Client) -> None:
    handles = jobs.add.add_many({"a": n, "b": n} for n in range(300))
    assert [handle.result(30) for handle in handles] == [2 * n for n in range(300)]
    assert {handle.added for handle in handles} == {"queued"}
    assert len(list(client.jobs(type="test", state="completed"))) == 300


async def _async_client(url: str) -> None:
    async with AsyncClient(url) as client:
        handle = await client.add("test", {"a": 2, "b": 3}, task="add")
        assert await handle.result(20) == 5
        assert await handle.status() == "completed"
        assert [job["id"] async for job in client.jobs(type="test")] == [handle.id]
        assert await handle.remove()
        with pytest.raises(NotFound):
            await handle.job()
        with pytest.raises(NotEnded):
            await (await client.add("elsewhere")).wait(0.1)
    many = await jobs.add.add_many_async([{"a": 1}, {"a": 2}])
    assert [await each.result(20) for each in many] == [2, 3]
    assert await (await jobs.order.add_async(jobs.Order(1, []))).result(20) == jobs.Order(2, ["done"])
    await jobs.app.async_client.close()


def test_the_asynchronous_client_does_the_same(server: Server) -> None:
    import asyncio

    asyncio.run(_async_client(server.url))


def test_a_result_of_1_mb_arrives_and_a_larger_one_fails_the_job() -> None:
    size = 1_000_000 - 2  # Beside the quotes.
    assert jobs.big.add(size).result(30) == "x" * size
    with pytest.raises(JobFailed):
        jobs.big.add(3_000_000).result(30)
    with pytest.raises(JobFailed):
        jobs.big.add(14_000_000).result(60)
    assert jobs.add.add(1).result(20) == 2


def test_bytes_are_a_result() -> None:
    assert jobs.picture.add(100_000).result(30) == b"\x89" * 100_000


def test_a_crash_is_tried_again_after_the_stated_backoff_until_the_last_attempt(server: Server) -> None:
    assert jobs.crash.add(until=3).result(20) == 3
    lost = jobs.crash.add(until=9)
    with pytest.raises(JobFailed, match="attempt 3") as failed:
        lost.result(20)
    error = failed.value.job["errors"][0]
    assert error["class"] == "ValueError" and "in crash\n" in error["trace"]
    assert server.notes().count(f"crash {lost.id} 3") == 1
    assert not any(note.startswith(f"crash {lost.id} 4") for note in server.notes())


def test_fail_is_not_tried_again_and_keeps_its_class() -> None:
    job = jobs.fail.add().wait(20)
    assert (job["state"], job["attempts"], job["errors"][0]["class"]) == ("failed", 1, "NoCustomer")


def test_options_that_the_function_does_not_take_fail_the_job(client: Client) -> None:
    job = client.add("test", {"x": 1}, task="add").wait(20)
    assert (job["state"], job["attempts"], job["errors"][0]["class"]) == ("failed", 1, "BadOptions")


def test_a_snooze_is_no_attempt_and_keeps_the_report() -> None:
    assert jobs.snooze.add().result(20) == "snoozed, attempt 1"


def test_retry_after_replaces_the_backoff() -> None:
    assert jobs.retry_after.add().result(20) == 2


def test_a_timeout_ends_a_run() -> None:
    job = jobs.too_long.add().wait(20)
    assert job["state"] == "failed" and "timeout" in job["reason"].lower()


def test_logging_and_the_context_write_the_log_of_the_job() -> None:
    handle = jobs.talk.add()
    lines = list(handle.logs(follow=True))
    assert [line["message"].split("\n")[0] for line in lines] == ["from logging", "from the context", "a trace"]
    assert [line["level"] for line in lines] == ["info", "warn", "error"]
    assert lines[0]["fields"] == {"logger": "jobs"} and lines[1]["fields"] == {"count": 3}
    assert "KeyError: 'inside'" in lines[2]["message"]
    assert handle.job()["info"] == {"done": 1}
    other = jobs.talk_async.add()
    assert [line["message"] for line in other.logs(follow=True)] == ["on the loop"]


def test_steps_are_not_repeated_by_the_next_attempt(server: Server) -> None:
    assert jobs.steps.add().result(20) == [1, 2]
    assert server.notes() == ["first", "second", "second", "second"]
    assert jobs.steps_async.add().result(20) == [1, 2]
    assert server.notes().count("first") == 2


def test_inputs_are_the_results_of_jobs_before() -> None:
    small = {"one": jobs.add.add(1), "two": jobs.add.add(2)}
    assert jobs.total.using(inputs=small).add(["one", "two"]).result(20) == 5


@pytest.mark.parametrize("task", [jobs.kinds, jobs.kinds_async])
def test_inputs_that_are_large_or_no_json_are_fetched(task: Task[[], dict[str, list[Any]]]) -> None:
    inputs: dict[str, Handle[Any]] = {
        "small": jobs.big.add(20),
        "large": jobs.big.using(id="größer/als 64 kB?&#%").add(200_000),
        "bytes": jobs.picture.add(20),
        "large_bytes": jobs.picture.add(200_000),
    }
    expected = {"small": ["str", 20, False], "large": ["str", 200_000, True]}
    expected |= {"bytes": ["bytes", 20, True], "large_bytes": ["bytes", 200_000, True]}
    assert task.using(inputs=inputs, id="with inputs/ü?&#%").add().result(20) == expected


def test_after_waits_for_other_jobs() -> None:
    first = jobs.sleep.add(0.3)
    second = jobs.add.using(after=[first]).add(1)
    assert second.added == "blocked"
    assert second.result(20) == 2 and first.status() == "completed"


def test_what_a_task_states_belongs_to_its_jobs(client: Client) -> None:
    first, second = jobs.only.using(delay=3600).add(5), jobs.only.add(5)
    assert second.id == first.id and (first.added, second.added) == ("delayed", "found")
    job = first.job()
    assert job["priority"] == -3 and job["tags"] == ["only"] and job["reasons"] == ["rate:1000/1s:test.only"]
    assert job["unique"]["key"] == "one-5"
    assert first.retry()["retried"] and first.result(20) == 5


def test_the_worker_writes_the_schedules_of_its_tasks(client: Client) -> None:
    schedule = eventually(lambda: next(client.schedules(), None))
    assert schedule["name"] == "test.yearly"
    assert schedule["when"] == {"cron": "0 0 1 1 *", "zone": "Europe/Berlin"}
    fired = client.fire_schedule("test.yearly")
    assert jobs.yearly.handle(fired["job"]).result(20) == "happy new year"
    assert client.pause_schedule("test.yearly")["state"] == "paused"
    assert client.resume_schedule("test.yearly")["state"] == "active"
    client.remove_schedule("test.yearly")
    with pytest.raises(NotFound):
        client.schedule("test.yearly")


def test_a_group_ends_with_its_last_job_and_adds_the_next(client: Client) -> None:
    done = jobs.add.new(40, 2)
    client.add_group("pictures", on_success=done)
    for n in range(5):
        jobs.add.using(group="pictures").add(n)
    assert client.close_group("pictures")["state"] in ("closed", "completed")
    group = client.wait_group("pictures", timeout=20)
    assert group["state"] == "completed" and group["counts"]["completed"] == 5
    called = group["called"][0]
    assert jobs.add.handle(called["id"]).result(20) == 42
    assert [each["name"] for each in client.groups()] == ["pictures"]
    client.remove_group("pictures")


def test_a_declared_lock_keeps_jobs_apart(server: Server) -> None:
    first = jobs.holds.add("web1", 60)
    eventually(lambda: server.notes() == [f"start {first.id}"])
    second = jobs.holds.add("web1", 0)
    jobs.holds.add("web2", 0).result(20)
    assert second.status() == "pending"
    first.cancel()
    second.result(20)


@pytest.mark.parametrize("task", [jobs.takes, jobs.takes_async])
def test_a_job_waits_for_a_lock_while_it_runs_and_releases_it(server: Server, task: Task[[str, float], None]) -> None:
    first = jobs.holds.add("web1", 60)
    eventually(lambda: f"start {first.id}" in server.notes())
    waiting, cancelled = task.add("web1", 60), task.add("web1", 60)
    eventually(lambda: {f"start {waiting.id}", f"start {cancelled.id}"} <= set(server.notes()))
    cancelled.cancel()
    assert cancelled.wait(20)["state"] == "cancelled"
    # One request for a lock waits for less than this.
    time.sleep(LOCK_WAIT_S + 1)
    assert not any(note.startswith("locked") for note in server.notes())
    first.cancel()
    eventually(lambda: f"locked {waiting.id}" in server.notes())
    # It runs on, but does not hold the lock any more.
    jobs.holds.add("web1", 0).result(20)
    assert waiting.status() == "running"


def test_a_lock_that_was_not_declared_is_refused_with_the_servers_message(client: Client) -> None:
    with pytest.raises(JobFailed) as failed:
        jobs.guarded.using(max_attempts=1).add().result(20)
    assert failed.value.job["errors"][0]["class"] in ("Refused", "NotFound")


def test_events_tell_what_happens(client: Client) -> None:
    handle = jobs.add.add(1)
    events = client.events(since=None, types=["test"])
    # The first request begins to record: what happens before it is not known.
    import threading

    threading.Timer(1.0, lambda: jobs.add.using(id="seen").add(2)).start()
    seen = []
    for event in events:
        if event["id"] == "seen":
            seen.append(event["event"])
            if event["event"] == "completed":
                break
    assert seen == ["added", "started", "completed"]
    assert handle.result(20) == 2


def test_a_refusal_has_the_servers_words(client: Client) -> None:
    with pytest.raises(Refused) as refused:
        client.add("test", {}, priority=99)
    assert refused.value.error == "bad_request" and refused.value.hint and "priority" in refused.value.reason


def test_an_app_refuses_two_tasks_of_one_name() -> None:
    app = App("x")
    app.task(name="a")(lambda: 1)
    with pytest.raises(ValueError, match="two tasks"):
        app.task(name="a")(lambda: 2)
