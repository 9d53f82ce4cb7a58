//! The parts of the test that can be left out.

/// A part of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Webhooks to healthy, slow, silent, dead and flaky receivers.
    Webhooks,
    /// Bulk operations with patterns and long numbers.
    Bulk,
    /// Limits of requests per identity and of waiting jobs per tenant, and those who exceed them.
    Limits,
    /// Gateways that cut, lose, refuse and compress answers, between all clients and workers and the nodes.
    Gateways,
    /// Request bodies that are compressed.
    Gzip,
    /// `turnwise jobs wait`, `turnwise events --follow` and the Python worker of the examples, behind the gateways.
    Waits,
    /// Schedules, unique keys, groups, rates, and graphs whose jobs hand on their results.
    Features,
}

impl Part {
    /// All parts.
    pub const ALL: [Part; 7] =
        [Part::Webhooks, Part::Bulk, Part::Limits, Part::Gateways, Part::Gzip, Part::Waits, Part::Features];

    /// The part with this name.
    ///
    /// # Errors
    /// The names that there are.
    pub fn named(name: &str) -> Result<Part, String> {
        let known = Part::ALL.into_iter().find(|part| format!("{part:?}").eq_ignore_ascii_case(name));
        known.ok_or_else(|| format!("there is no part {name}; there are {:?}", Part::ALL))
    }
}
