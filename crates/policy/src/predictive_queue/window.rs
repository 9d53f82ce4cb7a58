//! How much of the queue's front a pass compares.

/// Jobs that are compared unless it is said otherwise.
pub const DEFAULT: usize = 500;
/// Jobs that are compared at most. Behind so many that cannot start others wait, though they could.
pub const MAX: usize = 1_000;

/// How many jobs are compared first by a pass that has room for so many: as many as it is said, and no fewer than four times the room.
pub fn first(said: usize, room: usize) -> usize {
    said.max(room.saturating_mul(4)).clamp(1, MAX)
}

/// How many are compared next, if none of so many can start.
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
