// Runs test/runtime.mjs on every runtime, and the tests of the outbox on one that has SQLite. The runtimes come from the registry of npm.
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

const folder = resolve(process.env.CARGO_TARGET_DIR ?? "../../target", "clients/runtimes");
const node = (version) => [`npm:node-${process.platform}-${process.arch}@${version}`, join(folder, `node_modules/node${version}/bin/node`)];
const bin = (name) => join(folder, "node_modules/.bin", name);
const RUNTIMES = {
  node20: node(20),
  node22: node(22),
  node24: node(24),
  bun: ["1", bin("bun")],
  deno: ["2", bin("deno"), "run", "--allow-all"],
};

const run = (program, ...args) => execFileSync(program, args, { stdio: "inherit" });
const dependencies = Object.fromEntries(Object.entries(RUNTIMES).map(([name, [version]]) => [name, version]));
mkdirSync(folder, { recursive: true });
writeFileSync(join(folder, "package.json"), JSON.stringify({ private: true, dependencies }));
run("npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error", "--prefer-offline");
for (const [name, [, ...command]] of Object.entries(RUNTIMES)) {
  console.log(`\n${name}: ${execFileSync(command[0], ["--version"], { encoding: "utf8" }).split("\n")[0]}`);
  run(...command, "test/runtime.mjs");
}
run(RUNTIMES.node24[1], "--test", "--test-name-pattern=SQLite", "test/outbox.test.mjs");
