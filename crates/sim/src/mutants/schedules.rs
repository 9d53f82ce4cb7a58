//! Mistakes about schedules and groups.

use super::Mutant;

/// Mistakes about schedules and groups. They show only in worlds with schedules ([`crate::plan::SCHEDULES_FROM`]).
pub const SCHEDULE_MUTANTS: &[Mutant] = &[
    Mutant {
        name: "double_fire",
        file: "crates/queue/src/schedules/fire.rs",
        find: "    new.await_next(now_us);\n    for (n, at_us)",
        replace: "    new.await_next(next_us.saturating_sub(1));\n    for (n, at_us)",
        why: "A schedule fires the same instant again.",
    },
    Mutant {
        name: "lost_fire",
        file: "crates/queue/src/schedules/fire.rs",
        find: "    for (n, at_us) in fires.into_iter().enumerate() {\n        if n > 0 && (",
        replace: "    for (n, at_us) in fires.into_iter().take(1).enumerate() {\n        if n > 0 && (",
        why: "Of several instants that have come at the same time, a schedule fires the first one only.",
    },
    Mutant {
        name: "stale_row_fires",
        file: "crates/queue/src/schedules/fire.rs",
        find: ".filter(|schedule| schedule.next == Some(*at_us))",
        replace: "",
        why: "A node that looked a moment too early fires the next instant before its time.",
    },
    Mutant {
        name: "on_time_is_missed",
        file: "crates/queue/src/schedules/plan.rs",
        find: "    if next_us >= on_time_us {\n",
        replace: "    if next_us >= now_us {\n",
        why: "A schedule treats an instant as missed for which it is a second late.",
    },
    Mutant {
        name: "sleeps_through",
        file: "crates/worker/src/schedules.rs",
        find: "                            Some(next_us) => runtime.sleep_until(next_us).await,\n",
        replace: "                            Some(next_us) if next_us < 0 => runtime.sleep_until(next_us).await,\n                            Some(_) => std::future::pending().await,\n",
        why: "No schedule fires until a client changes one.",
    },
    Mutant {
        name: "group_calls_twice",
        file: "crates/queue/src/groups.rs",
        find: "    group.ended = Some(end.clone());\n",
        replace: "    group.ended = Some(end.clone()).filter(|_| group.callbacks.is_empty());\n",
        why: "The row of a group does not say that it has ended, so it ends again.",
    },
    Mutant {
        name: "group_calls_early",
        file: "crates/queue/src/groups.rs",
        find: "    if !group.open && counts.open == 0 {\n",
        replace: "    if !group.open && counts.open <= 1 {\n",
        why: "A group ends before the last of its jobs.",
    },
    Mutant {
        name: "group_end_is_lost",
        file: "crates/queue/src/group_counts.rs",
        find: "    add(tx, keys, job, member, sum, after != Field::Open)\n",
        replace: "    add(tx, keys, job, member, sum, after == Field::Failed)\n",
        why: "The end of a job does not mark its group, so no server looks whether it was the last one.",
    },
    Mutant {
        name: "group_forgets_removed_jobs",
        file: "crates/queue/src/transition.rs",
        find: "    group_counts::erase(tx, keys, job)?;\n",
        replace: "",
        why: "A job that is removed before its end stays open in its group, which never ends.",
    },
    Mutant {
        name: "groups_rest_after_an_outage",
        file: "crates/worker/src/groups.rs",
        find: ".clamp(PAUSE, LONGEST_PAUSE);",
        replace: ".max(PAUSE.min(LONGEST_PAUSE));",
        why: "After an outage of the store, groups end minutes after their last jobs.",
    },
];
