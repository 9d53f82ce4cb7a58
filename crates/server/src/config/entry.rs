//! An entry of the configuration, by section and key: a setting, or a tenant in a section whose keys are tenants.

use std::sync::Arc;

use turnwise_policy::fair_share::Shares;
use turnwise_protocol::names;

use super::value::{Right, Value};
use super::{Changes, Config, SETTINGS, Setting};

/// Tenants in a section at most, in a file and in the store.
pub(super) const MAX_TENANTS: usize = 10_000;

/// A section whose keys are tenants, each with its shares. It can change while servers run.
pub struct TenantShares {
    /// The section, without brackets.
    pub section: &'static str,
    read: fn(&Config) -> &Arc<Shares>,
    write: fn(&mut Config) -> &mut Arc<Shares>,
}

impl TenantShares {
    /// How many tenants it names.
    pub(super) fn len(&self, config: &Config) -> usize {
        (self.read)(config).iter().count()
    }
}

/// All sections whose keys are tenants.
pub const TENANT_SHARES: &[TenantShares] = &[
    TenantShares {
        section: "replicator.shares",
        read: |config| &config.fair_share.shares,
        write: |config| &mut config.fair_share.shares,
    },
    TenantShares {
        section: "shares",
        read: |config| &config.jobs.shares,
        write: |config| &mut config.jobs.shares,
    },
];

/// What a section and a key name.
#[derive(Clone, Copy)]
pub(crate) enum Entry<'a> {
    /// A setting.
    Setting(&'static Setting),
    /// A tenant, as it is written.
    Tenant(&'static TenantShares, &'a str),
}

impl<'a> Entry<'a> {
    /// The entry of this name, if there can be one.
    pub fn find(section: &str, key: &'a str) -> Option<Entry<'a>> {
        let shares = || TENANT_SHARES.iter().find(|shares| shares.section == section);
        let setting = Setting::find(section, key).map(Entry::Setting);
        setting.or_else(|| shares().map(|shares| Entry::Tenant(shares, key)))
    }

    /// All that have a value.
    pub fn all(config: &Config) -> impl Iterator<Item = (Entry<'_>, String)> {
        let settings =
            SETTINGS.iter().filter_map(|setting| Some((Entry::Setting(setting), setting.read(config)?)));
        let tenants = TENANT_SHARES.iter().flat_map(|shares| {
            let tenants = (shares.read)(config).iter();
            tenants.map(|(tenant, number)| (Entry::Tenant(shares, tenant), number.to_string()))
        });
        settings.chain(tenants)
    }

    pub fn section(self) -> &'static str {
        match self {
            Entry::Setting(setting) => setting.section,
            Entry::Tenant(shares, _) => shares.section,
        }
    }

    pub fn key(self) -> &'a str {
        match self {
            Entry::Setting(setting) => setting.key,
            Entry::Tenant(_, tenant) => tenant,
        }
    }

    /// See [`Setting::holds_secret`].
    pub fn holds_secret(self) -> bool {
        matches!(self, Entry::Setting(setting) if setting.holds_secret())
    }

    pub fn changes(self) -> Changes {
        match self {
            Entry::Setting(setting) => setting.changes,
            Entry::Tenant(..) => Changes::Live,
        }
    }

    /// Its value in a configuration, as it would stand in the file; none where it is left to the server, or to the default.
    pub fn read(self, config: &Config) -> Option<String> {
        match self {
            Entry::Setting(setting) => setting.read(config),
            Entry::Tenant(shares, tenant) => {
                let mut named = (shares.read)(config).iter();
                named.find(|(name, _)| *name == tenant).map(|(_, number)| number.to_string())
            }
        }
    }

    /// Gives it a value.
    ///
    /// # Errors
    /// What would be right; then nothing is changed.
    pub fn write(self, config: &mut Config, value: &str) -> Result<(), Right> {
        match self {
            Entry::Setting(setting) => setting.write(config, value),
            Entry::Tenant(shares, tenant) => {
                names::check_name("tenant", tenant)
                    .map_err(|problem| format!("a tenant's name as key: {}", problem.problem))?;
                let number = Value(value).number(Shares::RANGE)?;
                let named = Arc::make_mut((shares.write)(config));
                named.set(tenant, number).map_err(|bad| bad.to_string())
            }
        }
    }
}
