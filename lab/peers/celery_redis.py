"""Celery on the Redis server at --port of 127.0.0.1."""

from concurrent.futures import ThreadPoolExecutor

from celery import Celery
from common import options, throughput, wait_for_start
from redis import Redis

SLOTS = 64
app = Celery("bench", broker=f"redis://127.0.0.1:{options.port}/0")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_pool_limit=options.submitters,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(number: int) -> None: ...


def main() -> None:
    if options.work:
        wait_for_start()
        quiet = ["--without-mingle", "--without-gossip", "--without-heartbeat", "--loglevel", "ERROR"]
        app.worker_main(["worker", "--pool", "threads", "--concurrency", str(SLOTS), *quiet])
        return
    redis = Redis(port=options.port)
    added = 0

    def add(first: int, last: int) -> None:
        nonlocal added
        numbers = iter(range(first, last))

        def submit() -> None:
            for number in numbers:
                noop.delay(number)

        with ThreadPoolExecutor(options.submitters) as threads:
            for done in [threads.submit(submit) for _ in range(options.submitters)]:
                done.result()
        added = last

    # What waits, and what is claimed. A task leaves the second with its acknowledgement.
    def ended() -> int:
        waiting, claimed = redis.pipeline(transaction=True).llen("celery").hlen("unacked").execute()
        return added - waiting - claimed

    throughput(add, ended)


main()
