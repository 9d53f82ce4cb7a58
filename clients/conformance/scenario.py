"""The steps of scenarios. Each is a table whose first member names the step: `{ add = "job", script = [...] }`."""

from __future__ import annotations

import base64
import os
import pathlib
import signal
import time
from collections import Counter
from typing import Any

from proxy import FAULTS, Fault, Seen
from world import FINAL, PATIENCE_S, TYPE, Failed, Process, World

# How long an end of a wait that must not come is waited for.
CALL_TIMEOUT_S = 50


def equal(found: Any, wanted: Any, what: str) -> None:
    if found != wanted:
        shown = str(found)
        raise Failed(f"{what} is {shown[:300]}, and not {str(wanted)[:300]}")


class Scenario:
    """A scenario that runs in its world."""

    def __init__(self, told: dict[str, Any], world: World) -> None:
        self.told, self.world = told, world
        # The ids of jobs, by their names in the scenario.
        self.ids: dict[str, str] = {}
        self.answers: dict[str, tuple[Process, int]] = {}

    def run(self) -> None:
        for number, step in enumerate(self.told["steps"], 1):
            name, *_ = step
            given = dict(step)
            try:
                getattr(self, f"do_{name}")(given.pop(name), **given)
            except Failed as failed:
                raise Failed(f"step {number} ({name} {step[name]}): {failed}") from None
        self.invariants()

    # Processes.

    def do_worker(
        self, name: str, slots: int = 4, grace: float = 20, token: str | None = None, clock: str | None = None, wait: bool = True
    ) -> None:
        """Starts a worker, and waits until it is registered."""
        world = self.world
        environment = world.environment(name, token, clock)
        world.start(name, *world.language.worker(name, slots, grace, environment))
        if wait:
            self.do_registered(name)

    def do_registered(self, name: str, times: int = 1) -> None:
        """Waits until a worker is registered, for the nth time."""
        world = self.world

        def registered() -> bool:
            if world.processes[name].code is not None:
                raise Failed(f"{name} has ended: {world.processes[name].errors.read_text()[-2000:]}")
            return list(world.proxy.workers.values()).count(name) >= times

        world.until(registered, f"{name} is registered")

    def do_client(self, name: str, token: str | None = None, clock: str | None = None, retry_for: float = 30) -> None:
        world = self.world
        environment = world.environment(name, token, clock, SUITE_RETRY_FOR=str(retry_for))
        world.start(name, *world.language.client(environment, world.plain))

    def do_signal(self, name: str, to: str) -> None:
        self.world.processes[to].send(signal.Signals[f"SIG{name}"])

    def do_exit(self, of: str, code: int, within: float = PATIENCE_S, after: float = 0, says: str = "") -> None:
        """Waits for the end of a process."""
        process, began = self.world.processes[of], time.monotonic()
        self.world.until(lambda: process.code is not None, f"{of} ends", within)
        equal(process.code, code, f"the code of {of}")
        if time.monotonic() - began < after:
            raise Failed(f"{of} has ended after {time.monotonic() - began:.1f} s")
        if says not in process.errors.read_text():
            raise Failed(f"{of} does not say `{says}`")

    def do_clock(self, offset: str, of: str) -> None:
        """Sets the clock of a process that has one of its own."""
        file = self.world.folder / f"{of}.clock"
        new = file.with_suffix(".new")
        new.write_text(f"{offset}\n")
        os.replace(new, file)

    def do_open(self, gate: str) -> None:
        """Lets the scripts go on that wait for this."""
        (self.world.gates / gate).touch()

    def do_pause(self, seconds: float) -> None:
        """For what is to last. Never to wait for something."""
        time.sleep(seconds)

    # The server and the proxy.

    def do_server(self, what: str) -> None:
        if what == "kill":
            self.world.kill_server()
        else:
            self.world.start_server()

    def do_fault(self, kind: str, name: str = "fault", **given: Any) -> None:
        if kind not in FAULTS:
            raise ValueError(f"there is no fault {kind}")
        with self.world.changed:
            self.world.proxy.faults[name] = Fault(kind, **given)

    def do_mend(self, name: str) -> None:
        with self.world.changed:
            del self.world.proxy.faults[name]

    def do_token(self, name: str, scopes: list[str], expires: int | None = None) -> None:
        """Makes a token. From the first one on, the server lets no request in without one."""
        world = self.world
        if world.admin is None:
            world.admin = world.token(["admin"])["token"]
        world.tokens[name] = world.token(scopes, **({} if expires is None else {"expires_in_s": expires}))

    def do_revoke(self, name: str) -> None:
        self.world.ask("DELETE", f"tokens/{self.world.tokens[name]['id']}")

    def do_record(self, what: str) -> None:
        """The server begins to record events with the first request for them."""
        self.world.ask("GET", f"{what}?wait_ms=0")

    def do_drain(self, name: str) -> None:
        """An operator drains a worker."""
        worker = next(id for id, of in self.world.proxy.workers.items() if of == name)
        self.world.ask("PUT", f"workers/{TYPE}/{worker}", {"mode": "drain"})

    # Calls of the client.

    def do_add(self, name: str, script: Any = (), many: int = 0, by: str = "client", **more: Any) -> None:
        """Adds a job, or many that are called `name0`, `name1`…"""
        terms = {"task": "plain" if self.world.plain else "script", **more.pop("terms", {})}
        if "after" in terms:
            terms["after"] = [{"type": TYPE, "id": self.ids[job]} for job in terms["after"]]
        options = {"script": list(script)}
        if many:
            ids = self._call(by, "add_many", many=[options] * many, terms=terms)
            self.ids.update({f"{name}{n}": id for n, id in enumerate(ids)})
        else:
            answer = self._call(by, "add", options=options, terms=terms, fails=more.pop("fails", None))
            if answer is not None:
                self.ids[name] = answer["id"]
                equal(answer["added"], more.pop("gives", answer["added"]), "what became of the add")
        if more:
            raise TypeError(f"an add has no {list(more)}")

    def do_call(self, what: str, job: str = "", by: str = "client", name: str | None = None, **more: Any) -> None:
        """Calls a method of the client. With a `name`, `answer` waits for the answer."""
        given: dict[str, Any] = {"id": self.ids.get(job, job)}
        if what in ("wait", "result"):
            given["timeout"] = more.pop("timeout", CALL_TIMEOUT_S)
        if what == "events":
            last = more.pop("last")
            given["last"] = self.ids.get(last, last)
        if name is None:
            self._check(self._call(by, what, fails=more.pop("fails", None), **given), **more)
        else:
            process = self._client(by)
            self.answers[name] = (process, process.call(what, **given))

    def do_answer(self, name: str, fails: str | None = None, **more: Any) -> None:
        process, number = self.answers[name]
        self._check(self._answer(process, number, fails), **more)

    def _check(self, value: Any, gives: Any = None, chars: int | None = None, bytes: int | None = None) -> None:
        if gives is not None:
            equal(self._named(value), gives, "the answer")
        if chars is not None:
            equal(len(value), chars, "the length of the answer")
        if bytes is not None:
            equal(base64.b64decode(value["bytes"]), b"\x89" * bytes, "the bytes of the answer")

    def _named(self, value: Any) -> Any:
        """With names in place of ids."""
        names = {id: name for name, id in self.ids.items()}
        if isinstance(value, list):
            return [self._named(each) for each in value]
        return names.get(value, value) if isinstance(value, str) else value

    def _client(self, name: str) -> Process:
        if name not in self.world.processes:
            self.do_client(name)
        return self.world.processes[name]

    def _call(self, by: str, what: str, fails: str | None = None, **given: Any) -> Any:
        process = self._client(by)
        return self._answer(process, process.call(what, **given), fails)

    def _answer(self, process: Process, number: int, fails: str | None) -> Any:
        def answered() -> Any:
            if process.code is not None:
                raise Failed(f"{process.name} has ended: {process.errors.read_text()[-2000:]}")
            return process.answers.get(number)

        answer = self.world.until(answered, "the client has an answer", max(self.world.patience, CALL_TIMEOUT_S + 10))
        if fails is not None:
            equal(answer.get("error"), fails, "the error")
            return None
        if "error" in answer:
            raise Failed(f"the client fails: {answer['text']}")
        return answer["value"]

    # Conditions and expectations.

    def do_started(self, job: str, at: str | None = None, times: int = 1) -> None:
        """Waits until a script has been started."""
        self._until_event("start", job, at, times)

    def do_stopped(self, job: str, at: str | None = None) -> None:
        """Waits until a script has learned that it has to stop."""
        self._until_event("stop", job, at, 1)

    def do_over(self, job: str, at: str | None = None) -> None:
        """Waits until a script has returned."""
        self._until_event("over", job, at, 1)

    def _until_event(self, event: str, job: str, at: str | None, times: int) -> None:
        wanted = f"{job} has its event {event} {times} times{f' at {at}' if at else ''}"
        self.world.until(lambda: len(self._events(event, job, at)) >= times, wanted)

    def _events(self, event: str, job: str, at: str | None = None) -> list[dict[str, Any]]:
        id = self.ids[job]
        return [one for one in list(self.world.events) if one["event"] == event and one.get("job") == id and at in (None, one["by"])]

    def do_seen(self, on: str, times: int = 1, has: str = "", by: str | None = None, exactly: bool = False, most: int | None = None) -> None:
        """Waits until the proxy has seen requests; or asserts how many it has seen."""
        if most is not None:
            if (found := len(self._seen(on, has, by))) > most:
                raise Failed(f"there were {found} requests `{on}`, and not at most {most}")
        elif exactly:
            equal(len(self._seen(on, has, by)), times, f"the number of requests `{on}`")
        else:
            self.world.until(lambda: len(self._seen(on, has, by)) >= times, f"{times} requests `{on}`")

    def _seen(self, on: str, has: str, by: str | None) -> list[Seen]:
        return [seen for seen in list(self.world.proxy.seen) if seen.matches(on, has, by)]

    def do_gone(self, name: str) -> None:
        """Waits until the server has removed a worker."""
        ids = {id for id, of in self.world.proxy.workers.items() if of == name}

        def gone() -> bool:
            return not ids & {worker["id"] for worker in self.world.ask("GET", f"workers?type={TYPE}")["workers"]}

        self.world.until(gone, f"the server removes {name}")

    def do_job(self, name: str, many: int = 0, within: float | None = None, **wanted: Any) -> None:
        """What the server's records say of a job, as soon as its state is the one that is stated; and where its script has run."""
        if many:
            for n in range(many):
                self.do_job(f"{name}{n}", within=within, **wanted)
            return
        world = self.world
        state = wanted.pop("state")

        def in_state() -> Any:
            job = world.job(self.ids[name])
            return job if job is not None and job["state"] == state else None

        try:
            job = world.until(in_state, f"{name} is {state}", within)
        except Failed as failed:
            raise Failed(f"{failed}; its record is {str(world.job(self.ids[name]))[:1500]}") from None
        for member, value in wanted.items():
            equal(self._of_job(name, job, member), value, f"`{member}` of {name}")

    def _of_job(self, name: str, job: dict[str, Any], member: str) -> Any:
        if member == "result":
            return self.world.result(job)
        if member == "chars":
            return len(self.world.result(job))
        if member == "runs":
            # The workers that have run it, in their order.
            return [event["by"] for event in self._events("start", name)]
        if member == "stops":
            return len(self._events("stop", name))
        if member == "steps":
            return [event["step"] for event in self._events("step", name)]
        if member == "started":
            return Counter(event["type"] for event in job["history"])["started"]
        if member == "error_class":
            return (job.get("errors") or [{}])[0].get("class")
        return job.get(member)

    def do_jobs(self, count: int) -> None:
        """How many jobs there are."""
        equal(len(self.world.jobs()), count, "the number of jobs")

    def do_left(self, job: str, least: float, most: float) -> None:
        """How many seconds a script had until its timeout when it started."""
        for event in self._events("start", job):
            if not least <= event["left"] <= most:
                raise Failed(f"{job} had {event['left']} s left")

    def do_last(self, job: str, reports: list[Any]) -> None:
        """The last reports that the runs of a job have found; `none` is none."""
        equal([event.get("last", "none") or "none" for event in self._events("start", job)], reports, f"the last reports of {job}")

    def do_logs(self, job: str, lines: list[str]) -> None:
        """The lines that the server keeps of a job."""
        found = self.world.ask("GET", f"jobs/{TYPE}/{self.ids[job]}/logs?limit=1000")["lines"]
        equal([line["message"] for line in found], lines, f"the log of {job}")

    # What holds always.

    def invariants(self) -> None:
        """Each job has ended at most once. Once the server has recorded an end, no other end of the same run is sent. No token is shown."""
        if self.world.server.poll() is not None:
            self.world.start_server()
        for job in self.world.jobs():
            ends = [event["type"] for event in job["history"] if event["type"] in FINAL]
            equal(len(ends), int(job["state"] in FINAL), f"the number of ends of {job['id']}")
        recorded: dict[tuple[str, int], tuple[str, Any]] = {}
        for seen in self.world.proxy.seen:
            states = {one["claim"] for one in (seen.answer or {}).get("ended", []) if "state" in one} if seen.ends else set()
            for kind, entry in seen.ends:
                run = (seen.parts[2], entry["claim"])
                end = (kind, entry)
                if run in recorded:
                    equal(end, recorded[run], f"the end of claim {run[1]}, which was recorded and is sent again,")
                if entry["claim"] in states:
                    recorded[run] = end
        secrets = [token["token"] for token in self.world.tokens.values()]
        for process in self.world.processes.values():
            text = process.errors.read_text()
            if any(secret in text for secret in secrets):
                raise Failed(f"{process.name} shows a token")


def folder_name(title: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in title.lower())


def read(files: list[pathlib.Path]) -> list[dict[str, Any]]:
    """The scenarios of these files."""
    import tomllib

    scenarios: list[dict[str, Any]] = []
    for file in files:
        for told in tomllib.loads(file.read_text())["scenario"]:
            scenarios.append({"file": file.stem, **told})
    titles = [told["title"] for told in scenarios]
    if len(set(titles)) != len(titles):
        raise ValueError("two scenarios have one title")
    return scenarios
