//! How the slots that a job type needs are divided among workers whose slots follow the demand.
//!
//! *Problem.* Every node knows how many slots its type needs ([`demand`](crate::demand)). If each provided all of them, there would be as
//! many times too many as there are nodes.
//!
//! *Rule.* A worker keeps the slots of what it runs, and its lower bound. What is wanted beyond that goes, slot after slot, to the worker
//! with the smallest part of its upper bound. So workers that run nothing come first, and a large worker gets more than a small one.
//!
//! All workers that see the same numbers compute the same parts, and each takes its own. Their sum is what is wanted, unless the bounds, or
//! the running jobs, demand more or permit less. A worker whose slots are a plain number has two equal bounds.

/// A worker among which slots are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Its fewest slots.
    pub least: u64,
    /// Its most slots.
    pub most: u64,
    /// The number of jobs that it runs.
    pub running: u64,
}

impl Member {
    /// The slots that it has in any case.
    fn kept(&self) -> u64 {
        self.running.clamp(self.least, self.most.max(self.least))
    }
}

/// The steps in which the level is found: each halves an interval of floating-point numbers.
const HALVINGS: usize = 60;

/// The slots of each worker, in their order, when `wanted` slots are wanted. `O(workers²)` at most.
pub fn parts(wanted: u64, members: &[Member]) -> Vec<u64> {
    let at = |level: f64| -> Vec<u64> {
        let part = |member: &Member| {
            let part = (level * member.most as f64).floor() as u64;
            part.clamp(member.kept(), member.most.max(member.kept()))
        };
        members.iter().map(part).collect()
    };
    let sum = |parts: &[u64]| parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
    let (mut low, mut high) = (0.0, 1.0);
    let all = at(high);
    if sum(&all) <= wanted {
        return all;
    }
    for _ in 0..HALVINGS {
        let level = f64::midpoint(low, high);
        if sum(&at(level)) <= wanted { low = level } else { high = level }
    }
    let mut parts = at(low);
    // Fewer slots are left than there are workers: at the next level, each of some workers has one more.
    for _ in 0..members.len() {
        if sum(&parts) >= wanted {
            break;
        }
        let may_grow = members.iter().enumerate().filter(|(n, member)| parts[*n] < member.most);
        // Of equal ones, the first.
        let next = may_grow.min_by(|(n, one), (m, other)| {
            (parts[*n] + 1).saturating_mul(other.most).cmp(&(parts[*m] + 1).saturating_mul(one.most))
        });
        let Some((n, _)) = next else { break };
        parts[n] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members(of: &[(u64, u64, u64)]) -> Vec<Member> {
        of.iter()
            .map(|(least, most, running)| Member { least: *least, most: *most, running: *running })
            .collect()
    }

    #[test]
    fn a_single_worker_takes_what_is_wanted_within_its_bounds() {
        let alone = |wanted, running| parts(wanted, &members(&[(4, 64, running)]))[0];
        assert_eq!(
            [alone(0, 0), alone(4, 0), alone(20, 3), alone(64, 0), alone(900, 64)],
            [4, 4, 20, 64, 64]
        );
        // No running job loses its slot, and none above the bound counts.
        assert_eq!([alone(0, 9), alone(0, 70)], [9, 64]);
        assert_eq!(parts(7, &[]), [0; 0]);
    }

    #[test]
    fn nodes_share_what_is_wanted() {
        assert_eq!(parts(20, &members(&[(1, 64, 0), (1, 64, 0)])), [10, 10]);
        assert_eq!(parts(21, &members(&[(1, 64, 0), (1, 64, 0)])), [11, 10]);
        assert_eq!(parts(30, &members(&[(1, 64, 0), (1, 32, 0)])), [20, 10], "by their size");
        assert_eq!(parts(10, &members(&[(1, 64, 10), (1, 64, 0)])), [10, 1], "all run on one of them");
        assert_eq!(parts(10, &members(&[(1, 64, 5), (1, 64, 0)])), [5, 5], "the empty one takes the rest");
        assert_eq!(parts(20, &members(&[(8, 8, 2), (1, 64, 0)])), [8, 12], "beside a plain number");
        assert_eq!(parts(500, &members(&[(1, 64, 0), (1, 32, 0)])), [64, 32]);
    }

    proptest! {
        #[test]
        fn prop_the_sum_is_what_is_wanted_within_bounds_and_running_jobs(
            wanted in 0..2_000_u64,
            of in prop::collection::vec((1..20_u64, 0..500_u64, 0..600_u64), 1..12),
        ) {
            let members: Vec<Member> =
                of.iter().map(|(least, more, running)| Member { least: *least, most: least + more, running: *running }).collect();
            let parts = parts(wanted, &members);
            let mut sum = 0;
            for (member, part) in members.iter().zip(&parts) {
                prop_assert!((member.least..=member.most).contains(part));
                prop_assert!(*part >= member.running.min(member.most));
                sum += part;
            }
            let least: u64 = members.iter().map(Member::kept).sum();
            let most: u64 = members.iter().map(|member| member.most).sum();
            prop_assert_eq!(sum, wanted.clamp(least, most));
        }
    }
}
