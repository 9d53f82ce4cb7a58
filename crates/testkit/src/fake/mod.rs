//! A database that does what a test tells it, where no real server can be made to.
//!
//! A [`Fake`] is one CouchDB database behind HTTP, kept in memory: what a replication asks for it answers as CouchDB does, `_local` documents
//! included (written whatever revision they name). A test changes single answers ([`Fake::rule`]): feeds that send heartbeats and
//! nothing else, servers that need long, attachments larger than memory. A document passes every filter that has a
//! member `"pass": true`.

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

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// What replaces an answer: `None` leaves it as it is.
type Rule = Box<dyn FnMut(&Asked) -> Option<Reply> + Send>;

/// The database and its server; both end when this is dropped.
#[derive(Debug)]
pub struct Fake {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

struct Shared {
    database: Mutex<Database>,
    /// Told whenever the database has changed, for continuous feeds.
    changed: watch::Sender<()>,
    rules: Mutex<Vec<Rule>>,
    asked: Mutex<Vec<Asked>>,
    /// Told whenever something was asked.
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
        // Bodies are looked at by rules; the log keeps their beginning.
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
    /// An empty database on a port of its own.
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

    /// From now on `rule` is asked first, before the rules that were added earlier: what it answers is the answer.
    pub fn rule(&self, rule: impl FnMut(&Asked) -> Option<Reply> + Send + 'static) {
        self.shared.rules.lock().expect("a rule does not panic").insert(0, Box::new(rule));
    }

    /// From now on answers to requests for which `condition` holds break off after so many bytes.
    pub fn cut(&self, bytes: usize, condition: impl Fn(&Asked) -> bool + Send + 'static) {
        let shared = Arc::downgrade(&self.shared);
        self.rule(move |asked| {
            let shared = shared.upgrade().filter(|_| condition(asked))?;
            Some(database::answer(&shared, asked).cut(bytes))
        });
    }

    /// From now on answers begin after the pause that `pause` names for their requests, if it names one.
    pub fn delay(&self, pause: impl Fn(&Asked) -> Option<Duration> + Send + 'static) {
        let shared = Arc::downgrade(&self.shared);
        self.rule(move |asked| {
            let (shared, pause) = (shared.upgrade()?, pause(asked)?);
            Some(database::answer(&shared, asked).after(pause))
        });
    }

    /// No more rules.
    pub fn well(&self) {
        self.shared.rules.lock().expect("a rule does not panic").clear();
    }

    /// Writes documents: each with `_id`, and with `_rev` unless it is a first revision. A revision that does not follow the
    /// one before becomes one more leaf.
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

    /// Deletes the database and creates it anew: empty, with a later `instance_start_time` and other sequences.
    pub fn create_anew(&self) {
        self.shared.database().create_anew();
        self.shared.changed.send_replace(());
    }

    /// What `instance_start_time` says from now on.
    pub fn say_started(&self, instance_start_time: &str) {
        instance_start_time.clone_into(&mut self.shared.database().started);
    }

    /// Removes a document as a purge does: its row stays in a feed that is being read, and the document is nowhere.
    pub fn lose(&self, id: &str) {
        self.shared.database().lose(id);
    }

    /// Deletes a `_local` document.
    pub fn forget_local(&self) {
        self.shared.database().local.clear();
    }

    /// How many leaf revisions there are.
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

    /// How many requests so far `condition` holds for.
    pub fn count(&self, condition: impl Fn(&Asked) -> bool) -> usize {
        self.requests().iter().filter(|asked| condition(asked)).count()
    }

    /// Forgets the requests so far.
    pub fn clear(&self) {
        self.shared.asked.lock().expect("no holder of this lock panics").clear();
    }

    /// Waits until `count` requests have come for which `condition` holds.
    ///
    /// # Panics
    /// After a minute; the message lists what came instead.
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
