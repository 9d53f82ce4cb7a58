//! Mistakes that the simulation must catch: each is one that a change could make, and that no compiler would see.
//!
//! `find` occurs exactly once in its file; a test holds the list to the sources.

/// One mistake.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// The file, from the root of the repository.
    pub file: &'static str,
    /// What is replaced.
    pub find: &'static str,
    /// By what.
    pub replace: &'static str,
    /// What it breaks.
    pub why: &'static str,
}

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "end_without_claim_check",
        file: "crates/queue/src/claims.rs",
        find: "    if !is_held(&job, claim) {\n",
        replace: "    if job.state != State::Running {\n",
        why: "A worker that lost its claim ends the run of whoever holds the job now.",
    },
    Mutant {
        name: "update_without_claim_check",
        file: "crates/queue/src/claims.rs",
        find: "    if active.claim != claim.number {\n        return Err(Error::Halt);\n    }\n    active.info",
        replace: "    active.info",
        why: "A worker reports for a later claim of its own.",
    },
    Mutant {
        name: "no_membership_check",
        file: "crates/queue/src/claims.rs",
        find: "        None => Err(Error::Halt),\n    }\n}",
        replace: "        None => Ok(()),\n    }\n}",
        why: "A worker that was removed goes on to claim and to write.",
    },
];
