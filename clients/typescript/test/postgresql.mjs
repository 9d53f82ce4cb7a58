// A PostgreSQL of its own, for tests.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { chmodSync, chownSync, existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { freePort, until } from "./server.mjs";

const INSTALLED = "/usr/lib/postgresql";

/** Starts a server, or returns nothing if it is not installed. */
export async function startPostgresql() {
  const versions = existsSync(INSTALLED) ? readdirSync(INSTALLED).sort((a, b) => a - b) : [];
  if (versions.length === 0) {
    assert.ok(!process.env.CI, "PostgreSQL is not installed");
    return undefined;
  }
  const programs = join(INSTALLED, versions.at(-1), "bin");
  const folder = mkdtempSync(join(tmpdir(), "turnwise-postgresql-"));
  // It refuses to run as root.
  const user = {};
  if (process.getuid() === 0) {
    const id = (flag) => Number(execFileSync("id", [flag, "postgres"]));
    Object.assign(user, { uid: id("-u"), gid: id("-g") });
    chownSync(folder, user.uid, user.gid);
    chmodSync(folder, 0o755);
  }
  const data = join(folder, "data");
  const options = { cwd: "/", stdio: "ignore", ...user };
  execFileSync(join(programs, "initdb"), ["--auth=trust", "--username=turnwise", "--no-sync", "-D", data], options);
  const port = await freePort();
  const settings = [`--port=${port}`, "--listen-addresses=127.0.0.1", `--unix-socket-directories=${folder}`, "--fsync=off"];
  const server = spawn(join(programs, "postgres"), ["-D", data, ...settings], options);
  process.once("exit", () => server.kill("SIGKILL"));
  const ended = new Promise((resolve) => server.once("exit", resolve));
  const url = `postgresql://turnwise@127.0.0.1:${port}/postgres`;
  await until(async () => {
    const client = new pg.Client(url);
    client.on("error", () => {});
    return client.connect().then(
      () => client.end().then(() => true),
      () => false,
    );
  }, 60);
  return {
    url,
    async stop() {
      // It does not wait for its clients.
      server.kill("SIGINT");
      await ended;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}
