//! How much a tenant is entitled to, relative to other tenants.
//!
//! A tenant with 200 shares gets twice as much as a tenant with 100, while both have waiting jobs. Tenants need no
//! configuration: a tenant without configured shares has [`Shares::DEFAULT`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The tenants whose shares differ from the default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shares(BTreeMap<String, u32>);

impl Shares {
    /// The shares of a tenant without configured shares.
    pub const DEFAULT: u32 = 100;
    /// The allowed shares. With 0, a tenant's jobs would never run; cancel them instead.
    pub const RANGE: RangeInclusive<u32> = 1..=1000;

    /// A tenant's shares.
    pub fn of(&self, tenant: &str) -> u32 {
        self.0.get(tenant).copied().unwrap_or(Self::DEFAULT)
    }

    /// Sets a tenant's shares.
    ///
    /// # Errors
    /// What is wrong with shares outside [`Shares::RANGE`]; nothing has changed.
    pub fn set(&mut self, tenant: impl Into<String>, shares: u32) -> Result<(), String> {
        if !Self::RANGE.contains(&shares) {
            let (least, most) = (Self::RANGE.start(), Self::RANGE.end());
            return Err(format!("shares must be a whole number from {least} to {most}, not {shares}"));
        }
        self.0.insert(tenant.into(), shares);
        Ok(())
    }

    /// Removes a tenant's configured shares, and returns them if there were any. The tenant has the default again.
    pub fn remove(&mut self, tenant: &str) -> Option<u32> {
        self.0.remove(tenant)
    }

    /// The tenants with configured shares, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().map(|(tenant, shares)| (tenant.as_str(), *shares))
    }
}

/// If a tenant occurs twice, its last entry counts. Shares outside [`Shares::RANGE`] become the nearest ones inside.
/// Use [`Shares::set`] where a user must learn about such shares.
impl FromIterator<(String, u32)> for Shares {
    fn from_iter<I: IntoIterator<Item = (String, u32)>>(named: I) -> Self {
        let into_range = |shares: u32| shares.clamp(*Self::RANGE.start(), *Self::RANGE.end());
        Shares(named.into_iter().map(|(tenant, shares)| (tenant, into_range(shares))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_without_configured_shares_has_the_default() {
        let mut shares: Shares = [("high".to_owned(), 200), ("low".to_owned(), 50)].into_iter().collect();
        assert_eq!((shares.of("high"), shares.of("low"), shares.of("other")), (200, 50, 100));
        assert_eq!(shares.remove("low"), Some(50));
        assert_eq!(shares.of("low"), 100);
        assert_eq!(shares.iter().collect::<Vec<_>>(), [("high", 200)]);
    }

    #[test]
    fn bad_shares_are_refused_and_the_old_ones_stay() {
        let mut shares = Shares::default();
        shares.set("a", 1_000).unwrap();
        for bad in [0, 1_001, u32::MAX] {
            let error = shares.set("a", bad).unwrap_err();
            assert_eq!(error, format!("shares must be a whole number from 1 to 1000, not {bad}"));
        }
        assert_eq!(shares.of("a"), 1_000);
        let clamped: Shares = [("none".to_owned(), 0), ("all".to_owned(), u32::MAX)].into_iter().collect();
        assert_eq!((clamped.of("none"), clamped.of("all")), (1, 1_000));
    }
}
