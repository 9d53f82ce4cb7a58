// PouchDB's own replicator between databases over HTTP, to be measured beside turnwise:
//     node replicate.mjs SOURCE_URL TARGET_URL [SOURCE_URL TARGET_URL]...
// Copies up to 20 at once. Prints one line of JSON: PouchDB's summary of the last one, and how many seconds all took without Node's start.
// Exit code 1 when one did not complete.
import PouchDB from 'pouchdb';

const urls = process.argv.slice(2);
const start = performance.now();
let result = {};

async function copyNext() {
  while (urls.length >= 2) {
    const [source, target] = urls.splice(0, 2);
    result = await PouchDB.replicate(source, target, { batch_size: 500, batches_limit: 10 });
    if (!result.ok) throw new Error(`${source}: ${JSON.stringify(result)}`);
  }
}

try {
  await Promise.all(Array.from({ length: 20 }, copyNext));
  const seconds = (performance.now() - start) / 1000;
  console.log(JSON.stringify({ ...result, seconds }));
  process.exit(0);
} catch (error) {
  console.error(error);
  process.exit(1);
}
