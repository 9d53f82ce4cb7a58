// A PostgreSQL and a MariaDB, for tests.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { chmodSync, chownSync, existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import mysql from "mysql2/promise";
import pg from "pg";
import { freePort, until } from "./server.mjs";

/** A folder for a database, and the options of its processes. None of them runs as root. */
function place(name, user) {
  const folder = mkdtempSync(join(tmpdir(), `turnwise-${name}-`));
  const options = { cwd: "/", stdio: "ignore" };
  if (process.getuid() === 0) {
    const id = (flag) => Number(execFileSync("id", [flag, user]));
    Object.assign(options, { uid: id("-u"), gid: id("-g") });
    chownSync(folder, options.uid, options.gid);
    chmodSync(folder, 0o755);
  }
  return { folder, options };
}

async function started(server, url, folder, connect) {
  process.once("exit", () => server.kill("SIGKILL"));
  const ended = new Promise((resolve) => server.once("exit", resolve));
  const answers = async () => {
    const connection = await connect();
    await connection.end();
    return true;
  };
  await until(() => answers().catch(() => false), 60);
  return {
    url,
    async stop() {
      server.kill("SIGKILL");
      await ended;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Starts a PostgreSQL, or returns nothing if it is not installed. */
export async function startPostgresql() {
  const installed = "/usr/lib/postgresql";
  const versions = existsSync(installed) ? readdirSync(installed).sort((a, b) => a - b) : [];
  if (versions.length === 0) {
    assert.ok(!process.env.CI, "PostgreSQL is not installed");
    return undefined;
  }
  const programs = join(installed, versions.at(-1), "bin");
  const { folder, options } = place("postgresql", "postgres");
  const data = join(folder, "data");
  execFileSync(join(programs, "initdb"), ["--auth=trust", "--username=turnwise", "--no-sync", "-D", data], options);
  const port = await freePort();
  const settings = [`--port=${port}`, "--listen-addresses=127.0.0.1", `--unix-socket-directories=${folder}`, "--fsync=off"];
  const server = spawn(join(programs, "postgres"), ["-D", data, ...settings], options);
  const url = `postgresql://turnwise@127.0.0.1:${port}/postgres`;
  return started(server, url, folder, async () => {
    const client = new pg.Client(url);
    client.on("error", () => {});
    await client.connect();
    return client;
  });
}

/** Starts a MariaDB, or returns nothing if it is not installed. */
export async function startMariadb() {
  const program = "/usr/sbin/mariadbd";
  if (!existsSync(program)) {
    assert.ok(!process.env.CI, "MariaDB is not installed");
    return undefined;
  }
  const { folder, options } = place("mariadb", "mysql");
  const folders = [`--datadir=${join(folder, "data")}`, `--tmpdir=${folder}`];
  execFileSync("mariadb-install-db", ["--no-defaults", "--auth-root-authentication-method=normal", ...folders], options);
  const port = await freePort();
  const files = [`--socket=${join(folder, "socket")}`, `--pid-file=${join(folder, "pid")}`];
  const settings = ["--bind-address=127.0.0.1", `--port=${port}`, "--innodb-flush-log-at-trx-commit=0"];
  const server = spawn(program, ["--no-defaults", ...folders, ...files, ...settings], options);
  const url = `mysql://root@127.0.0.1:${port}/test`;
  return started(server, url, folder, () => mysql.createConnection(url));
}
