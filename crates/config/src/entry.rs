//! An entry of the configuration, by section and key: a setting, or the name of a tenant or job type.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use turnwise_policy::fair_share::Shares;
use turnwise_protocol::names;

use super::value::{Right, Value};
use super::{Changes, Config, SETTINGS, Setting, text};

/// Maximum number of tenants in a section, in a file and in the store.
pub(super) const MAX_TENANTS: usize = 10_000;

/// Maximum number of job types in a section, in a file and in the store.
pub(super) const MAX_TYPES: usize = 1_000;
/// The highest timeout of a run, in ms: a year.
const MAX_TIMEOUT_MS: u64 = 365 * 24 * 3_600_000;

/// Limits on the time of runs, by job type.
pub type TypeTimes = BTreeMap<String, Duration>;

/// A section whose keys are names, of tenants or of job types. It can change while servers run.
pub struct Named<T: 'static> {
    /// The section, without brackets.
    pub section: &'static str,
    read: fn(&Config) -> &Arc<T>,
    write: fn(&mut Config) -> &mut Arc<T>,
}

impl<T: 'static> Named<T> {
    /// Sets the values of the second configuration to those of the first one.
    pub(super) fn copy(&self, from: &Config, to: &mut Config) {
        *(self.write)(to) = (self.read)(from).clone();
    }
}

/// All sections whose keys are tenants, with their shares as values.
pub const TENANT_SHARES: &[Named<Shares>] = &[
    Named {
        section: "replicator.shares",
        read: |config| &config.fair_share.shares,
        write: |config| &mut config.fair_share.shares,
    },
    Named { section: "shares", read: |config| &config.jobs.shares, write: |config| &mut config.jobs.shares },
];

/// All sections whose keys are job types, with times as values.
pub const TYPE_TIMEOUTS: &[Named<TypeTimes>] = &[
    Named {
        section: "timeouts",
        read: |config| &config.jobs.timeouts,
        write: |config| &mut config.jobs.timeouts,
    },
    Named {
        section: "heartbeat_timeouts",
        read: |config| &config.jobs.heartbeat_timeouts,
        write: |config| &mut config.jobs.heartbeat_timeouts,
    },
];

/// What is wrong with a section that has too many names.
pub(super) fn too_many(config: &Config) -> Option<String> {
    let tenants = TENANT_SHARES.iter().map(|shares| (shares.section, (shares.read)(config).iter().count()));
    let types = TYPE_TIMEOUTS.iter().map(|timeouts| (timeouts.section, (timeouts.read)(config).len()));
    let tenants = tenants.map(|counted| (counted, MAX_TENANTS, "tenants"));
    let mut all = tenants.chain(types.map(|counted| (counted, MAX_TYPES, "job types")));
    let ((section, names), most, what) = all.find(|((_, names), most, _)| names > most)?;
    Some(format!("[{section}] names {names} {what}: expected at most {most}"))
}

/// The entry that a section and a key identify.
#[derive(Clone, Copy)]
pub enum Entry<'a> {
    /// A setting.
    Setting(&'static Setting),
    /// A tenant, as written in the key.
    Tenant(&'static Named<Shares>, &'a str),
    /// A job type, as written in the key.
    Type(&'static Named<TypeTimes>, &'a str),
}

impl<'a> Entry<'a> {
    /// The entry of this name, if such an entry can exist.
    pub fn find(section: &str, key: &'a str) -> Option<Entry<'a>> {
        let shares = || TENANT_SHARES.iter().find(|shares| shares.section == section);
        let timeouts = || TYPE_TIMEOUTS.iter().find(|timeouts| timeouts.section == section);
        let setting = Setting::find(section, key).map(Entry::Setting);
        setting
            .or_else(|| shares().map(|shares| Entry::Tenant(shares, key)))
            .or_else(|| timeouts().map(|timeouts| Entry::Type(timeouts, key)))
    }

    /// All entries that have a value.
    pub fn all(config: &Config) -> impl Iterator<Item = (Entry<'_>, String)> {
        let settings =
            SETTINGS.iter().filter_map(|setting| Some((Entry::Setting(setting), setting.read(config)?)));
        let tenants = TENANT_SHARES.iter().flat_map(|shares| {
            let tenants = (shares.read)(config).iter();
            tenants.map(|(tenant, number)| (Entry::Tenant(shares, tenant), number.to_string()))
        });
        let types = TYPE_TIMEOUTS.iter().flat_map(|timeouts| {
            let types = (timeouts.read)(config).iter();
            types.filter_map(|(job_type, time)| Some((Entry::Type(timeouts, job_type), text::seconds(time)?)))
        });
        settings.chain(tenants).chain(types)
    }

    /// Its section in the file.
    pub fn section(self) -> &'static str {
        match self {
            Entry::Setting(setting) => setting.section,
            Entry::Tenant(shares, _) => shares.section,
            Entry::Type(timeouts, _) => timeouts.section,
        }
    }

    /// Its key within the section.
    pub fn key(self) -> &'a str {
        match self {
            Entry::Setting(setting) => setting.key,
            Entry::Tenant(_, name) | Entry::Type(_, name) => name,
        }
    }

    /// See [`Setting::holds_secret`].
    pub fn holds_secret(self) -> bool {
        matches!(self, Entry::Setting(setting) if setting.holds_secret())
    }

    /// When a change takes effect.
    pub fn changes(self) -> Changes {
        match self {
            Entry::Setting(setting) => setting.changes,
            Entry::Tenant(..) | Entry::Type(..) => Changes::Live,
        }
    }

    /// The entry's value as in the file. `None` if the server chooses it, or if it has the default.
    pub fn read(self, config: &Config) -> Option<String> {
        match self {
            Entry::Setting(setting) => setting.read(config),
            Entry::Tenant(shares, tenant) => {
                let mut named = (shares.read)(config).iter();
                named.find(|(name, _)| *name == tenant).map(|(_, number)| number.to_string())
            }
            Entry::Type(timeouts, job_type) => text::seconds((timeouts.read)(config).get(job_type)?),
        }
    }

    /// Sets the entry's value.
    ///
    /// # Errors
    /// A description of the valid values. In that case nothing is changed.
    pub fn write(self, config: &mut Config, value: &str) -> Result<(), Right> {
        match self {
            Entry::Setting(setting) => setting.write(config, value),
            Entry::Tenant(shares, tenant) => {
                names::check_name("tenant", tenant)
                    .map_err(|problem| format!("a tenant's name as key: {}", problem.problem))?;
                let number = Value(value).number(Shares::RANGE)?;
                let named = Arc::make_mut((shares.write)(config));
                named.set(tenant, number)
            }
            Entry::Type(timeouts, job_type) => {
                names::check_type(job_type)
                    .map_err(|problem| format!("a job type as key: {}", problem.problem))?;
                let time = Value(value).seconds(1..=MAX_TIMEOUT_MS)?;
                Arc::make_mut((timeouts.write)(config)).insert(job_type.to_owned(), time);
                Ok(())
            }
        }
    }
}
