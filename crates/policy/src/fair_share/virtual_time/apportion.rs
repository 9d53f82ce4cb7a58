//! Divides free slots among tenants with waiting jobs. Each slot goes to the tenant whose next job is at the lowest
//! position.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::rotation::Float;

/// A tenant with waiting jobs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TenantTurn {
    /// The position of its next job: [`Ledger::next`](super::Ledger::next).
    pub next: f64,
    /// The distance between the positions of two consecutive jobs: expected cost divided by shares.
    pub step: f64,
}

/// How many of `picks` slots each candidate gets, if all have enough jobs. Of candidates at the same position, the
/// first one comes first.
pub fn apportion(candidates: &[TenantTurn], picks: usize) -> Vec<usize> {
    let mut taken = vec![0; candidates.len()];
    for index in sequence(candidates, |_| usize::MAX).take(picks) {
        taken[index] += 1;
    }
    taken
}

/// The order of the candidates' jobs. Each entry is a candidate's index, and stands for the first job that this
/// candidate has left. `jobs` is the number of jobs of each candidate.
pub fn order(candidates: &[TenantTurn], jobs: &[usize]) -> Vec<usize> {
    sequence(candidates, |index| jobs.get(index).copied().unwrap_or(0)).collect()
}

/// The first `picks` entries of [`order`]. Use `usize::MAX` for a candidate that never runs out of jobs.
pub fn first(candidates: &[TenantTurn], jobs: &[usize], picks: usize) -> Vec<usize> {
    sequence(candidates, |index| jobs.get(index).copied().unwrap_or(0)).take(picks).collect()
}

fn sequence(candidates: &[TenantTurn], jobs: impl Fn(usize) -> usize) -> impl Iterator<Item = usize> {
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
