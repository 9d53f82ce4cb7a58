//! Reads that are wanted at the same time go together, as transactions do ([`group`](super::group)).
//!
//! A small read costs a member little, and the call around it much more. So while calls are under way the reads that
//! come meanwhile wait, and then are one read-only transaction of etcd: those that pin a snapshot in one, which is
//! linearizable and answers all of them at one revision; those of pinned snapshots in another, for each member, each at
//! the revision that it names. If such a transaction fails, for whatever reason, each of its reads is made again on its
//! own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::Shared;
use super::api::{RangeRequest, RangeResponse};
use crate::{Error, Result};

/// Calls of a kind that are made before the first of them has been answered.
const MAX_UNDER_WAY: usize = 4;
/// Reads in a call; etcd takes 64 operations at the least.
const MAX_TOGETHER: usize = 32;
/// A read of more rows than this goes alone, so that it does not hold others up.
const MAX_ROWS: i64 = 200;

/// Reads that wait for their turn.
pub(super) struct Reads {
    fresh: Queue,
    /// By member.
    pinned: Vec<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Read>,
    under_way: usize,
}

struct Read {
    request: RangeRequest,
    answer: oneshot::Sender<Result<(RangeResponse, usize)>>,
}

impl Reads {
    pub(super) fn new(members: usize) -> Self {
        Reads { fresh: Queue::default(), pinned: (0..members).map(|_| Queue::default()).collect() }
    }

    fn queue(&self, member: Option<usize>) -> &Queue {
        member.map_or(&self.fresh, |member| &self.pinned[member])
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rows of a range, from the newest revision, or from that of the request, which `member` has seen; and the member
/// that has answered.
pub(super) async fn range(
    shared: &Arc<Shared>,
    request: RangeRequest,
    member: Option<usize>,
) -> Result<(RangeResponse, usize)> {
    let is_small = request.range_end.is_empty() || (1..=MAX_ROWS).contains(&request.limit);
    if !is_small {
        return shared.members.range(request, member).await;
    }
    let (answer, answered) = oneshot::channel();
    {
        let mut state = shared.reads.queue(member).state();
        state.waiting.push_back(Read { request, answer });
        if state.under_way < MAX_UNDER_WAY {
            state.under_way += 1;
            // A task of its own: whoever gives up waiting for one read must not stop those of others.
            tokio::spawn(run(shared.clone(), member));
        }
    }
    answered.await.unwrap_or_else(|_| Err(Error::Unavailable("the read was given up".into())))
}

/// Makes calls until nothing waits.
async fn run(shared: Arc<Shared>, member: Option<usize>) {
    loop {
        let mut together = Vec::new();
        {
            let mut state = shared.reads.queue(member).state();
            while together.len() < MAX_TOGETHER
                && let Some(read) = state.waiting.pop_front()
            {
                // Whoever wanted it may have gone.
                if !read.answer.is_closed() {
                    together.push(read);
                }
            }
            if together.is_empty() {
                state.under_way -= 1;
                return;
            }
        }
        read_all(&shared, together, member).await;
    }
}

async fn read_all(shared: &Shared, together: Vec<Read>, mut member: Option<usize>) {
    let members = &shared.members;
    if together.len() > 1 {
        let requests = together.iter().map(|read| read.request.clone()).collect();
        let asked = member.unwrap_or_else(|| members.current());
        match members.ranges(requests, member.is_some(), asked).await {
            Ok(responses) => {
                for (read, response) in together.into_iter().zip(responses) {
                    let _ = read.answer.send(Ok((response, asked)));
                }
                return;
            }
            // Not again the one that has just been waited for.
            Err(failure) if failure.is_of_member() => {
                members.turn_from(asked, &failure);
                member = member.map(|_| members.current());
            }
            Err(_) => {}
        }
    }
    let each = together.into_iter().map(|read| async move {
        let _ = read.answer.send(members.range(read.request, member).await);
    });
    futures::future::join_all(each).await;
}
