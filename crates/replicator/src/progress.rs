//! How far a run has come: which batches are done, and the sequence below which everything is.
//!
//! Batches overlap and end in any order, but a checkpoint may only name a sequence up to which *every* batch is done.

use std::collections::VecDeque;

use crate::seq::Seq;

/// The batches in flight, in the order of the changes feed.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The oldest batch first.
    batches: VecDeque<Entry>,
    /// The number of `batches[0]`.
    first: u64,
    /// Everything up to here is done.
    through: Option<Seq>,
    /// The changes up to there.
    changes: u64,
}

#[derive(Debug)]
struct Entry {
    end: Seq,
    changes: u64,
    done: bool,
}

impl Progress {
    /// A batch of so many changes that ends at `end` begins. Answers its number.
    pub fn begin(&mut self, end: Seq, changes: u64) -> u64 {
        self.batches.push_back(Entry { end, changes, done: false });
        self.first + self.batches.len() as u64 - 1
    }

    /// Batch `number` is done.
    pub fn done(&mut self, number: u64) {
        let index = usize::try_from(number - self.first).expect("a batch in flight");
        self.batches[index].done = true;
        while self.batches.front().is_some_and(|entry| entry.done) {
            let entry = self.batches.pop_front().expect("there is a front");
            self.first += 1;
            self.changes += entry.changes;
            self.through = Some(entry.end);
        }
    }

    /// Nothing is in flight and the feed has ended at `last`.
    pub fn finish(&mut self, last: Seq) {
        debug_assert!(self.batches.is_empty(), "the feed has ended and all batches are done");
        self.through = Some(last);
    }

    /// How many changes, all up to [`Progress::through`], this run has done.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether more is done than the last checkpoint says.
    pub fn is_beyond(&self, checkpointed: &Option<Seq>) -> bool {
        self.through.is_some() && self.through != *checkpointed
    }

    /// Everything up to here is done; `None` if nothing is, in this run.
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
        let numbers: Vec<u64> = (1..=3).map(|end| progress.begin(seq(end), 1)).collect();
        progress.done(numbers[1]);
        progress.done(numbers[2]);
        assert_eq!(progress.through(), None);
        progress.done(numbers[0]);
        assert_eq!(progress.through(), Some(&seq(3)));
    }

    proptest! {
        #[test]
        fn prop_through_is_the_end_of_the_longest_done_prefix(order in Just((0..20u64).collect::<Vec<_>>()).prop_shuffle()) {
            let mut progress = Progress::default();
            for end in 0..20 {
                prop_assert_eq!(progress.begin(seq(end), 1), end);
            }
            let mut done = [false; 20];
            for number in order {
                progress.done(number);
                done[number as usize] = true;
                let prefix = done.iter().take_while(|done| **done).count();
                let expected = prefix.checked_sub(1).map(|last| seq(last as u64));
                prop_assert_eq!(progress.through(), expected.as_ref());
                prop_assert_eq!(progress.changes(), prefix as u64);
            }
        }
    }
}
