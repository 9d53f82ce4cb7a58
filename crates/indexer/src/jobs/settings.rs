//! Which databases are indexed, and how.

use std::time::Duration;

use turnwise_identity::Patterns;
use turnwise_replicator::upstream::Address;

/// The settings of indexing.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The servers.
    pub servers: Vec<Address>,
    /// The databases.
    pub databases: Patterns,
    /// Databases of these that are left out.
    pub exclude: Option<Patterns>,
    /// Who is charged for a build.
    pub tenant: Tenant,
    /// How many builds a server is asked for at once.
    pub builds: u32,
    /// Fewer builds run while a small request takes longer than this in one of 20 cases; zero is no limit.
    pub max_p95: Duration,
    /// The shortest time from a change of a database to the build of its indexes.
    pub min_delay: Duration,
    /// The longest.
    pub max_delay: Duration,
}

/// Who is charged for a build: a text in which `{database}` stands for the name of the database, and `{prefix}` for the name up to the
/// first `/` or `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant(String);

impl Default for Tenant {
    fn default() -> Self {
        Tenant("{prefix}".to_owned())
    }
}

impl std::fmt::Display for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The longest such text, in bytes: with a database's name, it is a tenant's name.
const MAX_TENANT_BYTES: usize = 128;

impl std::str::FromStr for Tenant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Once: a tenant's name is bounded.
        let rest = text.replacen("{database}", "", 1);
        let rest = if rest.len() < text.len() { rest } else { text.replacen("{prefix}", "", 1) };
        let fits = (1..=MAX_TENANT_BYTES).contains(&text.len()) && !text.contains(char::is_control);
        match fits && !rest.contains(['{', '}']) {
            true => Ok(Tenant(text.to_owned())),
            false => Err(format!(
                "a tenant of up to {MAX_TENANT_BYTES} bytes, in which {{database}}, once, stands for the name of the database, or \
                 {{prefix}} for its beginning up to the first / or -"
            )),
        }
    }
}

impl Tenant {
    /// The tenant of a database.
    pub fn of(&self, database: &str) -> String {
        let prefix = database.split(['/', '-']).next().unwrap_or(database);
        self.0.replace("{database}", database).replace("{prefix}", prefix)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            servers: Vec::new(),
            databases: Patterns::parse("*").expect("a valid pattern"),
            exclude: None,
            tenant: Tenant::default(),
            builds: 4,
            max_p95: Duration::from_millis(500),
            min_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// Whether the indexes of a database are built.
    pub fn want(&self, database: &str) -> bool {
        !is_system(database)
            && self.databases.contain(database)
            && !self.exclude.as_ref().is_some_and(|exclude| exclude.contain(database))
    }

    /// How long the oldest change of a database waits until an index is built whose last build took `cost`: as long as that, so that at
    /// most half of a server's time goes into an index that changes all the time.
    pub fn delay(&self, cost: Duration) -> Duration {
        cost.clamp(self.min_delay, self.max_delay.max(self.min_delay))
    }
}

/// Whether a database is one of CouchDB's own: `_users`, `acme/_replicator`.
pub fn is_system(database: &str) -> bool {
    database.rsplit('/').next().is_some_and(|name| name.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_a_part_of_the_database_or_a_fixed_name() {
        let of = |rule: &str, database: &str| rule.parse::<Tenant>().expect("a rule").of(database);
        assert_eq!(of("{prefix}", "acme/orders"), "acme");
        assert_eq!(of("{prefix}", "acme-orders-2026"), "acme");
        assert_eq!(of("{prefix}", "orders"), "orders");
        assert_eq!(of("indexes of {database}", "acme/orders"), "indexes of acme/orders");
        assert_eq!(of("builds", "acme/orders"), "builds");
        for wrong in ["", "{db}", "{prefix", "a\nb", "{database}{database}", "{prefix} {database}"] {
            assert!(wrong.parse::<Tenant>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn databases_are_chosen_by_patterns() {
        let patterns = |text: &str| Patterns::parse(text).expect("patterns");
        let settings = Settings {
            databases: patterns("acme/*,orders"),
            exclude: Some(patterns("*/tmp-*")),
            ..Settings::default()
        };
        for (database, wanted) in [
            ("acme/a", true),
            ("orders", true),
            ("other", false),
            ("acme/tmp-1", false),
            ("acme/_users", false),
        ] {
            assert_eq!(settings.want(database), wanted, "{database}");
        }
        assert!(!Settings::default().want("_users"));
    }

    #[test]
    fn the_delay_grows_with_the_cost_within_its_bounds() {
        let settings = Settings::default();
        let delay = |s: u64| settings.delay(Duration::from_secs(s)).as_secs();
        assert_eq!([delay(0), delay(7), delay(600)], [1, 7, 60]);
    }
}
