//! An error in a catalogue, with its place.

/// An error in a catalogue: its place, what is wrong, and how to correct it.
///
/// It is one line: `catalogue.toml:12: jobs.cluster.tasks.start.nod: there is no such level; the levels are …`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {place}{}{problem}; {fix}", if place.is_empty() { "" } else { ": " })]
pub struct Wrong {
    /// The file's name, as given by the caller.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The member: `jobs.cluster.tasks.start.node[1].exclusive`. Empty if the file could not be parsed that far.
    pub place: String,
    /// What is wrong.
    pub problem: String,
    /// How to correct it.
    pub fix: String,
}
