// Programs of an example, each a process of its own, for the tests.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

/** Starts a program in the folder of the test. Node's programs have started with their first line, which is their URL. */
export async function program(name, args, test) {
  const bin = fileURLToPath(new URL(`node_modules/.bin/${name}`, import.meta.url));
  const cwd = fileURLToPath(new URL(".", test));
  const child = spawn(name === "node" ? process.execPath : bin, args, { cwd, env: { ...process.env, PORT: "0" }, stdio: ["ignore", "pipe", "inherit"] });
  const kill = () => child.kill("SIGKILL");
  process.once("exit", kill);
  const ended = once(child, "exit");
  const stop = async () => {
    process.off("exit", kill);
    child.kill();
    await ended;
  };
  if (name !== "node") return { stop };
  const [line] = await Promise.race([
    once(createInterface({ input: child.stdout }), "line"),
    ended.then(() => Promise.reject(new Error(`${args[0]} has ended`))),
  ]);
  return { stop, url: line };
}
