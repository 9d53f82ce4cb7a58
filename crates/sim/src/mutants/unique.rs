//! Mistakes about unique keys.

use super::Mutant;

/// Mistakes about unique keys, for any world.
pub const UNIQUE_MUTANTS: &[Mutant] = &[
    Mutant {
        name: "unique_key_survives_its_claim",
        file: "crates/queue/src/transition.rs",
        find: "            unique_rows::stop_waiting(tx, keys, job)?;\n",
        replace: "",
        why: "A job that holds its key while it waits holds it while it runs: a change that comes then is lost.",
    },
    Mutant {
        name: "unique_key_survives_its_end",
        file: "crates/queue/src/transition.rs",
        find: "            unique_rows::release(tx, keys, job)?;\n",
        replace: "",
        why: "A job that has ended keeps others from being added.",
    },
    Mutant {
        name: "unique_key_survives_its_job",
        file: "crates/queue/src/jobs.rs",
        find: "    unique_rows::clear(tx, keys, job)?;\n",
        replace: "",
        why: "The key of a removed job keeps others from being added for ever.",
    },
    Mutant {
        name: "taken_key_is_free",
        file: "crates/queue/src/unique_rows.rs",
        find: "            if own != Some((&row.job_type, &row.id))\n",
        replace: "            if row.until_us.is_some() && own != Some((&row.job_type, &row.id))\n",
        why: "Two jobs hold one key.",
    },
    Mutant {
        name: "key_not_taken_again",
        file: "crates/queue/src/claims.rs",
        find: "        unique_rows::take_again(tx, keys, job, now_us).await?;\n",
        replace: "",
        why: "A job that is back in the queue after a crash does not have its key, which is free.",
    },
    Mutant {
        name: "period_survives_its_job",
        file: "crates/queue/src/jobs.rs",
        find: "    unique_rows::end_period(tx, keys, job).await?;\n",
        replace: "",
        why: "The key for a period of a job that a client removed keeps others from being added.",
    },
    Mutant {
        name: "period_never_ends",
        file: "crates/queue/src/unique_rows.rs",
        find: "row.until_us.is_none_or(|until_us| until_us > now_us) =>",
        replace: "row.until_us.is_none_or(|until_us| until_us > i64::MIN && now_us > i64::MIN) =>",
        why: "A key whose period is over keeps others from being added until its row is cleared.",
    },
    Mutant {
        name: "period_cut_short",
        file: "crates/queue/src/unique.rs",
        find: "keys.unique_over(now_us), limit",
        replace: "keys.unique_over(now_us.saturating_add(5_000_000)), limit",
        why: "A key is free before its period is over.",
    },
    Mutant {
        name: "replaced_without_options",
        file: "crates/queue/src/edit.rs",
        find: "        set_options(tx, keys, job, options)?;\n",
        replace: "        let _ = (set_options, options);\n",
        why: "An answer says that a job has the new options, and it runs with the old ones.",
    },
    Mutant {
        name: "run_after_this_forgotten",
        file: "crates/queue/src/unique.rs",
        find: "            jobs::add_to_run(tx, keys, job, &new, now_us).await?;\n",
        replace: "            let _ = new;\n",
        why: "An answer says that a job runs once more, and it does not.",
    },
];
