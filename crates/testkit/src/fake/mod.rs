//! A database that a test controls, for cases in which no real server can be made to misbehave.
//!
//! A [`Fake`] is one CouchDB database behind HTTP, kept in memory. It responds to a replication's requests like CouchDB,
//! including `_local` documents, which it writes without checking their revision. A test replaces single responses
//! ([`Fake::rule`]): feeds that send only heartbeats, slow servers, attachments larger than memory. A document passes every
//! filter if it has a member `"pass": true`.

mod database;
mod server;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use database::Database;
pub use server::{Asked, Reply, Step};

/// How long a test waits for a request before it fails.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A function that replaces a response. `None` leaves it unchanged.
type Rule = Box<dyn FnMut(&Asked) -> Option<Reply> + Send>;

/// The database and its server. Both end when this is dropped.
#[derive(Debug)]
pub struct Fake {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

struct Shared {
    database: Mutex<Database>,
    /// Notified whenever the database has changed, for continuous feeds.
    changed: watch::Sender<()>,
    rules: Mutex<Vec<Rule>>,
    asked: Mutex<Vec<Asked>>,
    /// Notified whenever a request arrives.
    heard: watch::Sender<()>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    fn database(&self) -> MutexGuard<'_, Database> {
        self.database.lock().expect("the database does not panic")
    }

    fn reply(self: &Arc<Self>, asked: Asked) -> Reply {
        let mut kept = asked.clone();
        // Rules receive more of the body. The log keeps only its beginning.
        kept.body.truncate(64 << 10);
        self.asked.lock().expect("no holder of this lock panics").push(kept);
        self.heard.send_replace(());
        let ruled = {
            let mut rules = self.rules.lock().expect("a rule does not panic");
            rules.iter_mut().find_map(|rule| rule(&asked))
        };
        ruled.unwrap_or_else(|| database::answer(self, &asked))
    }
}

impl Fake {
    /// Starts an empty database on its own port.
    pub async fn start() -> Self {
        let socket = TcpSocket::new_v4().expect("there is IPv4");
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("loopback has a free port");
        let listener = socket.listen(BACKLOG).expect("a bound socket can listen");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared {
            database: Mutex::default(),
            changed: watch::Sender::new(()),
            rules: Mutex::default(),
            asked: Mutex::default(),
            heard: watch::Sender::new(()),
        });
        let listening = tokio::spawn(server::listen(listener, Arc::clone(&shared)));
        Self { address, shared, listening }
    }

    /// The database's URL.
    pub fn url(&self) -> String {
        format!("http://{}/db", self.address)
    }

    /// Adds a rule before all earlier rules. If it returns a response, that response is sent.
    pub fn rule(&self, rule: impl FnMut(&Asked) -> Option<Reply> + Send + 'static) {
        self.shared.rules.lock().expect("a rule does not panic").insert(0, Box::new(rule));
    }

    /// Makes responses to requests for which `condition` holds break off after this many bytes.
    pub fn cut(&self, bytes: usize, condition: impl Fn(&Asked) -> bool + Send + 'static) {
        let shared = Arc::downgrade(&self.shared);
        self.rule(move |asked| {
            let shared = shared.upgrade().filter(|_| condition(asked))?;
            Some(database::answer(&shared, asked).cut(bytes))
        });
    }

    /// Delays responses by the pause that `pause` returns for their requests, if it returns one.
    pub fn delay(&self, pause: impl Fn(&Asked) -> Option<Duration> + Send + 'static) {
        let shared = Arc::downgrade(&self.shared);
        self.rule(move |asked| {
            let (shared, pause) = (shared.upgrade()?, pause(asked)?);
            Some(database::answer(&shared, asked).after(pause))
        });
    }

    /// Removes all rules.
    pub fn well(&self) {
        self.shared.rules.lock().expect("a rule does not panic").clear();
    }

    /// Writes documents: each with `_id`, and with `_rev` unless it is a first revision. A revision that does not follow
    /// the one before becomes another leaf.
    pub fn put(&self, docs: impl IntoIterator<Item = Value>) {
        {
            let mut database = self.shared.database();
            for doc in docs {
                database.put(doc);
            }
        }
        self.shared.changed.send_replace(());
    }

    /// Writes documents `prefix`000000, `prefix`000001, … of about `bytes` bytes.
    pub fn fill(&self, prefix: &str, documents: usize, bytes: usize) {
        let text = "x".repeat(bytes);
        self.put((0..documents).map(|n| json!({ "_id": format!("{prefix}{n:06}"), "text": text })));
    }

    /// Deletes the database and creates it again: empty, with a later `instance_start_time` and other sequences.
    pub fn create_anew(&self) {
        self.shared.database().create_anew();
        self.shared.changed.send_replace(());
    }

    /// Sets `instance_start_time`.
    pub fn say_started(&self, instance_start_time: &str) {
        instance_start_time.clone_into(&mut self.shared.database().started);
    }

    /// Removes a document like a purge: its row stays in a feed that is being read, but the document is gone.
    pub fn lose(&self, id: &str) {
        self.shared.database().lose(id);
    }

    /// Deletes all `_local` documents.
    pub fn forget_local(&self) {
        self.shared.database().local.clear();
    }

    /// The number of leaf revisions.
    pub fn leaves(&self) -> usize {
        self.shared.database().leaves()
    }

    /// A document's leaf revisions.
    pub fn revisions(&self, id: &str) -> Vec<String> {
        self.shared.database().revisions(id)
    }

    /// The `_local` documents.
    pub fn local(&self) -> Vec<Value> {
        self.shared.database().local.values().cloned().collect()
    }

    /// All requests so far, with the first 64 kB of their bodies.
    pub fn requests(&self) -> Vec<Asked> {
        self.shared.asked.lock().expect("no holder of this lock panics").clone()
    }

    /// The number of requests so far for which `condition` holds.
    pub fn count(&self, condition: impl Fn(&Asked) -> bool) -> usize {
        self.requests().iter().filter(|asked| condition(asked)).count()
    }

    /// Clears the log of requests.
    pub fn clear(&self) {
        self.shared.asked.lock().expect("no holder of this lock panics").clear();
    }

    /// Waits until `count` requests have arrived for which `condition` holds.
    ///
    /// # Panics
    /// After a minute. The message lists the requests that arrived.
    pub async fn wait_for(&self, count: usize, condition: impl Fn(&Asked) -> bool) {
        let mut heard = self.shared.heard.subscribe();
        let enough = async {
            while self.count(&condition) < count {
                heard.changed().await.expect("the fake outlives those who wait");
            }
        };
        if tokio::time::timeout(WAIT_TIMEOUT, enough).await.is_err() {
            let seen: Vec<String> =
                self.requests().iter().map(|asked| format!("{} {}", asked.method, asked.target)).collect();
            panic!("not asked within a minute; asked was:\n{}", seen.join("\n"));
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.listening.abort();
    }
}
