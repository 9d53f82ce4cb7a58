//! How many jobs at the head of the queue a pass compares.

/// The default window.
pub const DEFAULT: usize = 500;
/// The largest window. If none of so many jobs can start, a worker searches the rest of the queue.
pub const MAX: usize = 1_000;

/// The first window of a pass: the configured one, and at least four times the room.
pub fn first(configured: usize, room: usize) -> usize {
    configured.max(room.saturating_mul(4)).clamp(1, MAX)
}

/// The next window, if no job of this one can start.
pub fn wider(window: usize) -> Option<usize> {
    (window < MAX).then(|| window.saturating_mul(4).min(MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_four_times_the_room_within_bounds() {
        assert_eq!([0, 1, 16, 17, 500].map(|room| first(64, room)), [64, 64, 64, 68, MAX]);
        assert_eq!([first(0, 0), first(5_000, 1)], [1, MAX]);
    }

    #[test]
    fn a_window_grows_fourfold_up_to_a_bound() {
        assert_eq!(
            [1, 64, 250, 500, 999, MAX].map(wider),
            [4, 256, MAX, MAX, MAX, 0].map(|to| Some(to).filter(|to| *to > 0))
        );
    }
}
