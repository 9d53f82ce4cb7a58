// An empty CouchDB database that tells which requests Node's parser has found on its connections. GET /_seen returns them, and
// forgets them. Like peer.mjs, it announces its port as a line "listening PORT", and ends when its standard input does.
import http from 'node:http';

let seen = [];

const server = http.createServer((request, response) => {
  let bytes = 0;
  request.on('data', (piece) => { bytes += piece.length; });
  request.on('end', () => {
    const path = request.url.split('?')[0];
    const answer = (status, body) => {
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end(JSON.stringify(body));
    };
    if (path === '/_seen') {
      answer(200, seen);
      seen = [];
      return;
    }
    seen.push({ method: request.method, url: request.url, bytes, headers: request.headers });
    if (path === '/_session') answer(404, { error: 'not_found' });
    else if (path.includes('/_local/')) answer(request.method === 'PUT' ? 201 : 404, { ok: true, id: '_local/x', rev: '0-1' });
    else if (path.endsWith('/_changes')) answer(200, { results: [], last_seq: '0' });
    else if (path.endsWith('/_ensure_full_commit')) answer(201, { ok: true, instance_start_time: '0' });
    else answer(200, { db_name: 'db', update_seq: '0', instance_start_time: '0' });
  });
});

// What a request that was framed wrongly, or that asks for another protocol, leads to.
server.on('clientError', (error, socket) => {
  seen.push({ method: 'broken', url: error.code });
  socket.destroy();
});
for (const event of ['upgrade', 'connect']) {
  server.on(event, (request, socket) => {
    seen.push({ method: event, url: request.url });
    socket.destroy();
  });
}
for (const event of ['checkContinue', 'checkExpectation']) {
  server.on(event, (request, response) => {
    seen.push({ method: event, url: request.url });
    response.writeHead(417);
    response.end();
  });
}

server.listen(0, '127.0.0.1', () => console.log(`listening ${server.address().port}`));
process.stdin.on('end', () => process.exit(0)).resume();
