//! What is wrong in a catalogue, and where.

/// Something that a catalogue cannot say: where it stands, what is wrong, and what would be right.
///
/// It is one line: `catalogue.toml:12: jobs.cluster.operations.start.nod: there is no such level; the levels are …`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {place}{}{problem}; {fix}", if place.is_empty() { "" } else { ": " })]
pub struct Wrong {
    /// The file, as the caller called it.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The member: `jobs.cluster.operations.start.node[1].exclusive`. Empty if the file could not be read that far.
    pub place: String,
    /// What is wrong.
    pub problem: String,
    /// What would be right.
    pub fix: String,
}
