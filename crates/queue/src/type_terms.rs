//! What is stated of the jobs of a type, and of its tasks.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use turnwise_store::Transaction;

use crate::encoding::decode;
use crate::error::Result;
use crate::keyspace::Keyspace;
use crate::lifetime::Lifetime;
use crate::terms::{StatedTerms, Terms};

/// The types whose jobs the server runs itself.
pub const OF_SERVER: [&str; 4] = ["command", "indexing", "replication", "webhook"];

/// Whether the server itself runs jobs of this type.
pub fn is_of_server(job_type: &str) -> bool {
    OF_SERVER.contains(&job_type)
}

/// What is stated of the jobs of a type. It holds from their next start on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypeTerms {
    /// The terms of all its jobs.
    #[serde(flatten)]
    pub terms: StatedTerms,
    /// The terms of the jobs of some tasks, by task.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tasks: BTreeMap<String, TaskTerms>,
    /// Pointers to the members of their options that no one but their workers sees ([`crate::secrets`]).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Who wrote this; `None` on a server without identities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When it was written, in µs.
    pub changed_us: i64,
}

/// What is stated of the jobs of a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskTerms {
    /// The terms.
    #[serde(flatten)]
    pub terms: StatedTerms,
    /// Who declared this; `None` if it was written with the type's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared: Option<DeclaredBy>,
    /// When it was written, in µs.
    pub changed_us: i64,
}

/// A worker that has declared terms when it registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredBy {
    /// Its id.
    pub worker: String,
    /// The identity that registered it; `None` on a server without identities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl TypeTerms {
    /// What holds for the jobs of a task that state nothing, over the settings. Not how long they are kept by what is stated of the
    /// type: retention removes all jobs of the type by that.
    #[must_use]
    pub fn over(&self, task: Option<&str>, settings: &Terms) -> Terms {
        let mut of_type = self.terms.over(settings);
        of_type.lifetime.keep_us = settings.lifetime.keep_us;
        match self.of_task(task) {
            Some(of_task) => of_task.over(&of_type),
            None => of_type,
        }
    }

    /// The terms of a task, if there are some.
    pub fn of_task(&self, task: Option<&str>) -> Option<&StatedTerms> {
        self.tasks.get(task?).map(|of_task| &of_task.terms)
    }

    /// The times of the jobs of a task that state none.
    pub(crate) fn lifetime(&self, task: Option<&str>) -> Lifetime {
        let of_task = self.of_task(task).map(|terms| terms.lifetime).unwrap_or_default();
        of_task.or(self.terms.lifetime)
    }

    /// The attempts of the jobs of a task that state none, if they are stated, and where.
    pub fn max_attempts(&self, task: Option<&str>) -> Option<(u32, &'static str)> {
        let of_task = self.of_task(task).and_then(|terms| terms.max_attempts);
        let of_task = of_task.map(|most| (most, "its task"));
        of_task.or(self.terms.max_attempts.map(|most| (most, "its type")))
    }
}

/// What is stated of a type, if anything is. A transaction reads it once. Adds no read conflict: a change holds from the next start on.
pub async fn stated(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Option<TypeTerms>> {
    let value = tx.get_once(keys.type_terms(job_type)).await?;
    value.map(|value| decode("terms of a type", &value)).transpose()
}

/// What holds for the jobs of a type that state nothing.
pub struct TermsOfType<'a> {
    /// What is stated of the type.
    pub stated: Option<TypeTerms>,
    /// What holds where nothing is stated.
    pub settings: &'a Terms,
}

impl<'a> From<&'a Terms> for TermsOfType<'a> {
    fn from(settings: &'a Terms) -> Self {
        TermsOfType { stated: None, settings }
    }
}

impl TermsOfType<'_> {
    /// What holds for the jobs of a task.
    pub fn of(&self, task: Option<&str>) -> Cow<'_, Terms> {
        match &self.stated {
            Some(stated) => Cow::Owned(stated.over(task, self.settings)),
            None => Cow::Borrowed(self.settings),
        }
    }
}
