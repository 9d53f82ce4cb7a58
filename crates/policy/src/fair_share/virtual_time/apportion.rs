//! Free slots divided among tenants that wait: each to whoever's next job stands lowest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::rotation::Float;

/// A tenant with jobs that wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Where its next job stands: [`Ledger::next`](super::Ledger::next).
    pub next: f64,
    /// How much further each one after that: expected cost divided by shares.
    pub step: f64,
}

/// How many of `picks` slots each candidate gets, if all of them have jobs enough. Of equals the first one is first.
pub fn apportion(candidates: &[Candidate], picks: usize) -> Vec<usize> {
    let mut taken = vec![0; candidates.len()];
    for index in sequence(candidates, |_| usize::MAX).take(picks) {
        taken[index] += 1;
    }
    taken
}

/// In which order the candidates' jobs come: each place is a candidate, which takes its own first job that is left.
/// `jobs` says how many each of them has.
pub fn order(candidates: &[Candidate], jobs: &[usize]) -> Vec<usize> {
    sequence(candidates, |index| jobs.get(index).copied().unwrap_or(0)).collect()
}

/// The first `picks` places of [`order`]; `usize::MAX` jobs are more than anyone needs.
pub fn first(candidates: &[Candidate], jobs: &[usize], picks: usize) -> Vec<usize> {
    sequence(candidates, |index| jobs.get(index).copied().unwrap_or(0)).take(picks).collect()
}

fn sequence(candidates: &[Candidate], jobs: impl Fn(usize) -> usize) -> impl Iterator<Item = usize> {
    let with_jobs = candidates.iter().enumerate().filter(|(index, _)| jobs(*index) > 0);
    let mut heap: BinaryHeap<_> =
        with_jobs.map(|(index, tenant)| Reverse((Float(tenant.next), index, 1))).collect();
    std::iter::from_fn(move || {
        let Reverse((Float(next), index, taken)) = heap.pop()?;
        if taken < jobs(index) {
            heap.push(Reverse((Float(next + candidates[index].step.max(0.0)), index, taken + 1)));
        }
        Some(index)
    })
}
