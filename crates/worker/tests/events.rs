//! Changes of the membership as events: unstable immediately, stable after a quiet period.

use std::pin::Pin;
use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt};
use turnwise_queue::Context;
use turnwise_queue::workers;
use turnwise_worker::{Membership, membership_events};

use crate::common::{PATIENCE, T, World};

const START: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_secs(60);

struct Events {
    world: World,
    events: Pin<Box<dyn Stream<Item = Membership> + Send>>,
}

impl Events {
    fn new() -> Self {
        let world = World::new();
        let events = membership_events(world.store.clone(), world.keys.clone(), T, START, QUIET);
        Events { world, events: Box::pin(events) }
    }

    async fn next(&mut self) -> Membership {
        tokio::time::timeout(PATIENCE, self.events.next()).await.expect("no event").unwrap()
    }

    /// Lets time pass once the stream waits for it. No event may come meanwhile.
    async fn quiet(&mut self, from: Duration, duration: Duration) {
        let clock = self.world.clock.clone();
        tokio::select! {
            biased;
            event = self.events.next() => panic!("unexpected {event:?}"),
            () = clock.wait_for_sleeper(from) => {}
        }
        clock.advance(duration);
    }

    async fn join(&self, id: &str) {
        let row = workers::Worker::new(id, "n", 0, 1);
        self.world.run(async |tx, keys| workers::register(tx, keys, T, &row)).await;
    }

    async fn leave(&self, id: &str) {
        assert!(
            self.world
                .run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 3, 20), id, 9).await)
                .await
        );
    }
}

fn stable(ids: &[&str]) -> Membership {
    Membership::Stable(ids.iter().map(|id| (*id).to_owned()).collect())
}

#[tokio::test]
async fn the_first_members_are_reported_after_the_start_period() {
    let mut events = Events::new();
    events.join("b").await;
    events.join("a").await;
    assert_eq!(events.next().await, Membership::Unstable);
    events.quiet(START, START).await;
    assert_eq!(events.next().await, stable(&["a", "b"]));
}

#[tokio::test]
async fn a_change_is_reported_at_once_and_the_new_members_after_a_quiet_period() {
    let mut events = Events::new();
    assert_eq!(events.next().await, Membership::Unstable);
    events.quiet(START, START).await;
    assert_eq!(events.next().await, stable(&[]));
    events.join("a").await;
    assert_eq!(events.next().await, Membership::Unstable);
    events.quiet(QUIET, QUIET).await;
    assert_eq!(events.next().await, stable(&["a"]));
    events.leave("a").await;
    assert_eq!(events.next().await, Membership::Unstable);
    events.quiet(QUIET, QUIET).await;
    assert_eq!(events.next().await, stable(&[]));
}

#[tokio::test]
async fn every_change_restarts_the_quiet_period_without_a_further_event() {
    let mut events = Events::new();
    assert_eq!(events.next().await, Membership::Unstable);
    events.quiet(START, START).await;
    assert_eq!(events.next().await, stable(&[]));
    events.join("a").await;
    assert_eq!(events.next().await, Membership::Unstable);
    let almost = QUIET - Duration::from_micros(1);
    for id in ["b", "c"] {
        events.quiet(QUIET, almost).await;
        events.join(id).await;
    }
    events.quiet(QUIET, almost).await;
    assert!(events.events.next().now_or_never().is_none());
    events.world.clock.advance(Duration::from_micros(1));
    assert_eq!(events.next().await, stable(&["a", "b", "c"]));
}

#[tokio::test]
async fn a_ping_is_no_change() {
    let mut events = Events::new();
    events.join("a").await;
    assert_eq!(events.next().await, Membership::Unstable);
    events.quiet(START, START).await;
    assert_eq!(events.next().await, stable(&["a"]));
    events.world.run(async |tx, keys| workers::ping(tx, keys, T, "a", 1).await).await;
    assert!(events.events.next().now_or_never().is_none());
    events.leave("a").await;
    assert_eq!(events.next().await, Membership::Unstable);
}
