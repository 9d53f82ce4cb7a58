//! Mistakes about edits and holds of jobs that wait, and about tasks.

use super::Mutant;

/// Mistakes about edits and holds of jobs that wait, and about tasks, for any world.
pub const EDIT_MUTANTS: &[Mutant] = &[
    Mutant {
        name: "released_before_its_time",
        file: "crates/queue/src/edit.rs",
        find: "        until_us if until_us > now_us => Place::Delayed { until_us },\n",
        replace: "        until_us if until_us == i64::MAX => Place::Delayed { until_us },\n",
        why: "A delayed job that was held starts before its time.",
    },
    Mutant {
        name: "held_job_is_freed_by_an_add",
        file: "crates/queue/src/jobs.rs",
        find: "        Place::Paused { .. } if job.held_by().is_some() && new.after.is_empty() => {\n            add_to_waiting(tx, keys, &mut job, new, now_us).await?\n        }\n        Place::Pending { .. } | Place::Crashing { .. } => {\n            add_to_waiting(tx, keys, &mut job, new, now_us).await?\n        }\n        _ => {\n            job.hold = job.holder();\n",
        replace: "        Place::Pending { .. } | Place::Crashing { .. } => {\n            add_to_waiting(tx, keys, &mut job, new, now_us).await?\n        }\n        _ => {\n",
        why: "A held job that is added again is not held any more.",
    },
    Mutant {
        name: "edited_start_time_forgotten",
        file: "crates/queue/src/edit.rs",
        find: "let later = start_us.filter(|start_us| *start_us > now_us);",
        replace: "let later = start_us.filter(|start_us| *start_us == i64::MAX);",
        why: "A job that an edit puts off starts at once.",
    },
    Mutant {
        name: "any_task_is_taken",
        file: "crates/queue/src/tasks.rs",
        find: "            None => 0,\n",
        replace: "            None => usize::MAX,\n",
        why: "A worker gets a job of a task that it does not know.",
    },
    Mutant {
        name: "task_cap_ignored",
        file: "crates/queue/src/tasks.rs",
        find: "Some(cap) => cap.saturating_sub(self.running.get(task).copied().unwrap_or(0)) as usize,",
        replace: "Some(cap) => cap.max(&u32::MAX).saturating_sub(self.running.get(task).copied().unwrap_or(0)) as usize,",
        why: "A worker gets more jobs of a task than it runs at the same time.",
    },
    Mutant {
        name: "jobs_of_tasks_forgotten",
        file: "crates/queue/src/concurrency.rs",
        find: "        if of_task == Some(0) {\n",
        replace: "        if of_task.is_some() {\n",
        why: "A job that a worker did not take is not offered to one that takes it.",
    },
];
