// PouchDB, as it comes from npm, uses turnwise's replicator database as it uses a CouchDB's. Run by a test of turnwise
// (crates/cli/tests/end_to_end/clients.rs).
import assert from 'node:assert/strict';
import PouchDB from 'pouchdb';
import { login, run, source, target, turnwise, until } from './drive.mjs';

/** As a browser does: the cookie of a session goes with every request. */
async function withSession([name, password]) {
  const body = JSON.stringify({ name, password });
  const answer = await fetch(`${turnwise}/_session`, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
  const cookie = answer.headers.get('set-cookie').split(';')[0];
  return (url, options = {}) => {
    const headers = new Headers(options.headers);
    headers.set('cookie', cookie);
    return PouchDB.fetch(url, { ...options, headers });
  };
}

const page = process.env.TURNWISE_PAGE;
const isSimple = (name, value) => ['accept', 'accept-language', 'content-language'].includes(name)
  || (name === 'content-type' && /^(text\/plain|multipart\/form-data|application\/x-www-form-urlencoded)/.test(value));

/** As a browser does for a page of another origin: it asks first where a form could not send the request, and shows only what the server permits. */
function fromPage(fetchIt) {
  return async (url, options = {}) => {
    const method = (options.method ?? 'GET').toUpperCase();
    const headers = new Headers(options.headers);
    const show = (answer) => {
      const permitted = answer.headers.get('access-control-allow-origin') === page
        && (options.credentials !== 'include' || answer.headers.get('access-control-allow-credentials') === 'true');
      if (!permitted) throw new TypeError(`not permitted to ${page}: ${method} ${url}`);
      return answer;
    };
    const special = [...headers].filter(([name, value]) => !isSimple(name, value)).map(([name]) => name);
    if (special.length > 0 || !['GET', 'HEAD', 'POST'].includes(method)) {
      const asked = { origin: page, 'access-control-request-method': method, 'access-control-request-headers': special.join(',') };
      const answer = show(await fetch(url, { method: 'OPTIONS', headers: asked }));
      const list = (name) => answer.headers.get(`access-control-allow-${name}`).split(/, ?/);
      if (!answer.ok || !list('methods').includes(method) || !special.every((name) => list('headers').includes(name))) {
        throw new TypeError(`not permitted to ${page}: ${method} ${url} with ${special}`);
      }
      preflights += 1;
    }
    headers.set('origin', page);
    headers.set('sec-fetch-site', 'cross-site');
    return show(await fetchIt(url, { ...options, headers }));
  };
}

let preflights = 0;
const plain = login ? await withSession(login) : PouchDB.fetch;
const ask = page ? fromPage(plain) : plain;
const { origin, username, password } = new URL(turnwise);
const auth = username ? { username, password } : undefined;
const replicator = new PouchDB(`${origin}/_replicator`, { auth, fetch: ask });
const replication = (name, more) => ({ source, target: target(name), create_target: true, ...more });
const failed = (status, name) => (caught) => caught.status === status && caught.name === name;

await run({
  async 'the database says what it is'() {
    const info = await replicator.info();
    assert.deepEqual([info.db_name, info.doc_count], ['_replicator', 0]);
  },

  async 'a live feed tells of a document from its start to its end'() {
    const states = [];
    await new Promise((done, wrong) => {
      const feed = replicator.changes({ live: true, since: 'now', include_docs: true });
      feed.on('error', wrong).on('change', ({ id, doc }) => {
        states.push([id, doc._replication_state]);
        if (doc._replication_state) feed.cancel();
      }).on('complete', done);
      // The feed may begin after the document: then it occurs twice, or once at its end.
      replicator.put({ _id: 'live', ...replication('live') }).catch(wrong);
    });
    assert.deepEqual(states.at(-1), ['live', 'completed']);
    const doc = await replicator.get('live');
    assert.equal(doc._replication_stats.docs_written, 10);
    assert.equal((await new PouchDB(target('live')).info()).doc_count, 10);
  },

  async 'documents are posted, read, listed and changed'() {
    const { id, rev } = await replicator.post(replication('posted', { continuous: true }));
    const doc = await replicator.get(id, { revs: true, revs_info: true });
    assert.deepEqual([doc._rev, doc._revisions.start], [rev, 1]);
    const { rows } = await replicator.allDocs({ include_docs: true, keys: [id, 'live', 'nothing'] });
    assert.deepEqual(rows.map((row) => row.doc?.target ?? row.error), [target('posted'), target('live'), 'not_found']);
    assert.equal((await replicator.allDocs({ startkey: 'live', endkey: 'live\uffff' })).rows.length, 1);
    const changed = await replicator.put({ ...doc, _revisions: undefined, _revs_info: undefined, http_connections: 3 });
    assert.match(changed.rev, /^2-/);
    await assert.rejects(replicator.put({ ...replication('posted'), _id: id, _rev: rev }), failed(409, 'conflict'));
    const { results } = await replicator.bulkGet({ docs: [{ id }] });
    assert.equal(results[0].docs[0].ok.http_connections, 3);
    await replicator.remove(id, changed.rev);
    await assert.rejects(replicator.get(id), failed(404, 'not_found'));
    const headers = username ? { authorization: `Basic ${btoa(`${username}:${password}`)}` } : {};
    const jobs = () => ask(`${origin}/_scheduler/jobs`, { headers }).then((answer) => answer.json());
    await until('no job', jobs, ({ total_rows }) => total_rows === 0);
  },

  async 'a wrong document is refused with the name of its field'() {
    const wrong = replicator.put({ _id: 'wrong', ...replication('wrong'), doc_ids: 'one' });
    await assert.rejects(wrong, (caught) => caught.status === 403 && caught.reason.startsWith('doc_ids: '));
    await assert.rejects(replicator.get('wrong'), failed(404, 'not_found'));
  },

  async 'many documents are written and removed at once'() {
    const docs = ['a', 'b', 'c'].map((id) => ({ _id: `bulk-${id}`, ...replication(`bulk-${id}`) }));
    const written = await replicator.bulkDocs(docs);
    assert.ok(written.every(({ ok }) => ok), JSON.stringify(written));
    const states = () => replicator.allDocs({ include_docs: true, startkey: 'bulk-', endkey: 'bulk-z' })
      .then(({ rows }) => rows.map(({ doc }) => doc._replication_state));
    await until('all completed', states, (found) => Array.isArray(found) && found.every((state) => state === 'completed'));
    const { rows } = await replicator.allDocs({ startkey: 'bulk-', endkey: 'bulk-z' });
    const gone = await replicator.bulkDocs(rows.map(({ id, value }) => ({ _id: id, _rev: value.rev, _deleted: true })));
    assert.ok(gone.every(({ ok }) => ok));
  },

  async 'changes page by page, from a sequence, of named documents'() {
    const first = await replicator.changes({ limit: 1 });
    const rest = await replicator.changes({ since: first.last_seq });
    const all = await replicator.changes({ style: 'all_docs' });
    assert.equal(first.results.length + rest.results.length, all.results.length);
    const named = await replicator.changes({ doc_ids: ['live'] });
    assert.deepEqual(named.results.map(({ id }) => id), ['live']);
  },

  async 'the replicator database is copied by PouchDB itself'() {
    const result = await PouchDB.replicate(replicator, new PouchDB(target('backup')));
    assert.ok(result.ok && result.docs_written > 0, JSON.stringify(result));
    const again = await PouchDB.replicate(replicator, new PouchDB(target('backup')));
    assert.equal(again.docs_written, 0);
    assert.equal((await new PouchDB(target('backup')).get('live'))._replication_state, 'completed');
  },

  async 'a page has asked before it changed something'() {
    assert.equal(preflights > 0, Boolean(page));
  },
});
