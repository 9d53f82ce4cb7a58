//! Concurrent reads are sent together, as transactions are ([`group`](super::group)).
//!
//! A small read costs a member little, and the call around it much more. So while calls are under way, new reads wait, and are
//! then sent as one read-only transaction of etcd. The reads that pin snapshots share one, which is linearizable and answers all
//! of them at one revision. The reads of pinned snapshots share another one per member, each at the revision that it names. If
//! such a transaction fails, for any reason, each of its reads is repeated separately.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::api::{RangeRequest, RangeResponse};
use super::shared::Shared;
use crate::sync::Mutex;
use crate::{Error, Result};

/// Calls of one kind that are sent before the first of them has been answered.
const MAX_UNDER_WAY: usize = 4;
/// Most reads in a call; etcd accepts at least 64 operations.
const MAX_TOGETHER: usize = 32;
/// A read of more rows is sent alone, so that it does not delay other reads.
const MAX_ROWS: i64 = 200;

pub(super) struct Reads {
    fresh: Mutex<Queue>,
    /// By member.
    pinned: Vec<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Read>,
    under_way: usize,
}

struct Read {
    request: RangeRequest,
    answer: oneshot::Sender<Result<(RangeResponse, usize)>>,
}

impl Reads {
    pub(super) fn new(members: usize) -> Self {
        Reads { fresh: Mutex::default(), pinned: (0..members).map(|_| Mutex::default()).collect() }
    }

    fn queue(&self, member: Option<usize>) -> &Mutex<Queue> {
        member.map_or(&self.fresh, |member| &self.pinned[member])
    }
}

/// The rows of a range, and the member that has answered. They are read at the newest revision, or at the revision of the
/// request, which `member` has seen.
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
        let mut queue = shared.reads.queue(member).lock();
        queue.waiting.push_back(Read { request, answer });
        if queue.under_way < MAX_UNDER_WAY {
            queue.under_way += 1;
            // A separate task, because a caller that drops its future must not stop other reads.
            tokio::spawn(run(shared.clone(), member));
        }
    }
    answered.await.unwrap_or_else(|_| Err(Error::Unavailable("the read was given up".into())))
}

/// Sends calls until no read waits.
async fn run(shared: Arc<Shared>, member: Option<usize>) {
    loop {
        let mut together = Vec::new();
        {
            let mut queue = shared.reads.queue(member).lock();
            while together.len() < MAX_TOGETHER
                && let Some(read) = queue.waiting.pop_front()
            {
                // The caller may have gone.
                if !read.answer.is_closed() {
                    together.push(read);
                }
            }
            if together.is_empty() {
                queue.under_way -= 1;
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
            // Do not ask the member that has just timed out again.
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
