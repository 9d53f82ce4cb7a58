// PouchDB's own replicator between two databases over HTTP, to be measured beside turnwise:
//     node replicate.mjs SOURCE_URL TARGET_URL
// Prints one line of JSON: PouchDB's summary, and how many seconds it took without Node's start. Exit code 1 when it did not complete.
import PouchDB from 'pouchdb';

const [source, target] = process.argv.slice(2);
try {
  const start = performance.now();
  const result = await PouchDB.replicate(source, target, { batch_size: 500, batches_limit: 10 });
  const seconds = (performance.now() - start) / 1000;
  console.log(JSON.stringify({ ...result, seconds }));
  process.exit(result.ok ? 0 : 1);
} catch (error) {
  console.error(error);
  process.exit(1);
}
