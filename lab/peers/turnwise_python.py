"""The Python client and worker of turnwise, on the server at --port of 127.0.0.1."""

import asyncio

import httpx2
from common import options, throughput, wait_for_start
from turnwise_client import App, Worker

SLOTS = 64
url = f"http://127.0.0.1:{options.port}"
app = App("noop", url)


@app.task()
async def noop(number: int) -> None: ...


async def add(first: int, last: int) -> None:
    numbers = iter(range(first, last, options.batch))

    async def submit() -> None:
        for number in numbers:
            if options.batch == 1:
                await noop.add_async(number)
            else:
                await noop.add_many_async({"number": each} for each in range(number, min(number + options.batch, last)))

    await asyncio.gather(*(submit() for _ in range(options.submitters)))


def main() -> None:
    if options.work:
        worker = Worker(app, slots=SLOTS)
        wait_for_start()
        asyncio.run(worker.run())
        return
    loop = asyncio.new_event_loop()
    with httpx2.Client(base_url=url) as http:

        def ended() -> int:
            return sum(each["jobs"]["completed"] for each in http.get("/v1/counts?type=noop").json()["counts"])

        throughput(lambda first, last: loop.run_until_complete(add(first, last)), ended)


main()
