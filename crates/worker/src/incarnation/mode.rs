//! Modes: a quiet worker takes no new jobs, and one that drains also gives back the jobs that do not end by themselves.
//!
//! The worker learns its mode with each heartbeat, from a signal after a change, and from each pass that finds jobs. The last one
//! is in the transaction that would claim them, so the first two only make it faster.

use turnwise_queue::Mode;
use turnwise_queue::claims::StopCause;

use super::Incarnation;

impl Incarnation {
    /// Follows the mode that its row has.
    pub(super) fn learn_mode(&mut self, mode: Mode) {
        if mode != self.mode {
            tracing::info!(?mode, "its mode has changed");
            self.mode = mode;
        }
        if mode == Mode::Drain {
            self.give_back_endless();
        }
    }

    /// Gives back the jobs that do not end by themselves, so that they start elsewhere. They keep their places in the queue.
    fn give_back_endless(&mut self) {
        for running in
            self.running.values_mut().filter(|running| running.continuous && !running.is_stopping())
        {
            running.controls.stop_for(StopCause::Drain);
            self.fair.stops(&mut running.charges);
        }
    }
}
