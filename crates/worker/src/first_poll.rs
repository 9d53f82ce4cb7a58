//! The first poll of a handler, which happens in the task of its run.
//!
//! *Model.* Many handlers of short jobs end without waiting for anything. A task of its own costs more than such a handler. So the
//! task of the run polls the handler once. If the handler waits, it moves to a task of its own, which the run supervises.
//!
//! *A handler that does not return* from its first poll blocks its thread, and with it the task of its run. Its reports are written
//! once it returns. If the run shall end meanwhile, the worker's loop [takes it over](FirstPoll::take): another task supervises it, and
//! receives the handler, or its outcome, once the first poll returns.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::Outcome;
use crate::run::ClaimedJob;
use crate::sync::lock;

/// A handler that runs a job.
pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = Outcome> + Send>>;
/// The value of a panic.
pub(crate) type Panic = Box<dyn Any + Send>;

/// What a first poll has shown.
pub(crate) enum Polled {
    /// The handler has ended.
    Ended(Outcome),
    /// It waits.
    Waits(HandlerFuture),
    /// It has panicked.
    Panicked(Panic),
}

/// Whether the first poll of a run's handler is going on, and whom its result goes to.
#[derive(Default)]
pub(crate) struct FirstPoll(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    /// It has not begun, or is over.
    #[default]
    Idle,
    /// It is going on, for this run.
    Now(Arc<ClaimedJob>, tracing::Span),
    /// The same, but the run was taken over.
    Taken(oneshot::Sender<Polled>),
}

impl FirstPoll {
    /// Polls the handler of `job` once, unless `may_begin` forbids it. `None` if the run was taken over meanwhile.
    ///
    /// A caller that asks a run to end does so before it calls [`FirstPoll::take`]. `may_begin` is called after the poll counts as begun, so
    /// one of the two sees the other.
    pub async fn poll(
        &self,
        mut handler: HandlerFuture,
        job: &Arc<ClaimedJob>,
        may_begin: impl FnOnce() -> bool,
    ) -> Option<Polled> {
        *lock(&self.0) = Stage::Now(job.clone(), tracing::Span::current());
        let polled = match may_begin() {
            false => Polled::Waits(handler),
            true => {
                let polled = poll_fn(|cx| {
                    let polled = catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(cx)));
                    Poll::Ready(polled)
                });
                match polled.await {
                    Ok(Poll::Ready(outcome)) => Polled::Ended(outcome),
                    Ok(Poll::Pending) => Polled::Waits(handler),
                    Err(panic) => Polled::Panicked(panic),
                }
            }
        };
        match std::mem::take(&mut *lock(&self.0)) {
            Stage::Taken(supervisor) => {
                // If the supervisor has given up, the handler is dropped.
                let _ = supervisor.send(polled);
                None
            }
            Stage::Idle | Stage::Now(..) => Some(polled),
        }
    }

    /// Takes the run over, if the first poll of its handler is going on.
    pub fn take(&self) -> Option<(Arc<ClaimedJob>, tracing::Span, Handler)> {
        let mut stage = lock(&self.0);
        match std::mem::take(&mut *stage) {
            Stage::Now(job, span) => {
                let (supervisor, polled) = oneshot::channel();
                *stage = Stage::Taken(supervisor);
                Some((job, span, Handler::FirstPoll { polled, is_aborted: false }))
            }
            other => {
                *stage = other;
                None
            }
        }
    }
}

/// A handler after its first poll, or during it if the run was taken over. Dropping it aborts the handler.
pub(crate) enum Handler {
    Task(AbortOnDropHandle<Outcome>),
    FirstPoll { polled: oneshot::Receiver<Polled>, is_aborted: bool },
}

impl Handler {
    /// Continues a handler in a task of its own.
    pub fn spawn(handler: HandlerFuture) -> Handler {
        Handler::Task(AbortOnDropHandle::new(tokio::spawn(handler)))
    }

    /// Aborts the handler at its next `await`.
    pub fn abort(&mut self) {
        match self {
            Handler::Task(task) => task.abort(),
            Handler::FirstPoll { is_aborted, .. } => *is_aborted = true,
        }
    }
}

/// Resolves when the handler has ended. `Err(None)` if it was aborted.
impl Future for Handler {
    type Output = Result<Outcome, Option<Panic>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let (polled, is_aborted) = match &mut *self {
                Handler::Task(task) => {
                    let ended = ready!(Pin::new(task).poll(cx));
                    return Poll::Ready(ended.map_err(|error| error.try_into_panic().ok()));
                }
                Handler::FirstPoll { polled, is_aborted } => (polled, *is_aborted),
            };
            match ready!(Pin::new(polled).poll(cx)) {
                Ok(Polled::Ended(outcome)) => return Poll::Ready(Ok(outcome)),
                Ok(Polled::Panicked(panic)) => return Poll::Ready(Err(Some(panic))),
                Ok(Polled::Waits(handler)) if !is_aborted => *self = Handler::spawn(handler),
                // The sender is dropped with the task of the run.
                Ok(Polled::Waits(_)) | Err(_) => return Poll::Ready(Err(None)),
            }
        }
    }
}
