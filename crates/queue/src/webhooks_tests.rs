//! Webhooks: their rows, their limits, and when their jobs are added.

#![allow(clippy::unwrap_used)]

use turnwise_store::runtime::Manual;
use turnwise_store::{Limits, Store};

use super::*;
use crate::claims::{self, Ending};
use crate::jobs::Cancelled;
use crate::workers::{self, Worker};
use crate::{Claim, Context, State};

const NOW_US: i64 = 1_000_000;

struct World {
    _folder: tempfile::TempDir,
    store: Store,
    keys: Keyspace,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let options = turnwise_store::embedded::Options { durable: false, ..Default::default() };
        let engine = turnwise_store::embedded::Embedded::open_with(folder.path(), options).unwrap();
        let store = Store::new(engine, Manual::new(NOW_US, 0)).with_limits(Limits::SMALL);
        World { _folder: folder, store, keys: Keyspace::default() }
    }

    async fn try_run<T>(&self, body: impl AsyncFn(Transaction, Keyspace) -> Result<T>) -> Result<T> {
        let tx = self.store.begin().await?;
        let value = body(tx.clone(), self.keys.clone()).await?;
        tx.commit().await?;
        Ok(value)
    }

    async fn run<T>(&self, body: impl AsyncFn(Transaction, Keyspace) -> Result<T>) -> T {
        self.try_run(body).await.unwrap()
    }

    async fn put(&self, webhook: &Webhook) {
        self.run(async |tx, keys| put(&tx, &keys, webhook, NOW_US).await).await;
    }

    async fn state(&self, id: &str) -> Option<State> {
        self.run(async |tx, keys| jobs::get(&tx, &keys, JOB_TYPE, id).await).await.map(|job| job.state())
    }

    async fn claim(&self, id: &str, number: u64) {
        let claim = Claim { worker: "w".to_owned(), number };
        let context = async |tx: Transaction, keys: Keyspace| {
            claims::claim(Context::new(&tx, &keys, JOB_TYPE, NOW_US, 20), id, &claim).await
        };
        assert!(self.run(context).await.is_some());
    }

    async fn end(&self, id: &str, number: u64, ending: &Ending) {
        let claim = Claim { worker: "w".to_owned(), number };
        self.run(async |tx, keys| {
            let context = Context::new(&tx, &keys, JOB_TYPE, NOW_US, 20);
            match claims::end(context, id, &claim, ending, None, None).await? {
                claims::Ended::Recorded(job) => ended(&tx, &keys, job.as_ref(), NOW_US).await,
                claims::Ended::AlreadyRecorded(_) => panic!("it ends once"),
            }
        })
        .await;
    }

    async fn wake(&self, id: &str) -> bool {
        self.run(async |tx, keys| wake(&tx, &keys, id, NOW_US).await).await
    }
}

fn webhook(id: &str, tenant: &str) -> Webhook {
    Webhook {
        id: id.to_owned(),
        url: "https://example.com/hooks?key=very-secret".to_owned(),
        secret: Secret::new("0123456789abcdef".to_owned()),
        filter: Filter::default(),
        job_tenant: tenant.to_owned(),
        by: Some("user:jan".to_owned()),
        scopes: vec![format!("client:{tenant}")],
        by_operator: false,
        enabled: true,
        disabled_because: None,
        created_us: NOW_US,
        changed_us: NOW_US,
    }
}

#[tokio::test]
async fn a_webhook_has_one_job_which_is_added_when_it_does_not_wait() {
    let world = World::new();
    world.put(&webhook("a", "acme")).await;
    let job = world.run(async |tx, keys| jobs::get(&tx, &keys, JOB_TYPE, "a").await).await.unwrap();
    assert_eq!((job.tenant.as_str(), job.state()), ("acme", State::Pending));
    assert_eq!(job.summary.get(), r#"{"url":"https://example.com"}"#, "without what may be secret");
    assert!(!world.wake("a").await, "it waits already");
    let cancelled = world.run(async |tx, keys| jobs::cancel(&tx, &keys, JOB_TYPE, "a", NOW_US).await).await;
    assert_eq!(cancelled, Cancelled::Now);
    assert!(world.wake("a").await);
    assert_eq!(world.state("a").await, Some(State::Pending));
    // One that is disabled or gone is not added.
    let seen = webhook("a", "acme");
    assert!(world.run(async |tx, keys| disable(&tx, &keys, &seen, "gone").await).await);
    assert!(!world.run(async |tx, keys| disable(&tx, &keys, &seen, "again").await).await);
    assert_eq!(world.state("a").await, Some(State::Cancelled));
    assert!(!world.wake("a").await && !world.wake("none").await);
    assert!(world.run(async |tx, keys| remove(&tx, &keys, "a").await).await);
    assert!(!world.run(async |tx, keys| remove(&tx, &keys, "a").await).await);
    assert_eq!(world.state("a").await, None);
    assert_eq!(world.run(async |tx, keys| list(&tx, &keys).await).await, []);
}

#[tokio::test]
async fn a_job_that_runs_is_added_again_at_its_end_unless_it_failed() {
    let world = World::new();
    world.put(&webhook("a", "acme")).await;
    let worker = Worker::new("w", "n", 0, 9);
    world.run(async |tx, keys| workers::register(&tx, &keys, JOB_TYPE, &worker)).await;
    let completed = Ending::completed(RawValue::from_string("{}".to_owned()).unwrap());
    let crashed = Ending::Crashed { error: "no".into(), retry_us: Some(NOW_US + 9) };
    for (number, (ending, wakes, state)) in (1..).zip([
        (completed.clone(), true, State::Pending),
        (completed.clone(), false, State::Completed),
        (crashed, true, State::Crashing),
    ]) {
        if world.state("a").await == Some(State::Completed) {
            assert!(world.wake("a").await);
        }
        world.claim("a", number).await;
        if wakes {
            assert!(world.wake("a").await && !world.wake("a").await, "once is enough");
        }
        world.end("a", number, &ending).await;
        assert_eq!(world.state("a").await, Some(state));
    }
}

#[tokio::test]
async fn a_position_moves_from_where_it_was_read() {
    let world = World::new();
    let hook = webhook("a", "acme");
    world.put(&hook).await;
    world.put(&webhook("b", "acme")).await;
    let before = world.run(async |tx, keys| progress(&tx, &keys, "a").await).await;
    assert_eq!((before.position, before.delivered), (0, 0));
    assert!(before.woken_us.is_some(), "its job was added");
    let now = Progress { position: 7, delivered: 3, repeat_until: Some(9), woken_us: None, ..before.clone() };
    let step = async |tx: Transaction, keys: Keyspace| moved(&tx, &keys, (&hook, &before), now.clone()).await;
    assert!(world.run(step).await);
    assert!(!world.run(step).await, "another run has moved it");
    let listed = world.run(async |tx, keys| list(&tx, &keys).await).await;
    assert_eq!(listed, [(hook.clone(), now.clone()), (webhook("b", "acme"), before.clone())]);
    // A change keeps the position, and forgets what the next attempt repeats.
    world.put(&hook).await;
    let after = world.run(async |tx, keys| progress(&tx, &keys, "a").await).await;
    assert_eq!(after, Progress { repeat_until: None, woken_us: before.woken_us, ..now.clone() });
    // One that was created anew is another one.
    let other = Webhook { created_us: NOW_US + 1, ..hook.clone() };
    world.put(&other).await;
    assert!(!world.run(async |tx, keys| moved(&tx, &keys, (&hook, &after), now.clone()).await).await);
}

#[tokio::test]
async fn events_that_a_run_reads_again_are_noted_until_it_completes() {
    let world = World::new();
    let hook = webhook("a", "acme");
    world.put(&hook).await;
    let worker = Worker::new("w", "n", 0, 9);
    world.run(async |tx, keys| workers::register(&tx, &keys, JOB_TYPE, &worker)).await;
    let noted = async || world.run(async |tx, keys| progress(&tx, &keys, "a").await).await.woken_us.is_some();
    let again = async |number: u64| {
        let claim = Claim { worker: "w".to_owned(), number };
        world.run(async |tx, keys| reads_again(&tx, &keys, "a", Some(&claim), NOW_US).await).await
    };
    let completed = Ending::completed(RawValue::from_string("{}".to_owned()).unwrap());
    for (number, ending, is_noted, state) in
        [(1, &completed, false, State::Completed), (2, &Ending::Stopped, true, State::Cancelled)]
    {
        if number > 1 {
            assert!(world.wake("a").await);
        }
        world.claim("a", number).await;
        let before = world.run(async |tx, keys| progress(&tx, &keys, "a").await).await;
        let now = Progress { position: number, ..before.clone() };
        assert!(world.run(async |tx, keys| moved(&tx, &keys, (&hook, &before), now.clone()).await).await);
        assert!(!noted().await);
        assert!(world.wake("a").await);
        assert!(!again(number + 7).await && !world.wake("a").await, "this run has not the claim");
        assert!(again(number).await && noted().await);
        if state == State::Cancelled {
            world.run(async |tx, keys| jobs::cancel(&tx, &keys, JOB_TYPE, "a", NOW_US).await).await;
        }
        world.end("a", number, ending).await;
        assert_eq!((world.state("a").await, noted().await), (Some(state), is_noted));
    }
}

#[tokio::test]
async fn a_tenant_has_some_webhooks_and_no_more() {
    let world = World::new();
    for n in 0..MAX_WEBHOOKS_OF_TENANT {
        world.put(&webhook(&format!("w{n:02}"), "acme")).await;
    }
    let put_one =
        async |hook: &Webhook| world.try_run(async |tx, keys| put(&tx, &keys, hook, NOW_US).await).await;
    let refused = put_one(&webhook("more", "acme")).await.unwrap_err().to_string();
    assert!(refused.contains("20 webhooks"), "{refused}");
    put_one(&webhook("w00", "acme")).await.unwrap();
    put_one(&webhook("more", "beta")).await.unwrap();
    put_one(&webhook("more", "acme")).await.unwrap_err();
}

#[test]
fn deliveries_are_not_delivered_and_secrets_are_not_shown() {
    let event = |job_type: &str| JobEvent {
        event: "failed".to_owned(),
        job_type: job_type.to_owned(),
        id: "a".to_owned(),
        tenant: "acme".to_owned(),
        task: None,
        tags: std::collections::BTreeSet::new(),
        state: "failed".to_owned(),
        at_us: NOW_US,
        reason: None,
        class: None,
    };
    let hook = webhook("a", "acme");
    assert!(hook.wants(&event("mail")) && !hook.wants(&event(JOB_TYPE)));
    assert!(!format!("{hook:?}").contains("0123456789abcdef"));
    let only = Webhook { filter: Filter { events: vec!["added".to_owned()], ..Filter::default() }, ..hook };
    assert!(!only.wants(&event("mail")));
}
