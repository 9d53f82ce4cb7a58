//! Reads of few rows of a range, at many places: for example of the first row of each group of rows. A range per group costs more than the row.

use crate::Result;

/// Where a walk goes on after a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// At the next row.
    Next,
    /// At the key in the buffer: the first row from there on, or backwards the last row before it. It must not be behind the walk.
    Seek,
    /// Nowhere.
    End,
}

/// Is shown a row of a walk, its key and its value, and a buffer for the key of [`Step::Seek`]. It may be called under a lock, so it must be
/// quick.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8], &mut Vec<u8>) -> Result<Step> + Send + 'a;
