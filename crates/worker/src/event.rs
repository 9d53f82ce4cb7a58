//! Events that a loop waits for: the end of a pause, or the change of a watched key.

use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sync_wrapper::SyncWrapper;
use turnwise_store::{Runtime, Watch};

/// An event that happens once. By default it never happens.
#[derive(Default)]
pub(crate) struct Event(Option<SyncWrapper<Watch>>);

impl Event {
    /// An event that happens at the end of a pause.
    pub fn after(runtime: &Arc<dyn Runtime>, pause: Duration) -> Event {
        if pause.is_zero() {
            return Event::from(Box::pin(ready(())) as Watch);
        }
        let runtime = runtime.clone();
        Event::from(Box::pin(async move { runtime.sleep(pause).await }) as Watch)
    }

    /// An event that happens at a time, in µs.
    pub fn at(runtime: &Arc<dyn Runtime>, at_us: i64) -> Event {
        let runtime = runtime.clone();
        Event::from(Box::pin(async move { runtime.sleep_until(at_us).await }) as Watch)
    }

    /// Returns when it has happened. After that it never happens again.
    #[boxed]
    pub async fn happens(&mut self) {
        match &mut self.0 {
            Some(event) => event.get_mut().await,
            None => pending().await,
        }
        self.0 = None;
    }
}

impl From<Watch> for Event {
    fn from(watch: Watch) -> Event {
        Event(Some(SyncWrapper::new(watch)))
    }
}
