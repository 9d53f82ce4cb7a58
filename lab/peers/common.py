"""What the peers' programs in Python share: `common.mjs` describes their arguments and output. The worker is a process of its own, so that
adding jobs and running them use two processors, as they would in production."""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

parser = argparse.ArgumentParser()
for name in ("port", "jobs", "submitters", "batch"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--work", action="store_true", help="be the worker: begin at the first line of standard input")
options = parser.parse_args()


class Worker:
    """The process that runs the jobs. It is loaded before it starts, and ends with its input."""

    def __init__(self) -> None:
        command = [sys.executable, *sys.argv, "--work"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None and self.process.stdout is not None
        assert self.process.stdout.readline() == b"loaded\n"

    def start(self) -> None:
        self.process.stdin.write(b"start\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def wait_for_start() -> None:
    """In the worker's process: tells that all is loaded, and waits."""
    print("loaded", flush=True)
    sys.stdin.readline()


def phase(name: str, run: Callable[[], None]) -> None:
    print(f"begin {name}", flush=True)
    start = time.monotonic()
    run()
    print(f"end {name} {options.jobs} {time.monotonic() - start}", flush=True)


def throughput(add: Callable[[int, int], None], ended: Callable[[], int]) -> None:
    """A tenth as many jobs to warm up; then adds all, then processes all; then both at once. `add(from, to)` adds jobs with these numbers;
    `ended()` returns how many jobs have ended, as the server has recorded it."""
    total = 0

    def until_ended() -> None:
        while ended() < total:
            time.sleep(0.01)

    def adding(jobs: int) -> None:
        nonlocal total
        add(total, total + jobs)
        total += jobs

    worker = Worker()
    worker.start()
    adding(options.jobs // 10)
    until_ended()
    worker.stop()
    worker = Worker()
    phase("add", lambda: adding(options.jobs))

    def process() -> None:
        worker.start()
        until_ended()

    def both() -> None:
        adding(options.jobs)
        until_ended()

    phase("process", process)
    phase("both", both)
    worker.stop()
