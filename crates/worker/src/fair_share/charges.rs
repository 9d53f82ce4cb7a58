//! The charges of a tenant in a ledger: what its rows state, for a worker's passes and for `explain`.
//!
//! *Model.* [`TenantCharges`] adds up the rows of a tenant, one per charger. The ledger first advances to the virtual time of all rows. Then
//! each tenant's charges are loaded into it. A tenant with waiting jobs resumes after that ([`Ledger::resume`]), because its start tag
//! includes what is in flight.
//!
//! *Whose estimates.* A worker replaces the estimates of other chargers by its own, so it reads tags without them
//! ([`Charged::certain_tag`]). `explain` has no estimates of its own, so it reads tags with them.

use turnwise_policy::fair_share::virtual_time::Ledger;
use turnwise_queue::usage::Charged;

/// What the chargers of a type state about one of its tenants, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TenantCharges {
    /// The run time of its jobs, ever, in µs.
    pub service_us: u64,
    /// Its virtual time: the highest that a charger has written. `None` if no charger has recorded the tenant yet.
    pub tag: Option<f64>,
    /// The remaining expected cost of its running jobs, in µs.
    pub in_flight_us: f64,
    /// Its running jobs.
    pub running: usize,
}

impl TenantCharges {
    /// Adds the row of a charger, with the virtual time `tag` of that row. The jobs of a charger that is no longer a member now run
    /// elsewhere.
    pub fn add(&mut self, charged: &Charged, tag: f64, is_member: bool) {
        self.service_us = self.service_us.saturating_add(charged.service_us);
        self.tag = Some(self.tag.unwrap_or(0.0).max(tag));
        if is_member {
            self.in_flight_us += charged.in_flight_us;
            let running = usize::try_from(charged.running).unwrap_or(usize::MAX);
            self.running = self.running.saturating_add(running);
        }
    }

    /// Puts the charges into a ledger, as those of chargers elsewhere. Returns whether less is in flight than before. A tenant that no
    /// charger has recorded has no deficit.
    pub fn load(&self, ledger: &mut Ledger, tenant: &str) -> bool {
        ledger.load(tenant, self.tag.unwrap_or(ledger.now()));
        ledger.in_flight_elsewhere(tenant, self.in_flight_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_tenant_resumes_with_what_is_in_flight() {
        let row =
            |in_flight_us, running| Charged { in_flight_us, running, service_us: 5, ..Charged::default() };
        let mut charges = TenantCharges::default();
        charges.add(&row(80.0, 2), 10.0, true);
        charges.add(&row(50.0, 1), 20.0, false);
        let sum = TenantCharges { service_us: 10, tag: Some(20.0), in_flight_us: 80.0, running: 2 };
        assert_eq!(charges, sum, "a charger that is gone has no running jobs");
        let tag_at = |now: f64| {
            let mut ledger = Ledger::default();
            ledger.advance_to(now);
            charges.load(&mut ledger, "t");
            ledger.resume("t", 1, 30.0);
            ledger.tag("t", 1)
        };
        assert_eq!(tag_at(130.0), 20.0, "its start tag is one job behind");
        assert_eq!(tag_at(150.0), 40.0, "a deficit is at most one job");
    }

    #[test]
    fn a_tenant_that_no_charger_has_recorded_has_no_deficit() {
        let mut ledger = Ledger::default();
        ledger.advance_to(7.0);
        assert!(!TenantCharges::default().load(&mut ledger, "t"));
        assert_eq!(ledger.tag("t", 1), 7.0);
    }
}
