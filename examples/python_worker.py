#!/usr/bin/env python3
"""A turnwise worker in plain Python: the standard library and nothing else.

    python3 examples/python_worker.py --server http://127.0.0.1:7984 --type sums --slots 4

Write your own `handle` in place of the one below. The rest is the protocol (`/v1/openapi.json`), and small:

- A worker registers, and is a new one each time: it never goes on under an old id.
- It pings. Who does not ping for the health timeout is taken for dead, and its jobs are given to others.
- It asks for jobs, and says which claim it received last: an answer that was lost is given again.
- It repeats the end of a job until the server has acknowledged it: that changes nothing the second time.
- Told that a claim is lost (409), it forgets the job. Told that it is not a member any more (410), it forgets all
  of its jobs and registers anew. It never writes for a job that it does not own: the server would not take it.

It survives a server that restarts and a network that comes and goes. Ctrl-C or SIGTERM gives its jobs back.
"""

import argparse
import json
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ACCEPT_WAIT_MS = 20_000
ANSWER_TIMEOUT_S = 10
LONGEST_PAUSE_S = 5.0


def handle(job):
    """The work: returns what becomes the job's result. What it raises is a crash, tried again after a while;
    raise `Failed` for what will never work. Look at `job.stop` now and then: set, nobody wants the result."""
    numbers = job.options.get("numbers", [])
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise Failed("`numbers` must be a list of numbers")
    total = 0
    for done, number in enumerate(numbers, start=1):
        if job.stop.wait(job.options.get("seconds_per_number", 0)):
            return None
        total += number
        job.report({"done": done, "of": len(numbers)})
    return {"sum": total}


class Failed(Exception):
    """The job cannot work, however often it is tried."""


class Halt(Exception):
    """This job is not ours any more: forget it."""


class Expired(Exception):
    """This worker is not a member any more: forget all its jobs and register anew."""


class Server:
    """The server's API. A request that got no answer, or one that says `later`, is made again until it is answered."""

    def __init__(self, url, stop):
        self.url = url.rstrip("/")
        self.stop = stop

    def call(self, path, body, gone=None, timeout_s=ANSWER_TIMEOUT_S):
        """Posts until there is an answer; `None` once `gone` (or the program's stop) is set."""
        gone = gone or self.stop
        pause_s = 0.1
        while not gone.is_set():
            try:
                return self.once(path, body, timeout_s)
            except (OSError, ValueError) as error:
                log(f"no answer from {self.url}, asking again: {error}")
            gone.wait(pause_s * random.uniform(0.5, 1))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        return None

    def once(self, path, body, timeout_s=ANSWER_TIMEOUT_S):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            with refusal:
                text = refusal.read().decode(errors="replace")
            if refusal.code == 409 and '"halt"' in text:
                raise Halt(text) from None
            if refusal.code == 410:
                raise Expired(text) from None
            # Also 409 `superseded`: the server took an earlier, broken request of ours for a second one.
            if refusal.code in (409, 429, 500, 502, 503, 504):
                raise OSError(f"{refusal.code} {text}") from None
            raise SystemExit(f"the server refused {path}: {refusal.code} {text}") from None


class Job:
    """One run of one job."""

    def __init__(self, worker, given):
        self.worker = worker
        self.id = given["id"]
        self.claim = given["claim"]
        self.options = given["options"] or {}
        # Set when the result is not wanted any more: cancelled, or the claim is lost.
        self.stop = threading.Event()
        self.lost = threading.Event()

    def report(self, info):
        """Shows where the job stands. A report that gets lost does not matter: the next one tells more."""
        try:
            answer = self.worker.server.once(self.path("update"), {"claim": self.claim, "info": info})
            if answer["answer"] == "cancel":
                self.stop.set()
        except (Halt, Expired):
            self.forget()
        except (OSError, ValueError):
            pass

    def forget(self):
        self.lost.set()
        self.stop.set()

    def path(self, what):
        return f"{self.worker.path}/jobs/{urllib.parse.quote(self.id, safe='')}/{what}"

    def run(self):
        try:
            result = handle(self)
            end, body = ("release", {}) if self.stop.is_set() else ("finish", {"result": result})
        except Failed as reason:
            end, body = "fail", {"reason": str(reason), "retry": False}
        except Exception as error:  # Whatever it is, it is the job's and not the worker's end.
            end, body = "fail", {"reason": f"{type(error).__name__}: {error}"}
        try:
            # Until it is acknowledged, or until we do not own the job any more.
            if self.worker.server.call(self.path(end), {"claim": self.claim, **body}, gone=self.lost):
                log(f"{end} {self.id}")
        except Halt:
            log(f"lost {self.id}")
        except Expired:
            self.worker.expired.set()
        finally:
            self.worker.ended(self)


class Worker:
    """One incarnation: from its registration to the moment when it leaves, or is told that it is gone."""

    def __init__(self, server, job_type, slots):
        self.server = server
        self.slots = slots
        self.jobs = {}
        self.changed = threading.Condition()
        self.expired = threading.Event()
        base = f"/v1/workers/{urllib.parse.quote(job_type, safe='')}"
        self.registered = server.call(base, {"name": "python", "slots": slots})
        if self.registered:
            self.path = f"{base}/{urllib.parse.quote(self.registered['worker'], safe='')}"
            log(f"registered as {self.registered['worker']}")

    def work(self):
        """Works until the program stops or the worker has expired."""
        for part in (self.ping, self.accept):
            threading.Thread(target=part, daemon=True).start()
        while not self.server.stop.wait(0.2) and not self.expired.is_set():
            pass
        if self.expired.is_set():
            log("taken for dead by the server: starting over")
            self.each(Job.forget)
        else:
            self.leave()
        self.wait_until_still()

    def accept(self):
        """Asks for as many jobs as there is room for, one request at a time."""
        received = 0
        while not self.over():
            with self.changed:
                free = self.slots - len(self.jobs)
                if free == 0:
                    self.changed.wait(1)
                    continue
            body = {"received": received, "limit": free, "wait_ms": ACCEPT_WAIT_MS}
            try:
                timeout_s = ACCEPT_WAIT_MS / 1000 + ANSWER_TIMEOUT_S
                answer = self.server.call(f"{self.path}/accept", body, timeout_s=timeout_s)
            except Expired:
                self.expired.set()
                return
            for given in answer["jobs"] if answer else []:
                received = max(received, given["claim"])
                job = Job(self, given)
                with self.changed:
                    if self.over():
                        return  # They go back with all the others.
                    self.jobs[job.claim] = job
                threading.Thread(target=job.run, daemon=True).start()

    def over(self):
        return self.server.stop.is_set() or self.expired.is_set()

    def ping(self):
        pause_s = self.registered["ping_interval_ms"] / 1000
        while not self.expired.is_set() and not self.server.stop.wait(pause_s):
            try:
                answer = self.server.call(f"{self.path}/ping", {})
            except Expired:
                self.expired.set()
                return
            cancelled = set(answer["cancel"] if answer else [])
            self.each(lambda job: job.stop.set() if job.claim in cancelled else None)

    def each(self, what):
        with self.changed:
            jobs = list(self.jobs.values())
        for job in jobs:
            what(job)

    def ended(self, job):
        with self.changed:
            self.jobs.pop(job.claim, None)
            self.changed.notify_all()

    def wait_until_still(self, patience_s=ANSWER_TIMEOUT_S):
        deadline = time.monotonic() + patience_s
        with self.changed:
            while self.jobs and time.monotonic() < deadline:
                self.changed.wait(1)

    def leave(self):
        """Gives every job back, and says goodbye: nobody has to wait for the health timeout then."""
        self.each(lambda job: job.stop.set())
        self.wait_until_still()
        try:
            self.server.once(f"{self.path}/leave", {})
            log("left")
        except (Halt, Expired, OSError, ValueError) as error:
            log(f"could not say goodbye, the server will notice: {error}")
        self.each(Job.forget)


def log(text):
    sys.stderr.write(f"python_worker: {text}\n")  # In one piece: `print` would mix the lines of threads.


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--server", default="http://127.0.0.1:7984")
    arguments.add_argument("--type", default="sums")
    arguments.add_argument("--slots", type=int, default=4)
    given = arguments.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = Server(given.server, stop)
    while not stop.is_set():
        worker = Worker(server, given.type, given.slots)
        if worker.registered:
            worker.work()


if __name__ == "__main__":
    main()
