//! Scopes: what an identity may do.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Patterns, Result};

/// The most scopes of one identity.
pub const MAX_SCOPES: usize = 20;
/// The tenant of the jobs that serve operators, such as the deliveries to their webhooks. No list of tenants covers it, not even `*`.
pub const OPERATORS_TENANT: &str = "_operators";
/// Longest text of a scope, in bytes.
pub const MAX_SCOPE_BYTES: usize = 500;

/// One thing that an identity may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// `admin`: everything, including users and tokens.
    Admin,
    /// `operator`: everything except users and tokens.
    Operator,
    /// `client:TENANTS`: add, read and change the jobs of these tenants.
    Client(Patterns),
    /// `read:TENANTS`: read the jobs of these tenants.
    Read(Patterns),
    /// `worker:TYPES` or `worker:TYPES@TENANTS`: run jobs of these types, and of these tenants.
    Worker {
        /// The job types.
        types: Patterns,
        /// The tenants; `None` means all.
        tenants: Option<Patterns>,
    },
    /// `command`: add jobs of type `command`, with a scope `client` for their tenants.
    Command,
    /// `metrics`: read the metrics.
    Metrics,
}

impl Scope {
    /// Parses the text of a scope.
    ///
    /// # Errors
    /// It is none, or too long.
    pub fn parse(text: &str) -> Result<Scope> {
        if text.len() > MAX_SCOPE_BYTES {
            return Err(Error::invalid("scopes", format!("a scope has at most {MAX_SCOPE_BYTES} bytes")));
        }
        let (kind, names) = match text.split_once(':') {
            Some((kind, names)) => (kind, Some(names)),
            None => (text, None),
        };
        Ok(match (kind, names) {
            ("admin", None) => Scope::Admin,
            ("operator", None) => Scope::Operator,
            ("command", None) => Scope::Command,
            ("metrics", None) => Scope::Metrics,
            ("client", Some(names)) => Scope::Client(Patterns::parse(names)?),
            ("read", Some(names)) => Scope::Read(Patterns::parse(names)?),
            ("worker", Some(names)) => match names.split_once('@') {
                Some((types, tenants)) => {
                    Scope::Worker { types: Patterns::parse(types)?, tenants: Some(Patterns::parse(tenants)?) }
                }
                None => Scope::Worker { types: Patterns::parse(names)?, tenants: None },
            },
            _ => {
                let problem = format!(
                    "`{}` is no scope; scopes are admin, operator, client:TENANTS, read:TENANTS, worker:TYPES, \
                     worker:TYPES@TENANTS, command and metrics",
                    text.escape_debug()
                );
                return Err(Error::invalid("scopes", problem));
            }
        })
    }
}

/// Whether the tenants of a scope include this one.
fn cover(tenants: &Patterns, tenant: &str) -> bool {
    tenant != OPERATORS_TENANT && tenants.contain(tenant)
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Admin => f.write_str("admin"),
            Scope::Operator => f.write_str("operator"),
            Scope::Client(tenants) => write!(f, "client:{tenants}"),
            Scope::Read(tenants) => write!(f, "read:{tenants}"),
            Scope::Worker { types, tenants: None } => write!(f, "worker:{types}"),
            Scope::Worker { types, tenants: Some(tenants) } => write!(f, "worker:{types}@{tenants}"),
            Scope::Command => f.write_str("command"),
            Scope::Metrics => f.write_str("metrics"),
        }
    }
}

/// All scopes of an identity. Each of them adds to what it may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<String>", try_from = "Vec<String>")]
pub struct Scopes(Vec<Scope>);

impl Scopes {
    /// Parses the texts of scopes.
    ///
    /// # Errors
    /// There is none, there are too many, or one of them is wrong.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Scopes> {
        if texts.is_empty() || texts.len() > MAX_SCOPES {
            return Err(Error::invalid("scopes", format!("1 to {MAX_SCOPES} scopes are required")));
        }
        texts.iter().map(|text| Scope::parse(text.as_ref())).collect::<Result<_>>().map(Scopes)
    }

    /// The scopes of a server without identities: everything.
    pub fn all() -> Scopes {
        Scopes(vec![Scope::Admin])
    }

    /// Whether they include managing users and tokens.
    pub fn administer(&self) -> bool {
        self.0.contains(&Scope::Admin)
    }

    /// Whether they include the settings, the nodes, and the jobs of every tenant.
    pub fn operate(&self) -> bool {
        self.administer() || self.0.contains(&Scope::Operator)
    }

    /// Whether they include everything but users and tokens, or one of them is such.
    fn any(&self, such: impl Fn(&Scope) -> bool) -> bool {
        self.operate() || self.0.iter().any(such)
    }

    /// Whether they include reading the jobs of this tenant.
    pub fn read(&self, tenant: &str) -> bool {
        self.any(
            |scope| matches!(scope, Scope::Client(tenants) | Scope::Read(tenants) if cover(tenants, tenant)),
        )
    }

    /// Whether they include reading the jobs of some tenant.
    pub fn read_some(&self) -> bool {
        self.any(|scope| matches!(scope, Scope::Client(_) | Scope::Read(_)))
    }

    /// Whether they include adding and changing the jobs of this tenant.
    pub fn write(&self, tenant: &str) -> bool {
        self.any(|scope| matches!(scope, Scope::Client(tenants) if cover(tenants, tenant)))
    }

    /// Whether they include adding and changing the jobs of some tenant.
    pub fn write_some(&self) -> bool {
        self.any(|scope| matches!(scope, Scope::Client(_)))
    }

    /// The tenants for which they include adding jobs, as written in them: `acme,acme/*`.
    pub fn client_tenants(&self) -> Vec<String> {
        self.clients().map(Patterns::to_string).collect()
    }

    fn clients(&self) -> impl Iterator<Item = &Patterns> {
        self.0.iter().filter_map(|scope| match scope {
            Scope::Client(tenants) => Some(tenants),
            _ => None,
        })
    }

    /// The tenant, if they include adding jobs for exactly one.
    pub fn only_tenant(&self) -> Option<&str> {
        let mut clients = self.clients();
        match (self.operate(), clients.next(), clients.next()) {
            (false, Some(tenants), None) => tenants.only(),
            _ => None,
        }
    }

    /// Whether they include adding jobs that run programs on servers.
    pub fn command(&self) -> bool {
        self.any(|scope| *scope == Scope::Command)
    }

    /// Whether they include running jobs of this type, of some tenant.
    pub fn work(&self, job_type: &str) -> bool {
        self.any(|scope| matches!(scope, Scope::Worker { types, .. } if types.contain(job_type)))
    }

    /// Whether they include running jobs of some type.
    pub fn work_some(&self) -> bool {
        self.any(|scope| matches!(scope, Scope::Worker { .. }))
    }

    /// The tenants whose jobs of this type they include running: lists of which one must contain the tenant. `None`
    /// means every tenant.
    pub fn work_tenants(&self, job_type: &str) -> Option<Vec<Patterns>> {
        if self.operate() {
            return None;
        }
        let lists = self.0.iter().filter_map(|scope| match scope {
            Scope::Worker { types, tenants } if types.contain(job_type) => Some(tenants.clone()),
            _ => None,
        });
        lists.collect()
    }

    /// Whether they include the metrics.
    pub fn metrics(&self) -> bool {
        self.any(|scope| *scope == Scope::Metrics)
    }

    /// The texts of the scopes.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(Scope::to_string).collect()
    }
}

impl From<Scopes> for Vec<String> {
    fn from(scopes: Scopes) -> Self {
        scopes.texts()
    }
}

impl TryFrom<Vec<String>> for Scopes {
    type Error = Error;

    fn try_from(texts: Vec<String>) -> Result<Scopes> {
        Scopes::parse(&texts)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_written() {
        for text in [
            "admin",
            "operator",
            "command",
            "metrics",
            "client:acme,acme-*",
            "read:*",
            "worker:mail",
            "worker:*@acme",
        ] {
            assert_eq!(Scope::parse(text).unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "Admin",
            "admin:x",
            "client",
            "client:",
            "worker:",
            "worker:a@",
            "worker:@a",
            "x:y",
            " admin",
        ] {
            assert!(Scope::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(Scopes::parse::<&str>(&[]).is_err());
        assert!(Scopes::parse(&vec!["admin"; MAX_SCOPES + 1]).is_err());
        assert!(Scope::parse(&format!("client:{}", "a".repeat(MAX_SCOPE_BYTES))).is_err());
    }

    #[test]
    fn each_scope_permits_what_it_names() {
        let scopes = |texts: &[&str]| Scopes::parse(texts).unwrap();
        let client = scopes(&["client:acme", "read:beta"]);
        assert!(client.read("acme") && client.read("beta") && !client.read("gamma"));
        assert!(client.write("acme") && !client.write("beta"));
        assert!(!client.operate() && !client.command() && !client.work("mail") && !client.metrics());
        assert_eq!(client.only_tenant(), Some("acme"));
        assert_eq!(scopes(&["client:acme,beta"]).only_tenant(), None);
        assert_eq!(scopes(&["client:*"]).only_tenant(), None);
        assert_eq!(scopes(&["operator", "client:acme"]).only_tenant(), None);

        let all = scopes(&["client:*,_operators", "read:*"]);
        assert!(all.read("acme") && all.write("acme"));
        assert!(!all.read(OPERATORS_TENANT) && !all.write(OPERATORS_TENANT));

        let worker = scopes(&["worker:mail@acme,beta", "worker:mail@gamma", "worker:print"]);
        assert!(worker.work("mail") && worker.work("print") && !worker.work("other"));
        assert!(!worker.read("acme") && !worker.read_some());
        let tenants = worker.work_tenants("mail").unwrap();
        assert!(
            tenants.iter().any(|list| list.contain("gamma")) && !tenants.iter().any(|list| list.contain("x"))
        );
        assert_eq!(worker.work_tenants("print"), None);

        let operator = scopes(&["operator"]);
        assert!(
            operator.operate()
                && operator.read(OPERATORS_TENANT)
                && operator.write("x")
                && operator.command()
        );
        assert!(operator.work("x") && operator.metrics() && !operator.administer());
        assert!(Scopes::all().administer() && Scopes::all().operate());
    }
}
