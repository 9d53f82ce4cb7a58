//! The names of the policies that can be simulated.

/// Defines a choice with the name of each value. `$unknown` is the message about another name.
macro_rules! named {
    ($(#[$about:meta])* pub enum $choice:ident ($unknown:literal) {
        $($(#[$doc:meta])* $value:ident = $name:tt,)+
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $choice {
            $($(#[$doc])* #[serde(rename = $name)] $value,)+
        }

        impl $choice {
            /// All of them.
            pub const ALL: [$choice; [$($name),+].len()] = [$($choice::$value),+];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $($choice::$value => $name,)+
                }
            }
        }

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

named! {
    /// The policy that decides.
    #[derive(Default)]
    pub enum Policy ("there is no policy `{}`; there are {}") {
        /// Run time divided by shares, per tenant: the default of `[replicator] fairness`.
        #[default]
        VirtualTime = "virtual_time",
        /// CouchDB's fair-share scheduling (RFC 017) in exact arithmetic: the other choice.
        Rfc = "rfc",
        /// CouchDB's fair-share scheduling with integers, as in CouchDB.
        RfcWhole = "rfc_whole",
        /// CouchDB's older rotation: the longest running jobs stop for the longest waiting ones, whatever their tenants
        /// are.
        RoundRobin = "round_robin",
        /// First in, first out; continuous jobs keep their slots.
        Fifo = "fifo",
    }
}
