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
use turnwise_store::Runtime;
use turnwise_worker::{JobContext, JobHandler, LockError, Outcome};

use crate::check::Checker;
use crate::ledger::Did;
use crate::link::{Link, SimRuntime};
use crate::locking::{Ask, Asks, Reply as Answer};
use crate::rng::SeededRng;

/// What a panic of a simulated handler says: no news for the terminal.
pub const PANIC: &str = "a simulated panic";

/// Reports of a run that reports.
const REPORTS: u64 = 5;

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Works, and completes.
    Done,
    /// Works, and crashes.
    Crash,
    /// Works, and fails for good.
    Fail,
    /// Works, and panics.
    Panic,
    /// Works, reports on it now and then, and completes.
    Report,
    /// Works, hears nothing, and completes.
    Deaf,
    /// Works until it is stopped, takes its time then, and completes all the same.
    Late,
    /// Works until it is stopped.
    Forever,
    /// Works, and says then that it has nothing to do, until it is stopped.
    Idle,
}

const ACTS: [Act; 9] = [
    Act::Done,
    Act::Crash,
    Act::Fail,
    Act::Panic,
    Act::Report,
    Act::Deaf,
    Act::Late,
    Act::Forever,
    Act::Idle,
];

/// Runs after those of the script that still ask for locks: a job whose order is wrong comes to its end all the same.
const ASKING_RUNS: usize = 3;

/// Runs of a job that goes on and on: with so many of them it is stopped and started again until its client cancels it.
const ENDLESS_RUNS: usize = 40;

/// What a run says of itself.
pub enum Said {
    /// How far it is.
    Progress(u64),
    /// That it has nothing to do.
    Idle,
}

/// What the runs of a job do, one after the other; from the last one on it is done soon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    /// What each run does, and for how long, in ms.
    pub runs: Vec<(Act, u64)>,
    /// What each run asks for before that.
    pub asks: Vec<Ask>,
    /// What the job declares.
    pub locks: Requests,
}

impl Script {
    /// A script of any kind.
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

    /// One run that is done after this long.
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

    /// Whether a run of it goes on until it is stopped.
    pub fn is_endless(&self) -> bool {
        self.runs.iter().any(|(act, _)| matches!(act, Act::Forever | Act::Late | Act::Idle))
    }

    /// Whether it is one of a job that never ends by itself, and may be stopped so that others can run.
    pub fn is_continuous(&self) -> bool {
        self.runs.len() == ENDLESS_RUNS
    }

    /// As a job's options, now and then too large to be stored in one piece.
    pub fn options(&self, rng: &SeededRng) -> Box<RawValue> {
        let padding = match rng.below(100) {
            0 => 100_000,
            1..4 => 10_000,
            _ => 0,
        };
        RawValue::from_string(format!("\"{self}{}\"", " ".repeat(padding))).expect("this is JSON")
    }

    /// Back from a job's options.
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

/// Runs scripts in one place.
pub struct SimHandler {
    /// The place.
    pub link: Arc<Link>,
    /// Who hears of it.
    pub checker: Arc<Checker>,
}

/// Tells what became of a run, however it ends.
struct Reply<'a> {
    handler: &'a SimHandler,
    claim: Claim,
    did: Did,
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        self.handler.checker.on_done(self.handler.link.place, &self.claim, self.did.clone());
    }
}

impl SimHandler {
    /// Plays the next run of a job's script. `say` is called now and then.
    ///
    /// # Panics
    /// If the script says so.
    pub async fn play(
        &self,
        job: &Job,
        options: &RawValue,
        stop: &CancellationToken,
        asks: &dyn Asks,
        say: impl Fn(Said) + Send + Sync,
    ) -> Did {
        let claim = job.claim().cloned().expect("a claimed job has a claim");
        let run = self.checker.on_run(self.link.place, job);
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
                // One that is held to reports is longer than it may be silent.
                let heartbeat = job.terms().timeouts.heartbeat_us.unwrap_or(0).unsigned_abs();
                let pause = (time / 5).max(Duration::from_micros(heartbeat / 2));
                for n in 0..REPORTS {
                    say(Said::Progress(n));
                    stopped = stopped || stopped_within(pause).await;
                }
                stopped
            }
            Act::Done | Act::Crash | Act::Fail | Act::Panic => stopped_within(time).await,
        };
        let did = match act {
            _ if stopped => Did::Stopped,
            Act::Crash => Did::Crashed,
            Act::Fail => Did::Failed,
            Act::Panic => {
                told.did = Did::Crashed;
                panic!("{PANIC}");
            }
            _ => Did::Completed,
        };
        told.did = did.clone();
        did
    }

    /// Asks for a lock, or gives one back.
    async fn ask(&self, claim: &Claim, job: &Job, ask: &Ask, asks: &dyn Asks) -> Answer {
        let (checker, place) = (&self.checker, self.link.place);
        self.link.core.note(place, "asks", format!("{} {} {ask}", job.id, claim.number));
        let answer = match ask {
            Ask::Take { lock, patience_ms } => {
                checker.on_ask(claim, lock);
                let answer = asks.lock(lock, patience_ms.map(Duration::from_millis)).await;
                if answer == Answer::Done {
                    checker.on_granted(place, job, claim, lock);
                }
                answer
            }
            Ask::GiveBack(spot) => {
                checker.on_give_back(claim, spot);
                asks.give_back(spot).await
            }
        };
        self.link.core.note(place, "was told", format!("{} {} {answer:?}", job.id, claim.number));
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

/// A run in a node asks there.
struct AsksHere<'a> {
    job: &'a JobContext,
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
}

#[async_trait]
impl JobHandler for SimHandler {
    async fn run(&self, job: JobContext) -> Outcome {
        let claim = job.job.claim().cloned().expect("a claimed job has a claim");
        let say = |said| match said {
            Said::Progress(n) => job.report(&n),
            // One that never ends may have nothing to do, and need not report then; any other is to report.
            Said::Idle => job.idle(job.job.continuous),
        };
        let asks = AsksHere { job: &job, runtime: SimRuntime(self.link.clone()) };
        match self.play(&job.job, &job.options, &job.stop, &asks, say).await {
            Did::Completed => Outcome::completed(&(&claim.worker, claim.number)),
            Did::Failed => Outcome::Failed(format!("failure {}", claim.number)),
            Did::Crashed => Outcome::Crashed(format!("crash {}", claim.number)),
            Did::Stopped | Did::Runs | Did::Dropped => Outcome::Stopped,
        }
    }
}
