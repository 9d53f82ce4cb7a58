//! Settings that change while they are in use.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// A value that may change at any time. Clones share it.
#[derive(Clone)]
pub struct Live<T>(Arc<watch::Sender<T>>);

impl<T> Live<T> {
    /// The current value.
    pub fn get(&self) -> T
    where
        T: Clone,
    {
        self.0.borrow().clone()
    }

    /// Sets the value. Returns whether it has changed; an equal value wakes no receiver.
    pub fn set(&self, value: T) -> bool
    where
        T: PartialEq,
    {
        self.update(|_| value)
    }

    /// Changes the value in one step. Returns whether it has changed; an equal value wakes no receiver.
    pub fn update(&self, change: impl FnOnce(&T) -> T) -> bool
    where
        T: PartialEq,
    {
        self.0.send_if_modified(|current| {
            let value = change(current);
            let modified = *current != value;
            *current = value;
            modified
        })
    }

    /// A receiver of changes.
    pub fn changes(&self) -> watch::Receiver<T> {
        self.0.subscribe()
    }
}

impl<T> From<T> for Live<T> {
    fn from(value: T) -> Self {
        Live(Arc::new(watch::Sender::new(value)))
    }
}

impl<T: fmt::Debug> fmt::Debug for Live<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.borrow().fmt(f)
    }
}
