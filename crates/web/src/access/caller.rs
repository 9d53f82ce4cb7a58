//! The sender of a request.

use std::sync::{Arc, LazyLock};

use axum::http::Extensions;
use turnwise_identity::{Patterns, Scopes, User};
use turnwise_queue::Job;

use crate::v1_error::V1Error;

/// Who sends a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// Anyone: the store has no identities.
    Everyone,
    /// A request without credentials.
    Nobody,
    /// A user, by name.
    User(String),
    /// A token, by id.
    Token(String),
    /// The subject of a JSON Web Token.
    Jwt(String),
}

/// How the sender proved who it is, under CouchDB's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Not at all.
    Nothing,
    /// A password or a token with each request.
    Default,
    /// A session.
    Cookie,
    /// A client certificate.
    Certificate,
    /// A JSON Web Token with each request.
    Jwt,
}

impl How {
    /// Its name in CouchDB's `/_session`.
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            How::Nothing => None,
            How::Default => Some("default"),
            How::Cookie => Some("cookie"),
            How::Certificate => Some("certificate"),
            How::Jwt => Some("jwt"),
        }
    }
}

/// The sender of a request, and what it may do. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Caller(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    who: Who,
    how: How,
    scopes: Scopes,
    /// See [`Caller::owner`].
    owner: Option<String>,
}

impl Caller {
    /// The sender of a request, which `authenticate` has set.
    pub fn of(extensions: &Extensions) -> Result<Caller, V1Error> {
        extensions.get().cloned().ok_or_else(|| V1Error::internal(&NoCaller))
    }

    /// The sender of every request to a store without identities.
    pub fn everyone() -> Caller {
        static EVERYONE: LazyLock<Caller> =
            LazyLock::new(|| Caller::new(Who::Everyone, How::Nothing, Scopes::all()));
        EVERYONE.clone()
    }

    /// The sender of a request without credentials.
    pub fn nobody() -> Caller {
        Caller::new(Who::Nobody, How::Nothing, Scopes::default())
    }

    /// A user who has logged in.
    pub fn user(user: &User, how: How) -> Caller {
        let name = named("user", &user.name);
        // Users of earlier stores have no uid.
        let owner = if user.uid.is_empty() { name } else { format!("{name}:{}", user.uid) };
        let (who, scopes) = (Who::User(user.name.clone()), user.scopes.clone());
        Caller(Arc::new(Inner { who, how, scopes, owner: Some(owner) }))
    }

    /// A token with these scopes.
    pub fn token(id: &str, scopes: Scopes) -> Caller {
        Caller::new(Who::Token(id.to_owned()), How::Default, scopes)
    }

    /// The subject of a JSON Web Token.
    pub fn jwt(subject: &str, scopes: Scopes) -> Caller {
        Caller::new(Who::Jwt(subject.to_owned()), How::Jwt, scopes)
    }

    fn new(who: Who, how: How, scopes: Scopes) -> Caller {
        let owner = match &who {
            Who::Everyone | Who::Nobody => None,
            Who::User(name) => Some(named("user", name)),
            Who::Token(id) => Some(named("token", id)),
            Who::Jwt(subject) => Some(named("jwt", subject)),
        };
        Caller(Arc::new(Inner { who, how, scopes, owner }))
    }

    /// Whether this is the same sender, who may do the same.
    pub fn is_same(&self, other: &Caller) -> bool {
        (self.who(), &self.0.owner, self.scopes()) == (other.who(), &other.0.owner, other.scopes())
    }

    /// Which identity it is.
    pub fn who(&self) -> &Who {
        &self.0.who
    }

    /// How it has proved that.
    pub fn how(&self) -> How {
        self.0.how
    }

    /// What it may do: nothing without credentials.
    pub fn scopes(&self) -> &Scopes {
        &self.0.scopes
    }

    /// Whether it may see everything of all tenants.
    pub fn operates(&self) -> bool {
        self.scopes().operate()
    }

    /// Whether it may read the jobs of this tenant. A replicator database is a tenant.
    pub fn reads(&self, tenant: &str) -> bool {
        self.scopes().read(tenant)
    }

    /// Whether it may add and change the jobs of this tenant.
    pub fn writes(&self, tenant: &str) -> bool {
        self.scopes().write(tenant)
    }

    /// Whether it may add jobs that run programs on servers.
    pub fn commands(&self) -> bool {
        self.scopes().command()
    }

    /// Whether it may run jobs of this type.
    pub fn works(&self, job_type: &str) -> bool {
        self.scopes().work(job_type)
    }

    /// The tenants whose jobs of this type it may run; `None` means all.
    pub fn work_tenants(&self, job_type: &str) -> Option<Vec<Patterns>> {
        self.scopes().work_tenants(job_type)
    }

    /// A part of a refusal that names the tenants for which it may add jobs, as its scopes name them.
    pub fn own_tenants(&self) -> String {
        match self.scopes().client_tenants() {
            tenants if tenants.is_empty() => String::new(),
            tenants => format!("; it may add them for {}", tenants.join(",")),
        }
    }

    /// Its tenant, if it may add jobs for exactly one.
    pub fn only_tenant(&self) -> Option<&str> {
        self.scopes().only_tenant()
    }

    /// The job, if it may read it. For others it does not exist.
    pub fn sees(&self, job: Option<Job>) -> Option<Job> {
        job.filter(|job| self.reads(&job.tenant))
    }

    /// The identity for the log and for people: `user:jan`, `token:0123456789ab`. `None` on a store without identities.
    pub fn name(&self) -> Option<String> {
        self.owner().as_deref().map(shown_owner)
    }

    /// The identity for rows: what it owns after its request. A user who is added with the name of one that was removed is another owner:
    /// `user:jan:4f1c09a2b3d4e5f6`. Ids of tokens are never used twice. `None` on a store without identities.
    pub fn owner(&self) -> Option<String> {
        self.0.owner.clone()
    }
}

fn named(kind: &str, name: &str) -> String {
    format!("{kind}:{name}")
}

/// An owner as people see it: a user without its uid. Names of users have no colon.
pub fn shown_owner(owner: &str) -> String {
    match owner.strip_prefix("user:").and_then(|user| user.split_once(':')) {
        Some((name, _)) => named("user", name),
        None => owner.to_owned(),
    }
}

/// A request reached a handler without the layer that finds out who sends it.
#[derive(Debug, thiserror::Error)]
#[error("nobody has authenticated a request")]
struct NoCaller;
