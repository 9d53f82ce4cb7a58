//! The names of the policies that can be simulated.

use serde::{Deserialize, Serialize};

/// Prints and parses the names of a choice.
macro_rules! named {
    ($choice:ident, $unknown:literal) => {
        impl std::fmt::Display for $choice {
            fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.pad(self.name())
            }
        }

        impl std::str::FromStr for $choice {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = $choice::ALL.into_iter().find(|choice| choice.name() == text);
                found.ok_or_else(|| format!($unknown, text, $choice::ALL.map($choice::name).join(", ")))
            }
        }
    };
}
pub(crate) use named;

/// The policy that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Run time divided by shares, per tenant: the default of `[replicator] fairness`.
    #[default]
    VirtualTime,
    /// CouchDB's fair-share scheduling (RFC 017) in exact arithmetic: the other choice.
    Rfc,
    /// CouchDB's fair-share scheduling with integers, as in CouchDB.
    RfcWhole,
    /// First in, first out; continuous jobs keep their slots.
    Fifo,
    /// CouchDB's older rotation: the longest running jobs stop for the longest waiting ones, whatever their tenants
    /// are.
    RoundRobin,
}

impl Policy {
    /// All policies, the default first.
    pub const ALL: [Policy; 5] =
        [Policy::VirtualTime, Policy::Rfc, Policy::RfcWhole, Policy::RoundRobin, Policy::Fifo];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::VirtualTime => "virtual_time",
            Policy::Rfc => "rfc",
            Policy::RfcWhole => "rfc_whole",
            Policy::Fifo => "fifo",
            Policy::RoundRobin => "round_robin",
        }
    }
}

named!(Policy, "there is no policy `{}`; there are {}");
