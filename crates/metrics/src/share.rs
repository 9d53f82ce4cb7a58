//! The share of the slots that each tenant is entitled to at this moment: the weighted max-min share.
//!
//! The slots are divided by shares among the tenants that have jobs. No tenant gets more slots than it has jobs, and what it
//! leaves is divided among the others in the same way. So there is a level λ, slots per share, with
//! `entitled(tenant) = min(jobs, shares · λ)`.

use turnwise_explain::types::OfType;

/// The level for tenants with these jobs and shares. Infinite if every tenant can have all that it wants.
#[allow(clippy::cast_precision_loss, reason = "a measure, of numbers far below 2^53")]
pub(super) fn level(slots: u64, tenants: &[(u64, u32)]) -> f64 {
    let mut by_ratio: Vec<(f64, f64)> =
        tenants.iter().map(|(jobs, shares)| (*jobs as f64, f64::from((*shares).max(1)))).collect();
    by_ratio.sort_by(|(jobs, shares), (others, other_shares)| {
        (jobs / shares).total_cmp(&(others / other_shares))
    });
    let (mut slots, mut shares) = (slots as f64, by_ratio.iter().map(|(_, shares)| shares).sum::<f64>());
    for (jobs, own) in by_ratio {
        let level = slots / shares;
        if jobs / own > level {
            return level;
        }
        (slots, shares) = (slots - jobs, shares - own);
    }
    f64::INFINITY
}

/// What a tenant is entitled to at a level, in slots.
#[allow(clippy::cast_precision_loss, reason = "a measure, of numbers far below 2^53")]
pub(super) fn entitled(level: f64, jobs: u64, shares: u32) -> f64 {
    (f64::from(shares.max(1)) * level).min(jobs as f64)
}

/// What each tenant of a type is entitled to now, in slots, in their order.
pub fn entitled_slots(of_type: &OfType) -> Vec<f64> {
    let wants: Vec<(u64, u32)> =
        of_type.tenants.iter().map(|of| (of.running + of.pending, of.shares)).collect();
    let level = level(u64::try_from(of_type.slots).unwrap_or(u64::MAX), &wants);
    wants.iter().map(|(jobs, shares)| entitled(level, *jobs, *shares)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tenant_leaves_is_divided_among_the_others_by_shares() {
        let tenants = [(1, 1), (100, 1), (100, 2)];
        let level = level(10, &tenants);
        assert_eq!(tenants.map(|(jobs, shares)| entitled(level, jobs, shares)), [1.0, 3.0, 6.0]);
        assert_eq!(super::level(10, &[(4, 1), (6, 3)]), f64::INFINITY);
        assert_eq!(entitled(f64::INFINITY, 4, 1), 4.0);
        assert_eq!(super::level(0, &[(4, 1)]), 0.0);
    }
}
