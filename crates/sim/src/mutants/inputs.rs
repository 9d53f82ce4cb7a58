//! Mistakes about results that are handed on, and about the wait for a rate.

use super::Mutant;

/// Mistakes about results that are handed on, and about the wait for a rate. They show only in worlds where not all jobs may start.
pub const INPUT_MUTANTS: &[Mutant] = &[
    Mutant {
        name: "input_result_removed_early",
        file: "crates/queue/src/ended.rs",
        find: "            Need::Yes => drop(behind.insert(*partition, successor(key))),\n",
        replace: "            Need::Yes => {\n                behind.insert(*partition, successor(key));\n                erase(tx, keys, &job)?;\n            }\n",
        why: "The retention removes a result for which a job waits.",
    },
    Mutant {
        name: "followers_row_forgotten",
        file: "crates/queue/src/followers.rs",
        find: "            tx.set(keys.follower((job_type, id), &job.job_type, &job.id), Bytes::new())?;\n",
        replace: "",
        why: "The retention does not know that a job waits for a result.",
    },
    Mutant {
        name: "inputs_of_other_tenants",
        file: "crates/queue/src/followers.rs",
        find: "        let other = other.filter(|other| other.tenant == job.tenant);\n",
        replace: "",
        why: "A job gets the result of another tenant's job.",
    },
    Mutant {
        name: "result_of_the_run_before",
        file: "crates/queue/src/jobs.rs",
        find: "    output::clear_result(tx, keys, job)?;\n    job.begin(now_us);\n",
        replace: "    job.begin(now_us);\n",
        why: "A job gets an old result of a job that was added again.",
    },
    Mutant {
        name: "rate_mark_lost",
        file: "crates/queue/src/concurrency.rs",
        find: "        Some((rate, at_us)) => mark_at(tx, keys, job_type, &limit.bucket, (*at_us, rate.per_us()))?,\n",
        replace: "        Some((rate, at_us)) if *at_us < 0 => mark_at(tx, keys, job_type, &limit.bucket, (*at_us, rate.per_us()))?,\n        Some(_) => {}\n",
        why: "No pass returns a job that waits for a rate to the queue.",
    },
    Mutant {
        name: "rate_wake_lost",
        file: "crates/worker/src/pass/mod.rs",
        find: "delayed.next_due_us.into_iter().chain(held_back.next_us).min();",
        replace: "delayed.next_due_us.into_iter().min();",
        why: "No worker wakes when a rate has a place.",
    },
];
