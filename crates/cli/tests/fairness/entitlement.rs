//! The slots that tenants are entitled to: max-min fairness, weighted by their shares.
//!
//! No tenant can use more slots than it has jobs. The slots that it leaves are divided among the other tenants by their shares.

/// A tenant, as the tests describe it.
#[derive(Debug, Clone, Copy)]
pub struct Tenant {
    pub jobs: u32,
    pub shares: u32,
}

/// The slots that each tenant is entitled to, as an average over time, so not necessarily whole.
pub fn entitled(slots: f64, tenants: &[Tenant]) -> Vec<f64> {
    let mut entitled = vec![None; tenants.len()];
    loop {
        let open = || (0..tenants.len()).filter(|n| entitled[*n].is_none());
        let given: f64 = entitled.iter().flatten().sum();
        let shares: f64 = open().map(|n| f64::from(tenants[n].shares)).sum();
        let per_share = (slots - given) / shares;
        let of = |n: usize| f64::from(tenants[n].shares) * per_share;
        let content: Vec<usize> = open().filter(|n| f64::from(tenants[*n].jobs) <= of(*n)).collect();
        if content.is_empty() {
            return (0..tenants.len()).map(|n| entitled[n].unwrap_or_else(|| of(n))).collect();
        }
        for n in content {
            entitled[n] = Some(f64::from(tenants[n].jobs));
        }
    }
}

#[test]
fn slots_that_one_tenant_leaves_are_divided_among_the_others() {
    let tenants = |of: &[(u32, u32)]| -> Vec<Tenant> {
        of.iter().map(|(jobs, shares)| Tenant { jobs: *jobs, shares: *shares }).collect()
    };
    assert_eq!(entitled(20.0, &tenants(&[(2, 100), (200, 100), (2_000, 100)])), [2.0, 9.0, 9.0]);
    assert_eq!(entitled(20.0, &tenants(&[(2, 100), (200, 100), (2_000, 300)])), [2.0, 4.5, 13.5]);
    // The second tenant has enough slots only because the first leaves some.
    assert_eq!(entitled(12.0, &tenants(&[(1, 100), (5, 100), (9, 100)])), [1.0, 5.0, 6.0]);
    assert_eq!(entitled(20.0, &tenants(&[(2, 100), (3, 100)])), [2.0, 3.0]);
}
