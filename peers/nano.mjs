// nano, as it comes from npm, steers turnwise as it steers a CouchDB: `_replicate`, `_replicator`, `_scheduler`,
// `_active_tasks`. Run by a test of turnwise (crates/cli/tests/end_to_end/clients.rs).
import assert from 'node:assert/strict';
import Nano from 'nano';
import { login, run, source, target, turnwise, until } from './drive.mjs';

const nano = Nano(turnwise);
if (login) assert.equal((await nano.auth(...login)).ok, true);
const replicator = nano.use('_replicator');
const statistics = ['revisions_checked', 'missing_revisions_found', 'docs_read', 'docs_written', 'doc_write_failures',
  'changes_pending', 'checkpointed_source_seq', 'source_seq', 'through_seq'];

/** A failed request of nano's: its HTTP status and CouchDB's word for it. */
const failed = (status, error) => (caught) => caught.statusCode === status && caught.error === error;
const holds = (object, members) => {
  for (const member of members) assert.ok(member in object, `${member} is missing: ${JSON.stringify(object)}`);
};
const schedulerDoc = (id) => nano.request({ path: `_scheduler/docs/_replicator/${id}` });

await run({
  async 'the server says what it is'() {
    const info = await nano.info();
    assert.equal(info.couchdb, 'Welcome');
    assert.deepEqual(await nano.db.list(), ['_replicator']);
    assert.equal((await nano.uuids(3)).uuids.length, 3);
    const { ok, userCtx } = await nano.session();
    assert.deepEqual([ok, userCtx.name], [true, process.env.TURNWISE_USER ?? null]);
    assert.equal((await replicator.info()).db_name, '_replicator');
  },

  async 'a one-shot request is answered when it is done'() {
    const report = await nano.db.replicate(source, target('once'), { create_target: true });
    holds(report, ['ok', 'session_id', 'source_last_seq', 'replication_id_version', 'history']);
    assert.equal(report.history[0].docs_written, 10);
    assert.equal((await Nano(target('')).use('once').info()).doc_count, 10);
    const again = await nano.db.replicate(source, target('once'), { create_target: true });
    assert.equal(again.no_changes, true);
  },

  async 'a request that cannot be is refused'() {
    await assert.rejects(nano.db.replicate(source, target('once'), { continuous: 'yes' }), failed(400, 'bad_request'));
    await assert.rejects(nano.db.replicate(`${source}-missing`, target('once')), failed(500, 'db_not_found'));
    await assert.rejects(nano.db.replicate(source, target('once'), { cancel: true }), failed(404, 'not_found'));
  },

  async 'a continuous request runs until it is cancelled'() {
    const options = { continuous: true, create_target: true };
    const { ok, _local_id: id } = await nano.db.replicate(source, target('followed'), { ...options });
    assert.ok(ok && id.endsWith('+continuous+create_target'));
    const copied = (tasks) => Array.isArray(tasks) && tasks.some((task) => task.docs_written === 10);
    const [task] = await until('a task', () => nano.request({ path: '_active_tasks' }), copied);
    holds(task, ['type', 'user', 'database', 'doc_id', 'source', 'target', 'checkpoint_interval', 'node', 'pid',
      'started_on', 'updated_on', ...statistics]);
    assert.deepEqual([task.type, task.replication_id, task.continuous], ['replication', id, true]);
    const { jobs, total_rows } = await nano.request({ path: '_scheduler/jobs', qs: { limit: 5 } });
    holds(jobs[0], ['database', 'id', 'pid', 'source', 'target', 'user', 'doc_id', 'info', 'history', 'node',
      'start_time']);
    assert.deepEqual([total_rows, jobs[0].id, jobs[0].history.at(-1).type], [1, id, 'added']);
    const job = await nano.request({ path: `_scheduler/jobs/${encodeURIComponent(id)}` });
    assert.equal(job.id, id);
    const cancelled = await nano.db.replicate(source, target('followed'), { ...options, cancel: true });
    assert.deepEqual(cancelled, { ok: true, _local_id: id });
    const none = (answer) => answer.total_rows === 0;
    await until('no job', () => nano.request({ path: '_scheduler/jobs' }), none);
  },

  async 'a cancellation may name the id alone'() {
    const { _local_id: id } = await nano.db.replicate(source, target('followed'), { continuous: true });
    const body = { replication_id: id, cancel: true };
    const cancelled = await nano.request({ path: '_replicate', method: 'POST', body });
    assert.equal(cancelled._local_id, id);
  },

  async 'a replication is enabled, queried and disabled'() {
    const enabled = await nano.db.replication.enable(source, target('enabled'),
      { _id: 'by-nano', create_target: true, continuous: true });
    assert.deepEqual([enabled.ok, enabled.id], [true, 'by-nano']);
    const running = await until('running', () => schedulerDoc('by-nano'), (doc) => doc.state === 'running');
    holds(running, ['database', 'doc_id', 'id', 'node', 'source', 'target', 'state', 'info', 'error_count',
      'last_updated', 'start_time', 'source_proxy', 'target_proxy']);
    const doc = await nano.db.replication.query('by-nano');
    assert.deepEqual([doc._rev, doc.continuous], [enabled.rev, true]);
    const disabled = await nano.db.replication.disable('by-nano', doc._rev);
    assert.equal(disabled.ok, true);
    await assert.rejects(nano.db.replication.query('by-nano'), failed(404, 'not_found'));
    await assert.rejects(schedulerDoc('by-nano'), failed(404, 'not_found'));
  },

  async 'a document completes, and the changes tell of it'() {
    const seen = new Promise((done) => {
      const reader = replicator.changesReader;
      reader.start({ since: 0, includeDocs: true, timeout: 5_000 }).on('change', ({ doc }) => {
        if (doc?._replication_state === 'completed') {
          reader.stop();
          done(doc);
        }
      });
    });
    const { id } = await nano.db.replication.enable(source, target('completes'), { create_target: true });
    const doc = await seen;
    assert.equal(doc._id, id);
    holds(doc, ['_replication_id', '_replication_state_time', '_replication_stats']);
    assert.equal(doc._replication_stats.docs_written, 10);
    const { docs } = await nano.request({ path: '_scheduler/docs', qs: { states: 'completed' } });
    assert.deepEqual(docs.map(({ doc_id }) => doc_id), [id]);
    assert.deepEqual([docs[0].id, docs[0].error_count], [null, 0]);
  },

  async 'documents are written, listed and removed in bulk'() {
    const body = { source, target: target('bulk'), _replication_state: 'completed' };
    const written = await replicator.bulk({ docs: ['x', 'y', 'z'].map((_id) => ({ _id, ...body })) });
    assert.ok(written.every(({ ok }) => ok));
    const { rows } = await replicator.list({ include_docs: true, start_key: 'x' });
    assert.deepEqual(rows.map(({ doc }) => doc.source), [source, source, source]);
    assert.equal((await replicator.fetch({ keys: ['y', 'nothing'] })).rows[1].error, 'not_found');
    assert.match((await replicator.head('x')).etag, /^"1-/);
    const gone = await replicator.bulk({ docs: rows.map(({ id, value }) => ({ _id: id, _rev: value.rev, _deleted: true })) });
    assert.ok(gone.every(({ ok }) => ok));
    await assert.rejects(replicator.insert({ ...body, continuous: 3 }, 'x'), failed(403, 'forbidden'));
    await assert.rejects(replicator.insert({ ...body, _rev: '1-a' }, (await nano.db.replication.enable(source, target('w'),
      { create_target: true })).id), failed(409, 'conflict'));
  },

  async 'databases with a prefix are made and go'() {
    await nano.db.create('team/_replicator');
    const team = nano.use('team/_replicator');
    await team.insert({ source, target: target('team'), create_target: true }, 'one');
    const path = '_scheduler/docs/team%2F_replicator/one';
    await until('completed', () => nano.request({ path }), (doc) => doc.state === 'completed');
    assert.deepEqual(await nano.db.list(), ['_replicator', 'team/_replicator']);
    await nano.db.destroy('team/_replicator');
    await assert.rejects(nano.db.get('team/_replicator'), failed(404, 'not_found'));
  },
});
