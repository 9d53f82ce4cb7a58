//! What simulated jobs do, and the handler that does it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use turnwise_queue::{Claim, Job};
use turnwise_store::Runtime;
use turnwise_worker::{JobContext, JobHandler, Outcome};

use crate::check::Checker;
use crate::dice::Dice;
use crate::ledger::Did;
use crate::link::{Link, SimRuntime};

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script(pub Vec<(Act, u64)>);

impl Script {
    /// A script of any kind.
    pub fn any(dice: &Dice) -> Self {
        if dice.chance(150) {
            let act = *dice.choose(&[Act::Forever, Act::Forever, Act::Idle, Act::Late]);
            let ms = dice.between(0, *dice.choose(&[50, 5_000, 20_000]));
            return Script(vec![(act, ms); ENDLESS_RUNS]);
        }
        let runs = (0..dice.below(3)).map(|_| {
            let act = *dice.choose(&ACTS);
            let longest_ms = *dice.choose(&[0, 50, 2_000, 2_000, 30_000]);
            (act, dice.between(0, longest_ms))
        });
        Script(runs.collect())
    }

    /// One run that is done after this long.
    pub fn long(ms: u64) -> Self {
        Script(vec![(Act::Done, ms)])
    }

    /// Whether a run of it goes on until it is stopped.
    pub fn is_endless(&self) -> bool {
        self.0.iter().any(|(act, _)| matches!(act, Act::Forever | Act::Late | Act::Idle))
    }

    /// Whether it is one of a job that never ends by itself, and may be stopped so that others can run.
    pub fn is_continuous(&self) -> bool {
        self.0.len() == ENDLESS_RUNS
    }

    /// As a job's options, now and then too large to be stored in one piece.
    pub fn options(&self, dice: &Dice) -> Box<RawValue> {
        let padding = match dice.below(100) {
            0 => 100_000,
            1..4 => 10_000,
            _ => 0,
        };
        RawValue::from_string(format!("\"{self}{}\"", " ".repeat(padding))).expect("this is JSON")
    }

    /// Back from a job's options.
    fn parse(options: &str) -> Self {
        let words = options.trim_matches('"').split_whitespace();
        let run = |word: &str| {
            let (act, ms) = word.split_once(':').expect("this module wrote it");
            let act = ACTS.iter().find(|known| format!("{known:?}") == act).expect("this module wrote it");
            (*act, ms.parse().expect("this module wrote it"))
        };
        Script(words.map(run).collect())
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(act, ms)| write!(f, "{act:?}:{ms} "))
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
struct Told<'a> {
    handler: &'a SimHandler,
    claim: Claim,
    did: Did,
}

impl Drop for Told<'_> {
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
        say: impl Fn(Said) + Send + Sync,
    ) -> Did {
        let claim = job.claim.clone().expect("a claimed job has a claim");
        let run = self.checker.on_run(self.link.place, job);
        let mut told = Told { handler: self, claim, did: Did::Dropped };
        let script = Script::parse(options.get());
        let (act, ms) = script.0.get(run).copied().unwrap_or((Act::Done, 20));
        let runtime = SimRuntime(self.link.clone());
        let time = Duration::from_millis(ms);
        let stopped_within = async |time: Duration| {
            tokio::select! {
                biased;
                () = stop.cancelled() => true,
                () = runtime.sleep(time) => false,
            }
        };
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
                for n in 0..REPORTS {
                    say(Said::Progress(n));
                    stopped = stopped || stopped_within(time / 5).await;
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
}

#[async_trait]
impl JobHandler for SimHandler {
    async fn run(&self, job: JobContext) -> Outcome {
        let claim = job.job.claim.clone().expect("a claimed job has a claim");
        let say = |said| match said {
            Said::Progress(n) => job.report(&n),
            Said::Idle => job.idle(true),
        };
        match self.play(&job.job, &job.options, &job.stop, say).await {
            Did::Completed => Outcome::completed(&(&claim.worker, claim.number)),
            Did::Failed => Outcome::Failed(format!("failure {}", claim.number)),
            Did::Crashed => Outcome::Crashed(format!("crash {}", claim.number)),
            Did::Stopped | Did::Runs | Did::Dropped => Outcome::Stopped,
        }
    }
}
