//! Which instants a schedule fires whose time has come.
//!
//! *Model.* The instants from the next one until now are of two kinds: those of the last minute are on time, and each of them fires. Older ones were missed,
//! as no server ran: what happens to them is what the schedule states ([`Missed`]). A server looks each second, so a minute leaves room for a store
//! that is slow, or away for a moment.

use turnwise_calendar::{Calendar, MAX_DATES};

use super::row::Missed;

/// How late an instant may fire as if it were on time, in µs.
pub const GRACE_US: i64 = 60_000_000;
/// The most instants on time: all of a list of dates may be within a minute. Other calendars have at most one each second.
const MAX_ON_TIME: usize = MAX_DATES;

/// What a schedule does now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The latest instant that does not fire.
    pub dropped: Option<i64>,
    /// The instants that fire, in order.
    pub fires: Vec<i64>,
}

/// Whether an instant is too late to fire as if it were on time.
pub(crate) fn is_late(at_us: i64, now_us: i64) -> bool {
    at_us < now_us.saturating_sub(GRACE_US)
}

/// What a schedule does at a time that is not before its next instant.
pub(crate) fn plan(calendar: &Calendar, missed: Missed, next_us: i64, now_us: i64) -> Plan {
    let on_time_us = now_us.saturating_sub(GRACE_US);
    let after = |at_us: i64| calendar.next(at_us).map(|fire| fire.at_us).filter(|at_us| *at_us <= now_us);
    if next_us >= on_time_us {
        let fires = std::iter::successors(Some(next_us), |at_us| after(*at_us)).take(MAX_ON_TIME).collect();
        return Plan { dropped: None, fires };
    }
    // The last instant from the next one on that is not after a time.
    let last = |until_us: i64| match calendar.last(next_us, until_us) {
        Some(fire) => Some(fire.at_us),
        None => (next_us <= until_us).then_some(next_us),
    };
    let most = match missed {
        Missed::One => 1,
        Missed::All { most } => most.max(1),
        Missed::Skip => {
            let first = last(on_time_us.saturating_sub(1)).and_then(after);
            let fires = std::iter::successors(first, |at_us| after(*at_us)).take(MAX_ON_TIME).collect();
            return Plan { dropped: last(on_time_us.saturating_sub(1)), fires };
        }
    };
    let mut fires = Vec::new();
    let mut until_us = now_us;
    while fires.len() < most as usize
        && let Some(at_us) = last(until_us)
    {
        fires.push(at_us);
        until_us = at_us.saturating_sub(1);
    }
    fires.reverse();
    Plan { dropped: last(until_us), fires }
}

#[cfg(test)]
mod tests {
    use turnwise_calendar::When;

    use super::*;

    const MINUTE: i64 = 60_000_000;

    fn every(minutes: i64) -> Calendar {
        Calendar {
            when: When::Every { every_us: minutes * MINUTE, offset_us: 0 },
            from_us: None,
            until_us: None,
        }
    }

    fn planned(missed: Missed, next: i64, now_us: i64) -> (Option<i64>, Vec<i64>) {
        let Plan { dropped, fires } = plan(&every(1), missed, next * MINUTE, now_us);
        assert!(dropped.into_iter().chain(fires.iter().copied()).all(|at_us| at_us % MINUTE == 0));
        (dropped.map(|at_us| at_us / MINUTE), fires.into_iter().map(|at_us| at_us / MINUTE).collect())
    }

    #[test]
    fn what_is_on_time_fires_whatever_the_schedule_states_of_missed_ones() {
        for missed in [Missed::One, Missed::Skip, Missed::All { most: 2 }] {
            assert_eq!(planned(missed, 100, 100 * MINUTE), (None, vec![100]));
            assert_eq!(planned(missed, 100, 101 * MINUTE), (None, vec![100, 101]), "a minute late");
        }
    }

    #[test]
    fn missed_instants_are_one_none_or_the_latest() {
        let now_us = 200 * MINUTE + 5;
        assert_eq!(planned(Missed::One, 100, now_us), (Some(199), vec![200]));
        assert_eq!(planned(Missed::Skip, 100, now_us), (Some(199), vec![200]));
        assert_eq!(planned(Missed::All { most: 3 }, 100, now_us), (Some(197), vec![198, 199, 200]));
        assert_eq!(planned(Missed::All { most: 100 }, 190, now_us), (None, (190..=200).collect()));
        let lone = Calendar { when: When::Dates(vec![100 * MINUTE]), from_us: None, until_us: None };
        for (missed, dropped, fires) in
            [(Missed::One, None, vec![100 * MINUTE]), (Missed::Skip, Some(100 * MINUTE), vec![])]
        {
            assert_eq!(plan(&lone, missed, 100 * MINUTE, now_us), Plan { dropped, fires });
        }
    }
}
