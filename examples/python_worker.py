#!/usr/bin/env python3
"""A turnwise worker that needs only Python's standard library.

    python3 examples/python_worker.py --server http://127.0.0.1:7984 --type sums --slots 4

A server with identities needs a token with the scope `worker:sums`, in the environment variable TURNWISE_TOKEN.

Replace the functions below `@task` with your own. Each runs the jobs of one task, and all share the worker's slots. The rest
implements the protocol (`/v1/openapi.json`):

- The worker registers, and gets a new id each time. It never continues under an old id.
- It sends pings. The server removes a worker without a ping for the health timeout, and other workers get its jobs.
- It requests jobs, and states the last claim that it has received. So the server sends a lost response again.
- It repeats the end of a run until the server has acknowledged it. Ending a run is idempotent. Runs that end while a
  request is on its way share the next request.
- If the server answers `halt` (409), the claim is lost, and the worker drops the job. If the server answers 410, it has
  removed the worker. The worker then drops all its jobs and registers again.

- If an operator drains the worker, the server's answers say so. The worker then ends after its last job.

The worker survives restarts of the server, failures of the network, and gateways that cut requests while they wait for
jobs: it then asks for shorter waits. On Ctrl-C or SIGTERM it gives its jobs back, and ends with exit code 0, as after
draining. It ends with 1 if the server refuses a request for good, or if a part of the worker fails.
"""

import argparse
import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request

ACCEPT_WAIT_MS = 20_000
ANSWER_TIMEOUT_S = 10
LONGEST_PAUSE_S = 5.0
# A request that fails in less time was not held by a gateway.
HELD_S = 0.2
# The server takes 12 MB in one request. Results have up to 1 MB.
ENDS_PER_REQUEST = 100
BYTES_PER_REQUEST = 4_000_000
# Lines of log are sent no more often than this.
LOG_INTERVAL_S = 1.0
LINES_PER_REQUEST = 500

TASKS = {}


def task(name, slots=None):
    """Makes a function run the jobs of a task: at most `slots` at the same time, or as many as the worker has slots. The
    name `None` stands for jobs of all other tasks, or of none: the worker then gets all jobs of its type."""

    def add(function):
        TASKS[name] = (function, slots)
        return function

    return add


@task("sum")
def sum_numbers(job):
    """A function gets the job, and returns its result: anything that JSON can express, up to 1 MB.

    An exception is a crash: the server retries the job after a backoff, until it has no attempts left, and shows the
    trace. Raise `Failed` for an error that will not pass, and `Snooze` if it is too early. Check `job.stop` regularly:
    if it is set, end the run."""
    numbers = job.options.get("numbers", [])
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise Failed("`numbers` must be a list of numbers")
    total = 0
    for done, number in enumerate(numbers, start=1):
        if job.stop.wait(job.options.get("seconds_per_number", 0)):
            return None
        total += number
        job.report({"done": done, "of": len(numbers)})
    job.log("added all numbers", count=len(numbers))
    return {"sum": total}


@task("table", slots=2)
def make_table(job):
    """A larger result: the squares of the first numbers."""
    count = job.options.get("rows", 1000)
    if count < 0:
        raise ValueError(f"no table has {count} rows")
    return [{"n": n, "square": n * n} for n in range(count)]


class Failed(Exception):
    """An error that will not pass: the job is not retried."""


class Snooze(Exception):
    """It is too early: the job runs again after this many seconds. That is no attempt."""

    def __init__(self, seconds):
        super().__init__(f"again in {seconds} s")
        self.seconds = seconds


class Halt(Exception):
    """The worker has lost its claim on the job."""


class Expired(Exception):
    """The server has removed this worker."""


class Refused(Exception):
    """The request is wrong: repeating it would not help."""


class Server:
    """The server's API. A request without a response, or with a temporary error, is repeated."""

    def __init__(self, url, stop):
        self.url = url.rstrip("/")
        self.stop = stop
        # Set when the program ends because of an error.
        self.failed = False
        # The longest wait for jobs that the gateways in between have not cut.
        self.wait_ms = ACCEPT_WAIT_MS
        self.headers = {"Content-Type": "application/json"}
        token = os.environ.get("TURNWISE_TOKEN")
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def fail(self, reason):
        """Ends the program."""
        log(reason)
        self.failed = True
        self.stop.set()

    def call(self, path, body, gone=None, waits=False):
        """Repeats a POST until it has a response. Returns `None` once `gone` (or the program's stop) is set."""
        gone = gone or self.stop
        pause_s = 0.1
        while not gone.is_set():
            wait_s = 0
            if waits:
                body = {**body, "wait_ms": self.wait_ms}
                wait_s = self.wait_ms / 1000
            asked = time.monotonic()
            try:
                return self.once(path, body, wait_s + ANSWER_TIMEOUT_S)
            except (OSError, ValueError) as error:
                log(f"no answer from {self.url}, asking again: {error}")
            took_s = time.monotonic() - asked
            if HELD_S <= took_s < wait_s:
                # A gateway has cut the request. The next one is over before that, and needs no pause.
                self.wait_ms = int(took_s * 500)
                continue
            gone.wait(pause_s * random.uniform(0.5, 1))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        return None

    def once(self, path, body, timeout_s=ANSWER_TIMEOUT_S):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers)
        try:
            try:
                with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as refusal:
                with refusal:
                    code, text = refusal.code, refusal.read().decode(errors="replace")
        except http.client.HTTPException as error:
            # The answer is cut, or is no HTTP. This is neither an OSError nor a ValueError.
            raise OSError(f"{type(error).__name__}: {error}") from None
        if code == 409 and '"halt"' in text:
            raise Halt(text)
        if code == 410:
            raise Expired(text)
        # Also 409 `superseded`: a later request of this worker has replaced this one. 408 and 5xx may be a gateway's.
        if code in (408, 409, 425, 429) or code >= 500:
            raise OSError(f"{code} {text}")
        raise Refused(f"the server refused {path}: {code} {text}")


class Job:
    """One run of one job."""

    def __init__(self, worker, given):
        self.worker = worker
        self.id = given["id"]
        self.claim = given["claim"]
        self.task = given.get("task")
        self.attempt = given["attempt"]
        self.options = given["options"] or {}
        self.inputs = given.get("inputs", {})  # the results of jobs before it, by name
        # Send it as the header `traceparent` of your requests, so that their traces continue the job's.
        self.traceparent = given.get("traceparent")
        # Set when the run must end: the job is cancelled, or the claim is lost.
        self.stop = threading.Event()
        self.lost = threading.Event()
        self.lines = []
        self.sent = time.monotonic()

    def report(self, info):
        """Reports progress. A lost report does no harm: the next one replaces it."""
        self.update({"info": info})

    def log(self, message, level="info", **fields):
        """Adds a line to the job's log, which its page shows. The server keeps the last 1,000 lines."""
        line = {"at_us": time.time_ns() // 1000, "level": level, "message": str(message)}
        self.lines.append({**line, "fields": fields} if fields else line)
        del self.lines[:-LINES_PER_REQUEST]
        if time.monotonic() - self.sent > LOG_INTERVAL_S:
            self.update({})

    def update(self, body):
        lines, self.lines, self.sent = self.lines, [], time.monotonic()
        try:
            body = {"claim": self.claim, "log": lines, **body}
            answer = self.worker.server.once(self.path("update"), body)
            if answer.get("answer") == "cancel":
                self.stop.set()
        except (Halt, Expired):
            self.forget()
        except Refused as refusal:
            log(refusal)
        except (OSError, ValueError):
            self.lines = lines + self.lines  # The next report, or the end, takes them.

    def forget(self):
        self.lost.set()
        self.stop.set()

    def path(self, what):
        return f"{self.worker.path}/jobs/{urllib.parse.quote(self.id, safe='')}/{what}"

    def run(self):
        try:
            function, _ = TASKS.get(self.task) or TASKS[None]
            result = function(self)
            json.dumps(result, allow_nan=False)  # One that is no JSON is this run's error, and not the worker's.
            end, body = ("release", {}) if self.stop.is_set() else ("finish", {"result": result})
        except Failed as reason:
            end, body = "fail", {"reason": str(reason), "retry": False}
        except Snooze as snooze:
            end, body = "snooze", {"for_ms": int(snooze.seconds * 1000)}
        except Exception as error:  # An error ends the run, and not the worker.
            trace = traceback.format_exc()[-60_000:]
            end, body = "fail", {"class": type(error).__name__, "reason": str(error)[:10_000], "trace": trace}
        entry = {"id": self.id, "claim": self.claim, "log": self.lines, **body}
        self.worker.end(self, end, entry)


class Worker:
    """A worker under one id: from its registration until it leaves, or the server has removed it."""

    def __init__(self, server, job_type, slots):
        self.server = server
        self.slots = slots
        self.jobs = {}
        # The ends that no request has taken: each is a job, the list that it belongs to, and its entry there.
        self.ends = []
        self.changed = threading.Condition()
        self.expired = threading.Event()
        # Set when an operator drains this worker.
        self.drained = threading.Event()
        # Set when no end is sent any more.
        self.gone = threading.Event()
        base = f"/v1/workers/{urllib.parse.quote(job_type, safe='')}"
        body = {"name": "python", "slots": slots}
        if None not in TASKS:
            body["tasks"] = list(TASKS)
            body["task_slots"] = {name: most for name, (_, most) in TASKS.items() if most}
        self.registered = server.call(base, body)
        if self.registered:
            self.path = f"{base}/{urllib.parse.quote(self.registered['worker'], safe='')}"
            log(f"registered as {self.registered['worker']}")

    def work(self):
        """Works until the program stops or the worker has expired."""
        parts = (self.ping, self.accept, self.send_ends)
        parts = [threading.Thread(target=self.guarded, args=(part,), daemon=True) for part in parts]
        for part in parts:
            part.start()
        accepting = parts[1]
        while not self.server.stop.wait(0.2) and not self.expired.is_set():
            if self.drained.is_set() and not accepting.is_alive() and not self.jobs:
                log("drained")
                self.server.stop.set()
        if self.expired.is_set():
            log("removed by the server: registering again")
            self.each(Job.forget)
        else:
            self.leave()
        self.wait_until_still()
        self.gone.set()

    def guarded(self, part):
        """Without one of its parts, the worker would keep its jobs, and do nothing: an error ends the program."""
        try:
            part()
        except Exception:
            self.server.fail(traceback.format_exc())

    def accept(self):
        """Requests as many jobs as there are free slots, one request at a time."""
        received = 0
        while not self.over() and not self.drained.is_set():
            with self.changed:
                free = self.slots - len(self.jobs)
                if free == 0:
                    self.changed.wait(1)
                    continue
            try:
                answer = self.server.call(f"{self.path}/accept", {"received": received, "limit": free}, waits=True)
            except Expired:
                self.expired.set()
                return
            except Refused as refusal:
                self.server.fail(refusal)
                return
            self.follow(answer)
            for given in answer["jobs"] if answer else []:
                received = max(received, given["claim"])
                job = Job(self, given)
                with self.changed:
                    if self.over():
                        return  # `leave` gives them back.
                    self.jobs[job.claim] = job
                threading.Thread(target=job.run, daemon=True).start()

    def follow(self, answer):
        """Follows the mode in an answer. A quiet worker asks for jobs, and gets none."""
        if answer and answer.get("mode") == "drain":
            self.drained.set()

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
            except Refused as refusal:
                self.server.fail(refusal)
                return
            self.follow(answer)
            cancelled = set(answer["cancel"] if answer else [])
            self.each(lambda job: job.stop.set() if job.claim in cancelled else None)

    def each(self, what):
        with self.changed:
            jobs = list(self.jobs.values())
        for job in jobs:
            what(job)

    def end(self, job, end, entry):
        """Hands the end of a run over to the thread that sends it."""
        with self.changed:
            if job.lost.is_set():
                self.jobs.pop(job.claim, None)
            else:
                self.ends.append((job, end, entry))
            self.changed.notify_all()

    def send_ends(self):
        """Sends all ends that there are, in one request at a time."""
        while not self.gone.is_set():
            with self.changed:
                count = self.fitting()
                batch, self.ends = self.ends[:count], self.ends[count:]
                if not batch:
                    self.changed.wait(1)
                    continue
            if not self.send(batch):
                # One of them is at fault: each gets a request of its own.
                for one in batch:
                    self.send([one])

    def fitting(self):
        """How many of the ends fit into one request."""
        bytes_left = BYTES_PER_REQUEST
        for count, (_, _, entry) in enumerate(self.ends[:ENDS_PER_REQUEST]):
            bytes_left -= len(json.dumps(entry))
            if bytes_left < 0:
                return max(count, 1)
        return min(len(self.ends), ENDS_PER_REQUEST)

    def send(self, batch):
        """Sends ends until they have an answer. Returns `False` if the server has refused them together."""
        body = {}
        for _, end, entry in batch:
            body.setdefault(end, []).append(entry)
        try:
            answer = self.server.call(f"{self.path}/end", body, gone=self.gone)
            results = {ended["claim"]: ended for ended in answer["ended"]} if answer else {}
        except Expired:
            self.expired.set()
            results = {}
        except Refused as refusal:
            log(refusal)
            if len(batch) > 1:
                return False
            job, end, _ = batch[0]
            if end == "finish":
                # Its result is too large, for example.
                reason = f"its result was refused: {str(refusal)[:500]}"
                failed = {"id": job.id, "claim": job.claim, "reason": reason, "retry": False}
                return self.send([(job, "fail", failed)])
            results = {}
        for job, end, _ in batch:
            result = results.get(job.claim, {})
            if "state" in result:
                log(f"{end} {job.id}")
            elif "error" in result:
                log(f"lost {job.id}: {result['error']}")
        with self.changed:
            for job, _, _ in batch:
                self.jobs.pop(job.claim, None)
            self.changed.notify_all()
        return True

    def wait_until_still(self, patience_s=ANSWER_TIMEOUT_S):
        deadline = time.monotonic() + patience_s
        with self.changed:
            while self.jobs and time.monotonic() < deadline:
                self.changed.wait(1)

    def leave(self):
        """Gives every job back and leaves, so that other workers get the jobs before the health timeout."""
        self.each(lambda job: job.stop.set())
        self.wait_until_still()
        try:
            self.server.once(f"{self.path}/leave", {})
            log("left")
        except (Halt, Expired, Refused, OSError, ValueError) as error:
            log(f"could not leave; the server removes this worker after the health timeout: {error}")
        self.each(Job.forget)


def log(text):
    sys.stderr.write(f"python_worker: {text}\n")  # One write: `print` would mix the lines of threads.


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
        try:
            worker = Worker(server, given.type, given.slots)
        except Refused as refusal:
            sys.exit(f"python_worker: {refusal}")
        if worker.registered:
            worker.work()
    sys.exit(1 if server.failed else 0)


if __name__ == "__main__":
    main()
