//! `/v1/workers/{type}/{worker}/jobs/{id}/locks`: locks of external workers' jobs while they run.

use std::time::Duration;

use serde::Deserialize;
use turnwise_explain as explain;
use turnwise_policy::predictive_queue::locks::{Levels, MAX_CAPACITY, MAX_RESOURCES};
use turnwise_protocol::locking::BIG_LOCK;
use turnwise_protocol::{
    AskLocks, AskedLocks, LockMode, LockState, MAX_CLAIM, MAX_WAIT_MS, Unlocked, WantedLock, codes,
};
use turnwise_queue::locks::{Asked, Blocked, LockAt, Spot, may_request};
use turnwise_queue::{Claim, Error as QueueError, RunKey, jobs};
use utoipa::IntoParams;

use super::app::App;
use super::body::Json;
use super::error::{Result, V1Error};
use super::extract::{Call, Params, RunPath, Shown};
use super::locks::{check_names, mode};
use super::responses::{BadBody, Common, Membership, NoWorker};
use super::workers::{check_range, refused};

/// The hint for a worker that requests locks which its job cannot have.
const DECLARE: &str =
    "declare these locks when you add the job: by name, or as \"unknown\" or \"all\" of the level";

/// Request locks while a job runs
///
/// In addition to the locks that the job has held since its start. The job must have declared these locks, or `unknown`
/// or `all` of their level. The server takes them one after the other, in the order of the levels and names. If one is
/// not free, the job waits for it in the state `waiting`. It keeps its place in that lock's queue until it has the
/// lock, withdraws the request (DELETE), or ends. Repeat the request until the response is `held`. Locks that the job
/// already holds are granted immediately.
#[utoipa::path(
    post, path = "/workers/{type}/{worker}/jobs/{id}/locks", tag = "workers", operation_id = "lock",
    params(RunPath), request_body = AskLocks,
    responses(
        (status = 200, body = AskedLocks, description = "The job holds all locks, or waits for one."),
        (status = 409, body = turnwise_protocol::Error,
            description = "`halt`: the claim is lost. `out_of_order`: a lock is not free, and the job holds a lock that comes after it. \
                `not_declared`: the job has not declared one of the locks. `unknown_level`: there is no such level. `waits_already`: the job waits \
                for another lock."),
        NoWorker, Membership, BadBody, Common,
    ),
)]
pub(super) async fn lock(
    Call { app, caller, path }: Call<RunPath>,
    Json(AskLocks { claim, locks, wait_ms }): Json<AskLocks>,
) -> Result<Shown<AskedLocks>> {
    check_range("claim", claim, 0, MAX_CLAIM)?;
    check_range("wait_ms", wait_ms, 0, MAX_WAIT_MS)?;
    if !(1..=MAX_RESOURCES).contains(&locks.len()) {
        let problem = format!("locks: must be from 1 to {MAX_RESOURCES} of them");
        return Err(V1Error::bad(problem, "lock all of a level by leaving `name` out"));
    }
    let levels = app.external.tunables().get().queue.levels.clone();
    let wanted = locks.into_iter().map(|lock| wanted(&levels, lock)).collect::<Result<Vec<LockAt>>>()?;
    let leave = app.stop.child_token();
    let wait = Duration::from_millis(wait_ms).min(app.max_wait());
    let claim = Claim { worker: path.worker.clone(), number: claim };
    match app.external.lock(RunKey::new(&path.job_type, &path.id, &claim), &wanted, wait, &leave).await {
        Ok(Asked::Granted) => Ok(Shown(AskedLocks { state: LockState::Held, lock: None, by: Vec::new() })),
        Ok(Asked::Waits(_)) if app.stop.is_cancelled() => Err(V1Error::stopping()),
        Ok(Asked::Waits(Blocked { lock, by })) => {
            let by = by.into_iter().map(|by| explain::blocker(&caller, by)).collect();
            Ok(Shown(AskedLocks { state: LockState::Waiting, lock: Some(explain::lock(lock)), by }))
        }
        Ok(Asked::OutOfOrder { blocked, above }) => Err(V1Error::conflict(
            codes::OUT_OF_ORDER,
            format!("{} is not free, and the job holds {above}, which comes after it", blocked.lock),
            "request locks in the order of the levels and names, all of a level before its resources; or release what comes after it, or declare it, \
             so that it is taken before the job starts",
        )),
        Err(error @ QueueError::Invalid { .. }) => Err(why_not(&app, &path, &wanted, error).await),
        Err(error) => Err(refused(&app, &path, error).await),
    }
}

fn check_level(levels: &Levels, level: &str) -> Result<()> {
    if level == BIG_LOCK || levels.position(level).is_some() {
        return Ok(());
    }
    let names: Vec<&str> = levels.names().collect();
    let shown: String = level.chars().take(64).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    Err(V1Error::conflict(
        codes::UNKNOWN_LEVEL,
        format!("there is no level {shown:?}; the levels are {}, and {BIG_LOCK}", names.join(", ")),
        "use one of them, or add it to the catalogue ([queue] catalogue)",
    ))
}

/// A lock, in the form of the queue.
fn wanted(levels: &Levels, lock: WantedLock) -> Result<LockAt> {
    let WantedLock { level, name, mode: how, units } = lock;
    check_names(Some(&level), name.as_deref())?;
    check_level(levels, &level)?;
    check_range("units", units, 1, MAX_CAPACITY)?;
    // An exclusive lock takes all units.
    let units = if how == LockMode::Exclusive { 1 } else { units };
    Ok(LockAt { units, ..LockAt::new(spot(level, name)?, mode(how)) })
}

fn spot(level: String, name: Option<String>) -> Result<Spot> {
    let level = (level != BIG_LOCK).then_some(level);
    Spot::new(level, name).ok_or_else(|| V1Error::bad("name: the big lock has none", "leave `name` out"))
}

/// Finds out why the queue rejected the locks.
async fn why_not(app: &App, path: &RunPath, wanted: &[LockAt], error: QueueError) -> V1Error {
    let QueueError::Invalid { problem, .. } = error else { return error.into() };
    let job = async {
        let tx = app.store.begin().await?;
        jobs::get(&tx, &app.keys, &path.job_type, &path.id).await
    };
    let Ok(Some(job)) = job.await else { return V1Error::bad(problem, DECLARE) };
    let levels = app.external.tunables().get().queue.levels.clone();
    let undeclared = wanted.iter().any(|lock| !may_request(&levels, &job, lock));
    if undeclared {
        return V1Error::conflict(codes::NOT_DECLARED, problem, DECLARE);
    }
    let elsewhere = |waits: &turnwise_queue::locks::Waits| !wanted.contains(&waits.lock);
    match &job.waits() {
        Some(waits) if elsewhere(waits) => V1Error::conflict(
            codes::WAITS_ALREADY,
            problem,
            "repeat the request for that lock until the job holds it, or withdraw it with DELETE; then request others",
        ),
        _ => V1Error::bad(problem, "correct the member; docs/locks.md describes what can be locked"),
    }
}

/// The lock to release.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct UnlockParams {
    /// The claim's number.
    #[param(minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    claim: u64,
    /// The lock's level.
    #[param(min_length = 1, max_length = 128, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    level: String,
    /// The resource. Left out for a lock of the whole level.
    #[param(
        nullable = false,
        min_length = 1,
        max_length = 128,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
    )]
    name: Option<String>,
}

/// Release a lock while a job runs
///
/// Or withdraw the request for it. The end of the run releases all other locks. The request is idempotent: it also
/// succeeds if the job does not hold the lock.
#[utoipa::path(
    delete, path = "/workers/{type}/{worker}/jobs/{id}/locks", tag = "workers", operation_id = "unlock",
    params(RunPath, UnlockParams),
    responses(
        (status = 200, body = Unlocked, description = "The job neither holds the lock nor waits for it."),
        (status = 409, body = turnwise_protocol::Error,
            description = "`halt`: the claim is lost. `waits_already`: the job waits for another lock, and can release no lock before it has that one."),
        NoWorker, Membership, Common),
)]
pub(super) async fn unlock(
    Call { app, path, .. }: Call<RunPath>,
    Params(UnlockParams { claim, level, name }): Params<UnlockParams>,
) -> Result<Shown<Unlocked>> {
    check_range("claim", claim, 0, MAX_CLAIM)?;
    check_names(Some(&level), name.as_deref())?;
    let spot = spot(level, name)?;
    let claim = Claim { worker: path.worker.clone(), number: claim };
    let run = RunKey::new(&path.job_type, &path.id, &claim);
    let waits = async {
        let tx = app.store.begin().await?;
        let job = jobs::get(&tx, &app.keys, run.job_type, run.id).await?;
        Ok::<_, QueueError>(job.is_some_and(|job| job.waits().is_some_and(|waits| waits.lock.spot == spot)))
    };
    let unlocked = async {
        if waits.await? {
            app.external.unwait(run).await?;
        }
        app.external.unlock(run, std::slice::from_ref(&spot)).await
    };
    match unlocked.await {
        Ok(()) => Ok(Shown(Unlocked { unlocked: true })),
        Err(QueueError::Invalid { problem, .. }) if spot != Spot::BIG_LOCK => Err(V1Error::conflict(
            codes::WAITS_ALREADY,
            problem,
            "repeat the request for that lock until the job holds it, or withdraw it with DELETE; then release others",
        )),
        Err(error) => Err(refused(&app, &path, error).await),
    }
}
