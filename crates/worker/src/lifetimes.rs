//! Fails jobs that have not started in time, removes records that are kept for a shorter time than others, and clears unique keys whose period is over.
//!
//! Every server does this. Two that settle the same jobs conflict, and the one that fails looks again at its next round.
//!
//! A clock that was set forward must not fail the jobs of the hours that it skips. So after a jump, nothing is settled until the clock has
//! run steadily for a while: a clock that is set back meanwhile has done no harm.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::lifetimes::{self, Due};
use turnwise_queue::{Keyspace, Result, unique};
use turnwise_store::{Error, Store};

use crate::record::is_passing;
use crate::service::until_stopped;
use crate::times::duration_us;

/// The time between two rounds.
const INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of jobs that one transaction settles.
const BATCH: usize = 200;
/// The maximum number of transactions of one round.
const MAX_BATCHES: usize = 50;
/// If the clock differs by more than this from the expected time after a pause, in µs, it has jumped.
const JUMP_US: i64 = 5_000_000;
/// How many rounds the clock must run steadily after a jump.
const STEADY_ROUNDS: u32 = 60;

/// Settles the jobs that are [due](lifetimes::due), until it is stopped.
pub fn settle_lifetimes((store, keys): (Store, Keyspace), stop: CancellationToken) -> BoxFuture<'static, ()> {
    until_stopped(stop, async move {
        let runtime = store.runtime();
        let mut unsteady = 0_u32;
        loop {
            let before_us = runtime.now_us();
            runtime.sleep(INTERVAL).await;
            let passed_us = runtime.now_us().saturating_sub(before_us);
            unsteady = match passed_us.saturating_sub(duration_us(INTERVAL)).saturating_abs() > JUMP_US {
                true => STEADY_ROUNDS,
                false => unsteady.saturating_sub(1),
            };
            if unsteady == 0
                && let Err(error) = round(&store, &keys).await
            {
                tracing::error!(%error, "cannot end the jobs that have not started in time: tries again soon");
            }
        }
    })
}

pub(crate) async fn round(store: &Store, keys: &Keyspace) -> Result<()> {
    for _ in 0..MAX_BATCHES {
        let now_us = store.runtime().now_us();
        let due = lifetimes::due(&store.begin().await?, keys, now_us, BATCH).await?;
        if due.is_empty() {
            break;
        }
        match settle(store, keys, &due, now_us).await {
            Ok(()) => {}
            // Another server settles the same jobs, or a worker has claimed one of them.
            Err(turnwise_queue::Error::Store(Error::Conflict)) => return Ok(()),
            Err(error) if is_passing(&error) => return Err(error),
            // One of them cannot be settled. It must not keep the others.
            Err(_) => {
                let mut failed = None;
                for one in &due {
                    failed = settle(store, keys, std::slice::from_ref(one), now_us).await.err().or(failed);
                }
                return failed.map_or(Ok(()), Err);
            }
        }
    }
    for _ in 0..MAX_BATCHES {
        let tx = store.begin().await?;
        if unique::sweep(&tx, keys, store.runtime().now_us(), BATCH).await? == 0 {
            break;
        }
        match tx.commit().await {
            // Another server clears the same keys, or one of them was taken.
            Err(Error::Conflict) => break,
            committed => drop(committed?),
        }
    }
    Ok(())
}

async fn settle(store: &Store, keys: &Keyspace, due: &[Due], now_us: i64) -> Result<()> {
    let tx = store.begin().await?;
    lifetimes::settle(&tx, keys, due, now_us).await?;
    tx.commit().await?;
    Ok(())
}
