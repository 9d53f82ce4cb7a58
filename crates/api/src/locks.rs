//! `GET /v1/locks`: the jobs that hold, await or have reserved locks.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Deserialize;
use turnwise_explain as explain;
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_protocol::locking::BIG_LOCK;
use turnwise_protocol::{LockMode, Locker, Lockers};
use turnwise_queue::locks::{Behind, Entry, Kind, Spot, Which, list_by_place};
use turnwise_web::access::Caller;
use utoipa::IntoParams;

use super::app::App;
use super::error::{Result, V1Error};
use super::extract::{Call, Params, Shown};
use super::list::{check_limit, default_limit};
use super::position_text;
use super::responses::Common;
use super::view::same;

/// Longest `after`, in bytes: two names, a type and an id, with each byte encoded.
const MAX_AFTER_BYTES: usize = 4 << 10;

/// Characters that are encoded in a position.
const NOT_IN_PLACES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'=').remove(b'-');

/// The parameters of a listing of locks.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LocksParams {
    /// Only locks of this level; `big_lock` for the big lock. Without a level, the list contains the big lock only
    /// where a job wants it exclusively, because every job that locks anything shares it.
    #[param(
        nullable = false,
        min_length = 1,
        max_length = 128,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
    )]
    pub level: Option<String>,
    /// Only locks of resources with this name, and locks of their whole levels.
    #[param(
        nullable = false,
        min_length = 1,
        max_length = 128,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
    )]
    pub name: Option<String>,
    /// Maximum number of rows in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: usize,
    /// The `next` of the previous page.
    #[param(
        nullable = false,
        pattern = r"^(sealed/[A-Za-z0-9_-]{1,8000}|(/|=[A-Za-z0-9%=-]{1,400}/(=[A-Za-z0-9%=-]{1,400})?)/(exclusive|shared|queued)/-?[0-9]{1,18}/[A-Za-z0-9%=-]{1,200}/[A-Za-z0-9%=-]{1,1600})$"
    )]
    pub after: Option<String>,
}

/// List locks
///
/// The jobs that hold, await or have reserved locks, by level and name. All rows of a page are from one snapshot. Jobs of
/// tenants that the sender may not read are left out, so that a page may be short.
#[utoipa::path(
    get, path = "/locks", tag = "locks", operation_id = "list_locks", params(LocksParams),
    responses((status = 200, body = Lockers, description = "A page of jobs with their locks."), Common),
)]
pub(super) async fn list_locks(call: Call, Params(query): Params<LocksParams>) -> Result<Shown<Lockers>> {
    lockers(&call.app, &call.caller, query).await.map(Shown)
}

/// A page of jobs with their locks, of those that the caller may read.
pub async fn lockers(app: &App, caller: &Caller, params: LocksParams) -> Result<Lockers> {
    check_limit(params.limit)?;
    check_names(params.level.as_deref(), params.name.as_deref())?;
    let big_lock = params.level.as_deref() == Some(BIG_LOCK);
    let after = position_text::read(app, caller, params.after).await?;
    let after = after.as_deref().map(parse).transpose()?;
    let which = Which { level: params.level.map(|level| (!big_lock).then_some(level)), name: params.name };
    let tx = app.store.begin().await?;
    let (page, behind) = list_by_place(&tx, &app.keys, &which, after, params.limit).await?;
    let locks = page.into_iter().filter(|entry| caller.reads(&entry.tenant)).map(locker).collect();
    let next = position_text::shown(app, caller, behind.as_ref().map(text)).await?;
    Ok(Lockers { locks, next })
}

fn locker(entry: Entry) -> Locker {
    let Entry { lock, how, job_type, id, tenant, since_us, .. } = entry;
    let (job_type, id, tenant) = (Some(job_type), Some(id), Some(tenant));
    Locker { lock: explain::lock(lock), how: explain::how(how), job_type, id, tenant, since_us }
}

/// Checks the names of a level and a resource.
pub(super) fn check_names(level: Option<&str>, name: Option<&str>) -> Result<()> {
    for (what, name) in [("level", level), ("name", name)] {
        let checked = name.map_or(Ok(()), turnwise_policy::predictive_queue::locks::check_name);
        checked.map_err(|problem| {
            let hint = "names have at most 128 bytes, and no control characters";
            V1Error::bad(format!("{what}: {problem}"), hint)
        })?;
    }
    Ok(())
}

pub(super) fn mode(mode: LockMode) -> Mode {
    same!(mode, LockMode => Mode: Shared Exclusive)
}

/// A position between two rows: `level/name/kind/ticket/type/id`, with each part encoded. A level or a name that is
/// present begins with `=`. Opaque to clients.
fn text(behind: &Behind) -> String {
    let Behind { spot, kind, ticket, job_type, id } = behind;
    let named = |name: &Option<String>| name.as_ref().map_or_else(String::new, |name| format!("={name}"));
    let kind = match kind {
        Kind::Held(Mode::Exclusive) => "exclusive",
        Kind::Held(Mode::Shared) => "shared",
        Kind::Queued => "queued",
    };
    let parts = [
        named(&spot.level),
        named(&spot.name),
        kind.to_owned(),
        ticket.to_string(),
        job_type.clone(),
        id.clone(),
    ];
    parts.map(|part| utf8_percent_encode(&part, NOT_IN_PLACES).to_string()).join("/")
}

fn parse(text: &str) -> Result<Behind> {
    parts(text).ok_or_else(position_text::wrong)
}

fn parts(text: &str) -> Option<Behind> {
    let text = Some(text).filter(|text| text.len() <= MAX_AFTER_BYTES)?;
    // A text that the server has not encoded is a valid position, too. No row is equal to it, and the page begins after
    // the place that it would have.
    let decode = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
    let parts: Vec<String> = text.split('/').map(decode).collect();
    let [level, name, kind, ticket, job_type, id] = <[String; 6]>::try_from(parts).ok()?;
    let named = |text: String| match text.strip_prefix('=') {
        Some(name) => Some(Some(name.to_owned())),
        None => text.is_empty().then_some(None),
    };
    let kind = match kind.as_str() {
        "exclusive" => Kind::Held(Mode::Exclusive),
        "shared" => Kind::Held(Mode::Shared),
        "queued" => Kind::Queued,
        _ => return None,
    };
    Some(Behind {
        spot: Spot::new(named(level)?, named(name)?)?,
        kind,
        ticket: ticket.parse().ok()?,
        job_type,
        id,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn positions_round_trip() {
        for (spot, kind, ticket) in [
            (Spot::BIG_LOCK, Kind::Held(Mode::Exclusive), 0),
            (Spot::whole("node"), Kind::Held(Mode::Shared), 0),
            (Spot::resource("node", "=a/b c%2F…"), Kind::Queued, i64::MIN),
        ] {
            let behind =
                Behind { spot, kind, ticket, job_type: "a.b-c".to_owned(), id: "x/y z%2F…".to_owned() };
            assert_eq!(parse(&text(&behind)).unwrap(), behind);
        }
        for wrong in
            ["", "node", "=node/=a/queued/1/t", "node/=a/queued/1/t/x", "/=a/queued/1/t/x", "//held/1/t/x"]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
