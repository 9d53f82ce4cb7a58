// Checks what the package contains: the built files, and nothing else.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";

const [{ files }] = JSON.parse(execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], { encoding: "utf8" }));
const found = files.map(({ path }) => path).sort();
const modules = readdirSync("src").map((name) => name.replace(/\.ts$/, ""));
const built = modules.flatMap((name) => [`dist/${name}.d.ts`, `dist/${name}.js`]);
assert.deepEqual(found, [...built, "LICENSE-APACHE", "LICENSE-MIT", "README.md", "package.json"].sort());
const { dependencies, peerDependencies } = JSON.parse(readFileSync("package.json", "utf8"));
assert.equal(dependencies ?? peerDependencies, undefined, "there are no run-time dependencies");
assert.match(readFileSync("dist/cli.js", "utf8"), /^#!\/usr\/bin\/env node\n/);
// The entry without the worker imports no module of Node.
const seen = new Set();
const follow = (name) => {
  if (seen.has(name)) return;
  seen.add(name);
  for (const [, from] of readFileSync(`dist/${name}`, "utf8").matchAll(/(?:from|import)\s*\(?"([^"]+)"/g)) {
    assert.match(from, /^\.\//, `${name} imports ${from}`);
    follow(from.slice(2));
  }
};
follow("index.js");
assert.ok(!seen.has("worker.js") && !seen.has("session.js") && !seen.has("run.js"));
console.log(`${found.length} files; the entry has ${seen.size} modules`);
