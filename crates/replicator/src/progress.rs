//! The progress of a run: which batches are done, and the sequence up to which every batch is.
//!
//! Batches overlap and end in any order, but a checkpoint may only name a sequence up to which *every* batch is done. A batch
//! of which something could not be read ends as well, but no sequence from it on is named.

use std::collections::VecDeque;

use crate::seq::Seq;

/// The batches in flight, in the order of the changes feed.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The oldest batch first.
    batches: VecDeque<Entry>,
    /// The number of `batches[0]`.
    first: u64,
    /// Every change up to this sequence is done.
    through: Option<Seq>,
    /// The number of changes of all batches that have ended, up to the first one that has not.
    changes: u64,
    /// An incomplete batch has ended, so `through` stays.
    held: bool,
}

#[derive(Debug)]
struct Entry {
    end: Seq,
    changes: u64,
    /// `Some` at its end: whether everything of it was copied.
    ended: Option<bool>,
}

impl Progress {
    /// Begins batch `number`, which has `changes` changes and ends at `end`.
    ///
    /// # Panics
    /// If it does not follow the batch that began last: a checkpoint could then pass changes that were never copied.
    pub fn begin(&mut self, number: u64, end: Seq, changes: u64) {
        let next = self.first + self.batches.len() as u64;
        assert_eq!(number, next, "batches begin in the order of the feed");
        self.batches.push_back(Entry { end, changes, ended: None });
    }

    /// Batch `number` has ended. `complete`: everything of it was copied. Otherwise, [`Progress::through`] never passes it.
    pub fn ended(&mut self, number: u64, complete: bool) {
        let index = usize::try_from(number - self.first).expect("a batch in flight");
        self.batches[index].ended = Some(complete);
        while let Some(complete) = self.batches.front().and_then(|entry| entry.ended) {
            let entry = self.batches.pop_front().expect("there is a front");
            self.first += 1;
            self.changes += entry.changes;
            self.held |= !complete;
            if !self.held {
                self.through = Some(entry.end);
            }
        }
    }

    /// Nothing is in flight, and the feed has ended at `last`.
    pub fn finish(&mut self, last: Seq) {
        debug_assert!(self.batches.is_empty(), "the feed has ended and all batches are done");
        if !self.held {
            self.through = Some(last);
        }
    }

    /// The number of changes that this run has done, without a gap.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether more is done than the last checkpoint records.
    pub fn is_beyond(&self, checkpointed: &Option<Seq>) -> bool {
        self.through.is_some() && self.through != *checkpointed
    }

    /// Every change up to this sequence is done; `None` if this run has done none.
    pub fn through(&self) -> Option<&Seq> {
        self.through.as_ref()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn seq(number: u64) -> Seq {
        Seq::from(&json!(number))
    }

    #[test]
    fn a_batch_that_is_not_done_holds_back_those_after_it() {
        let mut progress = Progress::default();
        for number in 0..3 {
            progress.begin(number, seq(number + 1), 1);
        }
        progress.ended(1, true);
        progress.ended(2, true);
        assert_eq!(progress.through(), None);
        progress.ended(0, true);
        assert_eq!(progress.through(), Some(&seq(3)));
    }

    #[test]
    fn nothing_from_an_incomplete_batch_on_counts_as_through() {
        let mut progress = Progress::default();
        for number in 0..4 {
            progress.begin(number, seq(number + 1), 1);
        }
        progress.ended(2, false);
        progress.ended(3, true);
        assert_eq!(progress.through(), None);
        progress.ended(1, true);
        progress.ended(0, true);
        assert_eq!((progress.through(), progress.changes()), (Some(&seq(2)), 4));
        progress.begin(4, seq(5), 1);
        progress.ended(4, true);
        progress.finish(seq(9));
        assert_eq!((progress.through(), progress.batches.len()), (Some(&seq(2)), 0));
    }

    #[test]
    #[should_panic(expected = "batches begin in the order of the feed")]
    fn a_batch_that_has_overtaken_another_does_not_begin() {
        let mut progress = Progress::default();
        progress.begin(1, seq(2), 1);
    }

    proptest! {
        #[test]
        fn prop_through_is_the_end_of_the_longest_done_prefix(order in Just((0..20u64).collect::<Vec<_>>()).prop_shuffle()) {
            let mut progress = Progress::default();
            for number in 0..20 {
                progress.begin(number, seq(number), 1);
            }
            let mut done = [false; 20];
            for number in order {
                progress.ended(number, true);
                done[number as usize] = true;
                let prefix = done.iter().take_while(|done| **done).count();
                let expected = prefix.checked_sub(1).map(|last| seq(last as u64));
                prop_assert_eq!(progress.through(), expected.as_ref());
                prop_assert_eq!(progress.changes(), prefix as u64);
            }
        }
    }
}
