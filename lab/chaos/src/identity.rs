//! The identities of clients and workers, and those that send more requests than they may.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::World;
use super::api::{Answer, Api};
use turnwise_testkit::Random;

/// The number of identities of clients, and that of workers. Several clients or workers share one.
const SHARED: usize = 8;
/// The longest time until a node gives out tokens.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause before a request is repeated.
const AGAIN: Duration = Duration::from_millis(100);
/// How long an identity exceeds its limit, and the pause after that.
const FLOOD: Duration = Duration::from_secs(2);
/// The number of requests that it sends at the same time.
const FLOODERS: usize = 4;

/// All identities.
pub(super) struct Identities {
    /// Everything, directly at the nodes. It has no limit.
    pub admin: Api,
    /// Clients of all tenants.
    pub clients: Vec<Api>,
    /// Workers of all types.
    pub workers: Vec<Api>,
}

impl Identities {
    /// Closes the store, which was open. `outside` are the URLs that clients and workers use.
    pub async fn create(open: &Api, outside: &Api) -> Result<Identities, String> {
        let admin = open.of(&token(open, &["admin"]).await?);
        let (mut clients, mut workers) = (Vec::new(), Vec::new());
        for _ in 0..SHARED {
            clients.push(outside.of(&token(&admin, &["client:*", "command"]).await?));
            workers.push(outside.of(&token(&admin, &["worker:*"]).await?));
        }
        Ok(Identities { admin, clients, workers })
    }

    pub fn client(&self, number: usize) -> &Api {
        &self.clients[number % SHARED]
    }

    pub fn worker(&self, number: usize) -> &Api {
        &self.workers[number % SHARED]
    }
}

/// A new token with these scopes.
pub(super) async fn token(api: &Api, scopes: &[&str]) -> Result<String, String> {
    let (body, begun) = (json!({ "scopes": scopes, "note": "chaos" }), Instant::now());
    loop {
        // A repeated request makes another token, which does no harm. The first node of a store that was open knows at once.
        match api.ask(0, Method::POST, "/v1/tokens", Some(&body)).await {
            Answer::Got(status, answer) if status.is_success() => {
                return Ok(answer["token"].as_str().unwrap_or_default().to_owned());
            }
            other if begun.elapsed() > START_TIMEOUT => return Err(format!("no token: {other:?}")),
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Lets one identity after the other send more than it may, until the end.
pub(super) async fn flood(world: Arc<World>) {
    let mut random = Random::new(world.options.seed ^ 0xf100d);
    while !world.stop.is_cancelled() {
        let number = usize::try_from(random.below(64)).expect("small");
        let identities = &world.identities;
        let api = if random.below(2) == 0 { identities.client(number) } else { identities.worker(number) };
        let end = Instant::now() + FLOOD;
        let flooder = || async {
            while Instant::now() < end && !world.stop.is_cancelled() {
                if let Answer::Limited = api.ask(number, Method::GET, "/v1/me", None).await {
                    world.counts.add(REFUSED, 1);
                }
                tokio::time::sleep(AGAIN / 10).await;
            }
        };
        futures::future::join_all((0..FLOODERS).map(|_| flooder())).await;
        tokio::time::sleep(FLOOD).await;
    }
    if world.counts.get(REFUSED) == 0 {
        world.ledger.finding("no identity was refused a request, so the limit is not in force".to_owned());
    }
}

const REFUSED: &str = "requests refused to identities that send too many";
