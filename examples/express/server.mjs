import express from "express";
import { JobFailed, TurnwiseError } from "turnwise-client";
import { app as jobs, report } from "./jobs.mjs";

const site = express();
site.use(express.json());

// The id of a job is not to be guessed: who knows it may read the report. A site with users stores it with its user instead.
const of = (request) => jobs.client.handle(jobs.type, request.params.id);

site.post("/reports", async (request, response) => {
  const { id } = await report.add({ orders: request.body.orders });
  response.status(202).location(`/reports/${id}`).json({ id });
});

site.get("/reports/:id", async (request, response) => {
  const job = await of(request).status();
  response.json({ state: job.state, progress: job.info, result: job.result, reason: job.reason });
});

site.get("/reports/:id/result", async (request, response) => {
  response.json(await of(request).result({ timeout: 20 }));
});

site.delete("/reports/:id", async (request, response) => {
  response.json({ state: await of(request).cancel() });
});

site.use((error, _request, response, next) => {
  if (error instanceof JobFailed) response.status(409).json({ reason: error.message });
  else if (error instanceof TurnwiseError) response.status(error.status || 503).json({ reason: error.reason });
  else next(error);
});

const listener = site.listen(process.env.PORT ?? 3000, "127.0.0.1", () => console.log(`http://127.0.0.1:${listener.address().port}`));
