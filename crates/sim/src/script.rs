//! What simulated jobs do, and the handler that does it.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_queue::locks::{LockAt, Spot};
use turnwise_queue::{Claim, Job};
use turnwise_store::{Runtime, Store};
use turnwise_worker::{JobContext, JobHandler, LockError, Outcome};

use crate::check::Checker;
use crate::inputs::{self, Given};
use crate::ledger::Did;
use crate::link::{Link, SimRuntime};
use crate::locking::{Ask, Asks, Reply as Answer};
use crate::rng::SeededRng;

/// The message of a simulated panic. The terminal does not show it.
pub const PANIC: &str = "a simulated panic";

/// How long a run that is too early puts its job off.
pub const SNOOZE: Duration = Duration::from_secs(3);

/// The number of reports of a run that reports.
const REPORTS: u64 = 5;

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Works, and completes.
    Done,
    /// Works, and crashes.
    Crash,
    /// Works, and fails permanently.
    Fail,
    /// Works, and finds that it is too early.
    Snooze,
    /// Works, and panics.
    Panic,
    /// Works, reports several times, and completes.
    Report,
    /// Works, ignores requests to stop, and completes.
    Deaf,
    /// Works until it is stopped, takes some time then, and completes nevertheless.
    Late,
    /// Works until it is stopped.
    Forever,
    /// Works, and then reports that it has nothing to do, until it is stopped.
    Idle,
}

const ACTS: [Act; 10] = [
    Act::Done,
    Act::Crash,
    Act::Fail,
    Act::Snooze,
    Act::Panic,
    Act::Report,
    Act::Deaf,
    Act::Late,
    Act::Forever,
    Act::Idle,
];

/// This many runs after those of the script still request locks. Later runs do not, so that a job with a wrong lock order
/// ends, too.
const ASKING_RUNS: usize = 3;

/// The number of runs of an endless job. With so many, it is stopped and started again until its client cancels it.
const ENDLESS_RUNS: usize = 40;

/// A message from a run.
pub enum Said {
    /// Its progress.
    Progress(u64),
    /// It has nothing to do.
    Idle,
}

/// What the runs of a job do, one after the other. After the last one, the job completes soon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    /// What each run does, and for how many ms.
    pub runs: Vec<(Act, u64)>,
    /// The locks that each run requests before that.
    pub asks: Vec<Ask>,
    /// The locks that the job declares.
    pub locks: Requests,
}

impl Script {
    /// A random script.
    pub fn any(rng: &SeededRng) -> Self {
        if rng.chance(150) {
            let act = *rng.choose(&[Act::Forever, Act::Forever, Act::Idle, Act::Late]);
            let ms = rng.between(0, *rng.choose(&[50, 5_000, 20_000]));
            return Script { runs: vec![(act, ms); ENDLESS_RUNS], ..Script::default() };
        }
        let runs = (0..rng.below(3)).map(|_| {
            let act = *rng.choose(&ACTS);
            let longest_ms = *rng.choose(&[0, 50, 2_000, 2_000, 30_000]);
            (act, rng.between(0, longest_ms))
        });
        Script { runs: runs.collect(), ..Script::default() }
    }

    /// One run that completes after `ms`.
    pub fn long(ms: u64) -> Self {
        Script { runs: vec![(Act::Done, ms)], ..Script::default() }
    }

    /// Runs of a continuous job that always has something to do.
    pub fn busy() -> Self {
        Script { runs: vec![(Act::Forever, 0); ENDLESS_RUNS], ..Script::default() }
    }

    /// Runs of a continuous job that has nothing to do.
    pub fn idle() -> Self {
        Script { runs: vec![(Act::Idle, 0); ENDLESS_RUNS], ..Script::default() }
    }

    /// Whether one of its runs continues until it is stopped.
    pub fn is_endless(&self) -> bool {
        self.runs.iter().any(|(act, _)| matches!(act, Act::Forever | Act::Late | Act::Idle))
    }

    /// Whether the script is one of a continuous job, which never ends by itself and may be preempted.
    pub fn is_continuous(&self) -> bool {
        self.runs.len() == ENDLESS_RUNS
    }

    /// The script as a job's options, sometimes too large for one row.
    pub fn options(&self, rng: &SeededRng) -> Box<RawValue> {
        let padding = match rng.below(100) {
            0 => 100_000,
            1..4 => 10_000,
            _ => 0,
        };
        RawValue::from_string(format!("\"{self}{}\"", " ".repeat(padding))).expect("this is JSON")
    }

    /// Parses a job's options.
    fn parse(options: &str) -> Self {
        let (words, asks) = options.trim_matches('"').split_once('|').unwrap_or((options, ""));
        let words = words.trim_matches('"').split_whitespace();
        let run = |word: &str| {
            let (act, ms) = word.split_once(':').expect("this module wrote it");
            let act = ACTS.iter().find(|known| format!("{known:?}") == act).expect("this module wrote it");
            (*act, ms.parse().expect("this module wrote it"))
        };
        let asks = asks.split_whitespace().map(|word| Ask::parse(word).expect("that module wrote it"));
        Script { runs: words.map(run).collect(), asks: asks.collect(), locks: Requests::default() }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.runs.iter().try_for_each(|(act, ms)| write!(f, "{act:?}:{ms} "))?;
        if !self.asks.is_empty() {
            f.write_str("|")?;
        }
        self.asks.iter().try_for_each(|ask| write!(f, "{ask} "))
    }
}

/// Runs scripts in one site.
pub struct SimHandler {
    /// The site.
    pub link: Arc<Link>,
    /// The checker that follows the run.
    pub checker: Arc<Checker>,
    /// The store, if the site reaches it.
    pub store: Option<Store>,
}

/// Reports the result of a run to the checker, however the run ends.
struct Reply<'a> {
    handler: &'a SimHandler,
    claim: Claim,
    did: Did,
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        self.handler.checker.on_done(self.handler.link.site, &self.claim, self.did.clone());
    }
}

impl SimHandler {
    /// Executes the next run of a job's script. Calls `say` with its messages.
    ///
    /// # Panics
    /// If the script asks for a panic.
    pub async fn play(
        &self,
        job: &Job,
        options: &RawValue,
        stop: &CancellationToken,
        asks: &dyn Asks,
        say: impl Fn(Said) + Send + Sync,
    ) -> Did {
        let claim = job.claim().cloned().expect("a claimed job has a claim");
        let run = self.checker.on_run(self.link.site, job, options.get());
        let mut told = Reply { handler: self, claim: claim.clone(), did: Did::Dropped };
        let script = Script::parse(options.get());
        let (act, ms) = script.runs.get(run).copied().unwrap_or((Act::Done, 20));
        let runtime = SimRuntime(self.link.clone());
        let time = Duration::from_millis(ms);
        let stopped_within = async |time: Duration| {
            tokio::select! {
                biased;
                () = stop.cancelled() => true,
                () = runtime.sleep(time) => false,
            }
        };
        if !job.inputs.is_empty() {
            let begun_us = self.link.core.elapsed_us();
            let given = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                given = asks.inputs() => given,
            };
            if let Some(given) = given {
                self.checker.on_given(self.link.site, job, &given, begun_us);
            }
        }
        let wanted = if run < script.runs.len() + ASKING_RUNS { &script.asks[..] } else { &[] };
        for ask in wanted {
            if stopped_within(time / 10).await {
                break;
            }
            match self.ask(&claim, job, ask, asks).await {
                Answer::Done | Answer::Late | Answer::Refused => {}
                Answer::Stopped | Answer::Lost => {
                    told.did = Did::Stopped;
                    return Did::Stopped;
                }
                Answer::OutOfOrder | Answer::Failed => {
                    told.did = Did::Crashed;
                    return Did::Crashed;
                }
            }
        }
        let stopped = match act {
            Act::Deaf => {
                runtime.sleep(time).await;
                false
            }
            Act::Forever | Act::Late | Act::Idle => {
                if act == Act::Idle && !stopped_within(time).await {
                    say(Said::Idle);
                }
                stop.cancelled().await;
                runtime.sleep(time / 10).await;
                act != Act::Late
            }
            Act::Report => {
                let mut stopped = false;
                // With a heartbeat timeout, the run lasts longer than the timeout in total, so that its reports matter.
                let heartbeat = job.terms().timeouts.heartbeat_us.unwrap_or(0).unsigned_abs();
                let pause = (time / 5).max(Duration::from_micros(heartbeat / 2));
                for n in 0..REPORTS {
                    say(Said::Progress(n));
                    stopped = stopped || stopped_within(pause).await;
                }
                stopped
            }
            Act::Done | Act::Crash | Act::Fail | Act::Snooze | Act::Panic => stopped_within(time).await,
        };
        let did = match act {
            _ if stopped => Did::Stopped,
            Act::Crash => Did::Crashed,
            Act::Fail => Did::Failed,
            Act::Snooze => Did::Snoozed,
            Act::Panic => {
                told.did = Did::Crashed;
                panic!("{PANIC}");
            }
            _ => Did::Completed,
        };
        told.did = did.clone();
        did
    }

    /// Requests a lock, or gives one back.
    async fn ask(&self, claim: &Claim, job: &Job, ask: &Ask, asks: &dyn Asks) -> Answer {
        let (checker, site) = (&self.checker, self.link.site);
        self.link.core.note(site, "asks", format!("{} {} {ask}", job.id, claim.number));
        let answer = match ask {
            Ask::Take { lock, patience_ms } => {
                checker.on_ask(claim, lock);
                let answer = asks.lock(lock, patience_ms.map(Duration::from_millis)).await;
                if answer == Answer::Done {
                    checker.on_granted(site, job, claim, lock);
                }
                answer
            }
            Ask::GiveBack(spot) => {
                checker.on_give_back(claim, spot);
                asks.give_back(spot).await
            }
        };
        self.link.core.note(site, "was told", format!("{} {} {answer:?}", job.id, claim.number));
        answer
    }
}

fn answer(answer: std::result::Result<(), LockError>) -> Answer {
    match answer {
        Ok(()) => Answer::Done,
        Err(LockError::OutOfOrder { .. }) => Answer::OutOfOrder,
        Err(LockError::Refused(_)) => Answer::Refused,
        Err(LockError::Stopped) => Answer::Stopped,
        Err(LockError::Lost) => Answer::Lost,
        Err(LockError::Store(_)) => Answer::Failed,
    }
}

/// The lock requests of a run inside a node.
struct AsksHere<'a> {
    job: &'a JobContext,
    store: Option<&'a Store>,
    runtime: SimRuntime,
}

#[async_trait]
impl Asks for AsksHere<'_> {
    async fn lock(&self, lock: &LockAt, patience: Option<Duration>) -> Answer {
        let patience = async {
            match patience {
                Some(patience) => self.runtime.sleep(patience).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            granted = self.job.lock(lock.clone()) => answer(granted),
            () = patience => Answer::Late,
        }
    }

    async fn give_back(&self, spot: &Spot) -> Answer {
        answer(self.job.unlock(std::slice::from_ref(spot)).await)
    }

    async fn inputs(&self) -> Option<Given> {
        let job = &self.job.job;
        inputs::read(self.store?, &job.job_type, &job.id, job.claim()?).await.ok()
    }
}

#[async_trait]
impl JobHandler for SimHandler {
    async fn run(&self, job: JobContext) -> Outcome {
        let claim = job.job.claim().cloned().expect("a claimed job has a claim");
        let say = |said| match said {
            Said::Progress(n) => job.report(&n),
            // A continuous job that has nothing to do need not report. Any other job must.
            Said::Idle => job.idle(job.job.continuous),
        };
        let asks = AsksHere { job: &job, store: self.store.as_ref(), runtime: SimRuntime(self.link.clone()) };
        match self.play(&job.job, &job.options, &job.stop, &asks, say).await {
            Did::Completed => {
                Outcome::Completed(RawValue::from_string(inputs::result_of(&claim)).expect("this is JSON"))
            }
            Did::Failed => Outcome::Failed(format!("failure {}", claim.number)),
            Did::Crashed => Outcome::Crashed(format!("crash {}", claim.number)),
            Did::Snoozed => Outcome::Snoozed(SNOOZE),
            Did::Stopped | Did::Runs | Did::Dropped => Outcome::Stopped,
        }
    }
}
