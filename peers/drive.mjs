// What both drivers of turnwise need: its address and those of two databases from the command line, and patience.
//     node nano.mjs|pouchdb.mjs TURNWISE_URL SOURCE_DATABASE_URL TARGET_SERVER_URL
export const [turnwise, source, targets] = process.argv.slice(2);

/** The name and the password of a session, where the test gives them; basic authentication is in the URL. */
export const login = process.env.TURNWISE_LOGIN?.split(':');

/** The URL of a database of the target server. */
export const target = (name) => `${targets}/${name}`;

/** Asks until the answer is good, and returns it. The test that has started this has a limit of its own. */
export async function until(what, ask, good) {
  for (let answer; ; ) {
    answer = await ask().catch((error) => ({ error: error.message }));
    if (good(answer)) return answer;
    if (performance.now() > 120_000) throw new Error(`${what}: ${JSON.stringify(answer)}`);
    await new Promise((again) => setTimeout(again, 20));
  }
}

/** Runs the steps in their order, and says which one failed. */
export async function run(steps) {
  for (const [name, step] of Object.entries(steps)) {
    try {
      await step();
      console.log(`ok ${name}`);
    } catch (error) {
      console.error(`${name}: ${error.stack}`);
      process.exit(1);
    }
  }
  process.exit(0);
}
