//! Reads of few rows of a range, at many places: for example of the first row of each group of rows. A range per group costs more than the row.

use bytes::Bytes;

use crate::key::successor;
use crate::{KeyValue, RangeRead, Result};

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

/// The rest of a walk over `[begin, end)`.
pub(crate) struct Rest {
    pub begin: Bytes,
    pub end: Bytes,
    pub reverse: bool,
}

impl Rest {
    pub fn is_empty(&self) -> bool {
        self.begin >= self.end
    }

    /// Goes on behind the row `key`.
    pub fn pass(&mut self, key: &Bytes) {
        match self.reverse {
            true => self.end = key.clone(),
            false => self.begin = successor(key),
        }
    }

    /// Goes on at `to`, if that is ahead.
    pub fn seek(&mut self, to: &[u8]) {
        match self.reverse {
            true if to < &*self.end => self.end = Bytes::copy_from_slice(to),
            false if to > &*self.begin => self.begin = Bytes::copy_from_slice(to),
            _ => {}
        }
    }

    pub fn read(&self, limit: usize) -> RangeRead {
        RangeRead { begin: self.begin.clone(), end: self.end.clone(), limit, reverse: self.reverse }
    }

    /// Shows rows of a [read](Self::read), until one of them is the last of the walk, or the walk goes on behind them. Returns whether there is
    /// a rest.
    pub fn visit(&mut self, rows: Vec<KeyValue>, limit: usize, visit: &mut Visit<'_>) -> Result<bool> {
        let is_all = rows.len() < limit;
        let mut to = Vec::new();
        for (key, value) in rows {
            let is_ahead = if self.reverse { key < self.end } else { key >= self.begin };
            if !is_ahead {
                continue;
            }
            let step = visit(&key, &value, &mut to)?;
            self.pass(&key);
            match step {
                Step::Next => {}
                Step::Seek => self.seek(&to),
                Step::End => return Ok(false),
            }
        }
        Ok(!is_all && !self.is_empty())
    }
}
