// Starts pouchdb-server for one test: on a port that the kernel picks (the server itself cannot take port 0), or on PEER_PORT
// where it is to come back; announced as a line "listening PORT" on standard output. It lives no longer than whoever started
// it: it ends when its standard input does, however the starter died. Arguments are pouchdb-server's own.
import http from 'node:http';

const listen = http.Server.prototype.listen;
http.Server.prototype.listen = function (_port, ...rest) {
  this.once('listening', () => console.log(`listening ${this.address().port}`));
  return listen.call(this, Number(process.env.PEER_PORT ?? 0), ...rest);
};

process.stdin.on('end', () => process.exit(0)).resume();

await import('pouchdb-server/bin/pouchdb-server');
