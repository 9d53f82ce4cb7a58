// A backend without a framework: it serves the page, adds jobs, and passes the events of one job on to the page.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { TurnwiseError } from "turnwise-client";
import { app, convert } from "./jobs.mjs";

const routes = {
  async "GET /"(_request, response) {
    response.setHeader("content-type", "text/html; charset=utf-8");
    response.end(await readFile(new URL("page.html", import.meta.url)));
  },
  async "POST /videos"(_request, response) {
    const { id } = await convert.add({ minutes: 10 });
    response.end(JSON.stringify({ id }));
  },
  // The id of a job is not to be guessed: who knows it may follow it.
  async "GET /events"(request, response, id) {
    const gone = new AbortController();
    response.on("close", () => gone.abort());
    const job = app.client.handle(app.type, id);
    await job.status({ signal: gone.signal });
    response.setHeader("content-type", "text/event-stream");
    response.setHeader("cache-control", "no-store");
    for await (const update of job.events({ signal: gone.signal })) {
      const shown = { kind: update.kind, progress: update.info, result: update.job?.result, reason: update.job?.reason };
      response.write(`data: ${JSON.stringify(shown)}\n\n`);
    }
    response.end();
  },
};

const server = createServer(async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://localhost");
  try {
    const route = routes[`${request.method} ${pathname}`];
    if (route) await route(request, response, searchParams.get("id"));
    else response.writeHead(404).end();
  } catch (error) {
    if (response.destroyed) return;
    if (!response.headersSent) response.statusCode = error instanceof TurnwiseError ? error.status || 503 : 500;
    response.end();
  }
});
server.listen(process.env.PORT ?? 3000, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
