//! Clients: they add, cancel, restart and remove jobs. Each client changes only its own jobs, one operation after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use turnwise_queue::edit::{self, Edit};
use turnwise_queue::unique::{self, Did, OnConflict, Outcome};
use turnwise_queue::{
    Error, Holder, JobSpec, Keyspace, Member, NewJob, State, clock, filters, groups, jobs, schedules,
};
use turnwise_store::{Runtime, Store};
use turnwise_worker::{Tunables, keep_clock};

use crate::check::CheckerState;
use crate::core::lock;
use crate::engine::SimEngine;
use crate::filters::Filters;
use crate::ledger::{JobKey, Op, OpKind};
use crate::link::{Link, SimRuntime};
use crate::model::JobRows;
use crate::node::Setting;
use crate::rng::SeededRng;
use crate::script::Script;
use crate::trace::Site;
use crate::world::JUMP_MS;

/// Jobs of the flood run up to this long, so that many run when their worker dies.
const FLOOD_MS: u64 = 60_000;

/// The longest time that a client is idle, in ms.
const LULL_MS: u64 = 30_000;

/// The longest delay of a job in worlds where clocks are set by hours, in ms.
const DELAY_MS: u64 = 2 * 3_600_000;

/// A day, in µs.
pub const DAY_US: i64 = 86_400_000_000;

/// At most this many continuous jobs of a type fill slots. One transaction adds `FILL_BATCH` of them.
const MAX_FILL: usize = 60;
const FILL_BATCH: usize = 10;
/// If the jobs are busy, this many more of them than slots are added.
const MORE_THAN_SLOTS: usize = 3;
/// The delay of the job that is added after them, in µs. They run by then.
const FILL_DELAY_US: i64 = 15_000_000;

/// The store of a process that has just started.
fn open(setting: &Setting, link: &Arc<Link>) -> Store {
    let engine = SimEngine::new(setting.store.clone(), Some(link.clone()));
    let store = Store::new(engine, Arc::new(SimRuntime(link.clone())));
    link.set_clock(store.clock());
    lock(&setting.meters).push(store.meter().clone());
    store
}

/// The job that an addition has changed because it has the unique key of the one to add.
fn found_by(outcome: &Outcome) -> Option<JobKey> {
    match outcome {
        Outcome::Found(found) if matches!(found.did, Did::Replaced | Did::RunsAgain) => {
            Some((found.job_type.clone(), found.id.clone()))
        }
        Outcome::Found(_) | Outcome::Added(_) => None,
    }
}

/// A client.
pub struct Client {
    setting: Arc<Setting>,
    link: Arc<Link>,
    runtime: Arc<dyn Runtime>,
    store: Store,
    /// The task that keeps comparing its clock with those of the other processes.
    keeper: Option<AbortOnDropHandle<()>>,
    keys: Keyspace,
    rng: SeededRng,
    number: u32,
    /// Its jobs, and whether each runs until it is stopped.
    jobs: BTreeMap<JobKey, bool>,
    /// Endless jobs of any client: their options are those of jobs that were to be added, and found them.
    endless: BTreeSet<JobKey>,
    /// The job that most of the jobs that it adds depend on, if set.
    hub: Option<JobKey>,
    /// The tenant of the jobs that it adds. If unset, the tenants are random.
    payer: Option<String>,
}

impl Client {
    /// A client.
    pub fn new(setting: &Arc<Setting>, number: u32) -> Self {
        let core = &setting.core;
        let link = Link::new(core, Site::Client(number), setting.plan.rates, 0, 0);
        let store = open(setting, &link);
        let runtime = store.runtime().clone();
        let rng = core.rng.fork(3);
        let (setting, keys) = (setting.clone(), Keyspace::default());
        Client {
            setting,
            link,
            runtime,
            store,
            keeper: None,
            keys,
            rng,
            number,
            jobs: BTreeMap::new(),
            endless: BTreeSet::new(),
            hub: None,
            payer: None,
        }
    }

    /// Does everything that the plan asks for. Returns the client, to clean up at the end.
    pub async fn work(mut self) -> Self {
        let plan = self.setting.plan.clone();
        self.keep_time().await;
        if self.number == 0 && plan.flood > 0 {
            let script = Script::long(self.rng.below(FLOOD_MS));
            let job_type = self.rng.choose(&plan.types).clone();
            let key = |n| (job_type.clone(), format!("f{n:03}"));
            let new: Vec<(JobKey, Script)> =
                (0..plan.flood).map(|n| (key(n), self.locking(script.clone()))).collect();
            // A job takes at most four rows: if the outcome of an attempt is unknown, the job may have ended before the
            // next attempt. A few more rows exist, one of them for each tenant. Each dependency takes three. Each job adds
            // one read to the conflict check, and so does each dependency.
            let (rows, reads) = if plan.eligibility.is_some() { (16, 6) } else { (5, 2) };
            let limits = plan.limits;
            let most = (limits.transaction_writes / rows).min(limits.transaction_conflicts / reads);
            let has_hub = plan.eligibility.as_ref().is_some_and(|plan| plan.hub);
            self.hub = has_hub.then(|| new[0].0.clone());
            for batch in new.chunks(most) {
                self.add(batch.to_vec(), (None, None), false, false).await;
            }
            self.hub = None;
        }
        if self.number == 0 && plan.schedules {
            self.add_schedules().await;
        }
        for n in 0..plan.ops {
            // Sometimes the client pauses, so that faults also occur while few jobs exist.
            let think_ms = if self.rng.chance(80) { LULL_MS } else { plan.think_ms };
            sleep(self.rng.ms(0, think_ms)).await;
            if self.setting.core.is_ending() {
                break;
            }
            if plan.jumps && self.setting.core.is_chaos() && self.rng.chance(50) {
                self.set_clock().await;
            }
            if plan.schedules && self.rng.chance(100) {
                self.change_groups().await;
                continue;
            }
            if plan.eligibility.as_ref().is_some_and(|plan| self.rng.chance(plan.filters)) {
                self.change_filters().await;
                continue;
            }
            if plan.edits && !self.jobs.is_empty() && self.rng.chance(150) {
                let key = self.rng.choose(&self.jobs.keys().cloned().collect::<Vec<_>>()).clone();
                match self.rng.below(4) {
                    0 => self.release(&key).await,
                    1 => self.hold(&key).await,
                    _ => self.edit(&key).await,
                }
                continue;
            }
            let old: Vec<JobKey> = self.jobs.keys().cloned().collect();
            if old.is_empty() || self.rng.chance(500) {
                let count = if self.rng.chance(200) { self.rng.between(2, 6) } else { 1 };
                let job_type = self.rng.choose(&plan.job_types()).clone();
                let key = |m| (job_type.clone(), format!("c{}-{n}-{m}", self.number));
                let new = (0..count).map(|m| (key(m), self.script())).collect();
                self.add_somehow(new).await;
            } else {
                let key = self.rng.choose(&old).clone();
                let chance =
                    if plan.eligibility.is_some() { self.rng.below(130) } else { self.rng.below(100) };
                match chance {
                    0..35 => self.add_somehow(vec![(key, self.script())]).await,
                    35..70 => self.cancel(&key).await,
                    70..85 => self.restart(&key).await,
                    100..115 => self.retry(&key).await,
                    115.. => self.set_priority(&key).await,
                    _ => self.remove(&key).await,
                }
            }
        }
        self
    }

    /// Sets its machine's clock, and restarts in half of the cases. It then compares clocks before anything else, as a
    /// server does.
    async fn set_clock(&mut self) {
        let by_us = i64::try_from(self.rng.below(JUMP_MS) * 1_000).expect("a few hours");
        let by_us = if self.rng.chance(500) { by_us } else { -by_us };
        self.note("sets its clock", by_us.to_string());
        self.link.shift_clock(by_us);
        if self.rng.chance(500) {
            self.note("starts anew", String::new());
            self.store = open(&self.setting, &self.link);
            self.runtime = self.store.runtime().clone();
            self.keep_time().await;
        }
    }

    /// Compares its clock with those of the other processes, and keeps doing so.
    async fn keep_time(&mut self) {
        while clock::compare(&self.store, &self.keys).await.is_err() {}
        let keeps = keep_clock((self.store.clone(), self.keys.clone()), CancellationToken::new());
        self.keeper = Some(AbortOnDropHandle::new(tokio::spawn(keeps)));
    }

    /// Adds continuous jobs to each type that take all slots, and then a delayed job, which must get its turn nevertheless.
    /// The continuous jobs either have nothing to do, or they are busy and belong to one tenant. Busy ones take turns,
    /// because there are more of them than slots.
    pub async fn fill(&mut self) {
        let plan = self.setting.plan.clone();
        let Tunables { max_jobs, fair, .. } = lock(&self.setting.tunables).clone();
        let slots = plan.nodes as usize * max_jobs;
        let is_busy = slots < MAX_FILL && self.rng.chance(500);
        let (script, count) = match is_busy {
            true => (Script::busy(), slots + MORE_THAN_SLOTS),
            false => (Script::idle(), slots.min(MAX_FILL)),
        };
        self.payer = is_busy.then(|| plan.largest_tenant(&fair.shares));
        for job_type in &plan.types {
            let key = |n| (job_type.clone(), format!("s{n}"));
            for batch in (0..count).collect::<Vec<_>>().chunks(FILL_BATCH) {
                let new = batch.iter().map(|n| (key(*n), script.clone())).collect();
                self.add(new, (None, None), false, false).await;
            }
            let later_us = self.runtime.now_us() + FILL_DELAY_US;
            let key = (job_type.clone(), "later".to_owned());
            self.add(vec![(key, Script::long(0))], (Some(later_us), None), false, false).await;
        }
        self.payer = None;
    }

    /// Adds to each type a job that is delayed by a day.
    pub async fn wait_a_day(&mut self) {
        for job_type in self.setting.plan.types.clone() {
            let then_us = self.runtime.now_us() + DAY_US;
            let key = (job_type, "tomorrow".to_owned());
            self.add(vec![(key, Script::long(0))], (Some(then_us), None), false, false).await;
        }
    }

    /// Cancels each endless job, once, and releases what it holds; one of the clients removes all filters. Returns whether there was anything to do.
    pub async fn clean_up(&mut self) -> bool {
        let mut endless = false;
        if self.number == 0 {
            let names = self.setting.checker.known(|known| known.filters.as_ref().map(Filters::names));
            for name in names.into_iter().flatten() {
                self.remove_filter(&name).await;
                endless = true;
            }
        }
        for key in self.jobs.keys().cloned().collect::<Vec<_>>() {
            if self.is_held(&key) {
                self.release(&key).await;
                endless = true;
            }
        }
        let own = self.jobs.iter().filter(|(_, endless)| **endless).map(|(key, _)| key);
        for key in own.chain(&self.endless).cloned().collect::<BTreeSet<_>>() {
            let record = self.setting.checker.known(|known| known.jobs.get(&key)?.record.clone());
            if record.is_some_and(|job| !job.state().is_final() && !job.cancel_requested()) {
                self.cancel(&key).await;
                endless = true;
            }
        }
        endless
    }

    fn script(&self) -> Script {
        self.locking(Script::any(&self.rng))
    }

    /// The script with the locks of a job, if jobs lock in this world.
    fn locking(&self, script: Script) -> Script {
        let Some(plan) = &self.setting.plan.locks else { return script };
        let locks = plan.declare(&self.rng);
        let asks = plan.asks(&self.rng, &locks);
        Script { asks, locks, ..script }
    }

    async fn add_somehow(&mut self, new: Vec<(JobKey, Script)>) {
        let long = self.setting.plan.jumps && self.rng.chance(200);
        let delay = match long {
            true => Some(self.rng.ms(0, DELAY_MS)),
            false => self.rng.chance(300).then(|| self.rng.ms(0, 20_000)),
        };
        if long {
            // The world may end before that.
            self.jobs.extend(new.iter().map(|(key, _)| (key.clone(), true)));
        }
        let not_before_us = delay.map(|delay| self.runtime.now_us() + delay.as_micros() as i64);
        let max_attempts = self.rng.chance(300).then(|| self.rng.between(0, 3) as u32);
        let once = self.rng.chance(250);
        self.add(new, (not_before_us, max_attempts), once, true).await;
    }

    async fn add(
        &mut self,
        new: Vec<(JobKey, Script)>,
        (not_before_us, max_attempts): (Option<i64>, Option<u32>),
        once: bool,
        keyed: bool,
    ) {
        let what = new.iter().map(|((_, id), script)| format!("{id} [{script}]")).collect::<Vec<_>>();
        self.note("adds", what.join(", "));
        for (key, script) in &new {
            let endless = self.jobs.entry(key.clone()).or_default();
            *endless |= script.is_endless();
        }
        // With a long delay, the world may end before a job that gets it.
        let is_late = self.setting.plan.jumps && not_before_us.is_some();
        let are_endless: Vec<bool> = new.iter().map(|(_, script)| is_late || script.is_endless()).collect();
        let keys: Arc<[JobKey]> = new.iter().map(|(key, _)| key.clone()).collect();
        let jobs: Arc<[NewJob]> = self.new_jobs(new, &keys, (not_before_us, max_attempts), keyed);
        for job in jobs.iter().filter(|job| !job.after.is_empty()) {
            self.note("lets wait", format!("{} for {:?}", job.id, job.after));
        }
        let (begun_us, clock_us) = (self.setting.core.elapsed_us(), self.runtime.now_us());
        let before = self.setting.checker.known(|known| known.adds.clone());
        let endless = Mutex::new(BTreeSet::new());
        let (jobs, runtime, space, link) = (&jobs, &self.runtime, &self.keys, &self.link);
        let (are_endless, found) = (&are_endless, &endless);
        let added = self
            .store
            .transact(|tx| async move {
                let mut added = Vec::with_capacity(jobs.len());
                for job in jobs.iter() {
                    let now_us = runtime.now_us();
                    added.push(unique::add(&tx, space, job, !once, now_us).await?);
                }
                link.set_op(Some(Op::of_add(jobs, &added, once)));
                let endless = added.iter().zip(are_endless).filter(|(_, is_endless)| **is_endless);
                lock(found).extend(endless.filter_map(|(added, _)| found_by(added)));
                Ok::<_, Error>(added)
            })
            .await;
        let told = match &added {
            Ok(added) => format!("{added:?}"),
            Err(error) => error.to_string(),
        };
        self.note("was told", told);
        self.endless.append(&mut lock(&endless));
        if let Ok(added) = added {
            self.check_added(jobs, &keys, added, &before, (begun_us, clock_us));
        }
    }

    /// Compares what a client was told of its jobs with the store.
    fn check_added(
        &self,
        jobs: &[NewJob],
        keys: &[JobKey],
        added: Vec<Outcome>,
        before: &BTreeMap<JobKey, u64>,
        (begun_us, clock_us): (i64, i64),
    ) {
        for (n, added) in added.into_iter().enumerate() {
            let changed = match &added {
                Outcome::Found(found) => {
                    self.setting.core.count(|stats| stats.found += 1);
                    let checked = self
                        .setting
                        .checker
                        .known(|known| known.unique.check_found(&jobs[n], found, begun_us, clock_us));
                    if let Err((invariant, story)) = checked {
                        self.setting.core.violated(invariant, format!("{:?}: {story}", self.link.site));
                    }
                    found_by(&added)
                }
                Outcome::Added(jobs::Added::AlreadyThere) => None,
                Outcome::Added(_) => Some(keys[n].clone()),
            };
            let count = |adds: &BTreeMap<JobKey, u64>, key: &JobKey| adds.get(key).copied().unwrap_or(0);
            let is_true = changed.is_none_or(|key| {
                self.setting.checker.known(|known| count(&known.adds, &key) > count(before, &key))
            });
            if !is_true {
                let story = format!("{:?} was told of {:?}: {added:?}", self.link.site, keys[n]);
                self.setting.core.violated("acknowledged changes are in the store", story);
            }
        }
    }

    /// What is stated of jobs with these scripts.
    fn new_jobs(
        &self,
        new: Vec<(JobKey, Script)>,
        keys: &[JobKey],
        (not_before_us, max_attempts): (Option<i64>, Option<u32>),
        keyed: bool,
    ) -> Arc<[NewJob]> {
        let mut tenants: BTreeMap<JobKey, String> = match &self.setting.plan.eligibility {
            Some(_) => self.setting.checker.known(|known| {
                let tenant = |rows: &JobRows| rows.record.as_ref().map(|job| job.tenant.clone());
                known.jobs.iter().map(|(key, rows)| (key.clone(), tenant(rows).unwrap_or_default())).collect()
            }),
            None => BTreeMap::new(),
        };
        let others: Vec<JobKey> = tenants.keys().cloned().collect();
        let plan = self.setting.plan.eligibility.as_ref();
        let after = |n: usize| match (plan, &self.hub) {
            (Some(plan), Some(hub)) => plan.after_hub(&self.rng, &keys[n], hub),
            (Some(plan), None) => plan.after(&self.rng, &keys[n], &keys[..n], &others),
            (None, _) => Vec::new(),
        };
        let groups = match keyed && self.setting.plan.schedules {
            true => self.setting.checker.known(|known| known.groups.open()),
            false => Vec::new(),
        };
        new.into_iter()
            .enumerate()
            .map(|(n, ((job_type, id), script))| {
                let tenant = self.payer.clone().unwrap_or_else(|| self.setting.plan.tenant(&self.rng));
                let own: Vec<&String> =
                    groups.iter().filter(|(of, _)| *of == tenant).map(|(_, name)| name).collect();
                let group = (!own.is_empty() && self.rng.chance(500)).then(|| *self.rng.choose(&own));
                let timeouts = self.setting.plan.timeouts(&self.rng);
                let after = after(n);
                // Results are of the same tenant. It may be another one by then.
                let of_first =
                    after.first().and_then(|one| tenants.get(&(one.job_type.clone(), one.id.clone())));
                let tenant = match of_first.filter(|tenant| self.payer.is_none() && !tenant.is_empty()) {
                    Some(of_first) if self.rng.chance(700) => of_first.clone(),
                    _ => tenant,
                };
                let is_own = |on: &JobKey| tenants.get(on) == Some(&tenant);
                let inputs = plan.map(|plan| plan.inputs(&self.rng, &after, is_own)).unwrap_or_default();
                tenants.insert(keys[n].clone(), tenant.clone());
                let unique = keyed.then(|| self.setting.plan.unique(&self.rng)).flatten();
                // A job that is replaced stays continuous, or not.
                let unique = unique
                    .filter(|unique| unique.on_conflict != OnConflict::Replace || !script.is_continuous());
                let priority = plan.filter(|_| self.rng.chance(300)).map(|plan| plan.priority(&self.rng));
                let spec = JobSpec {
                    tenant,
                    task: self.setting.plan.task(&self.rng, &job_type),
                    timeouts,
                    max_attempts,
                    retry: crate::plan::Plan::retry(&self.rng),
                    lifetime: self.setting.plan.lifetime(&self.rng),
                    group: group.map(|group| Member::of(group)),
                    unique,
                    inputs,
                    continuous: script.is_continuous(),
                    tags: (n % 3 > 0).then(|| format!("tag-{}", n % 3)).into_iter().collect(),
                    locks: script.locks.clone(),
                    reasons: plan.map(|plan| plan.reasons(&self.rng)).unwrap_or_default(),
                    ..JobSpec::default()
                };
                let new = NewJob::new(&job_type, &id, script.options(&self.rng));
                NewJob { spec, priority, not_before_us, after, ..new }
            })
            .collect()
    }

    async fn cancel(&mut self, key: &JobKey) {
        self.note("cancels", key.1.clone());
        self.link.set_op(Some(Op::of(OpKind::Cancel, key)));
        let (runtime, space) = (&self.runtime, &self.keys);
        let cancelled = self
            .store
            .transact(|tx| async move { jobs::cancel(&tx, space, &key.0, &key.1, runtime.now_us()).await })
            .await;
        let told = cancelled.as_ref().map_or_else(|error| error.to_string(), |told| format!("{told:?}"));
        self.note("was told", told);
        if let Ok(jobs::Cancelled::Now) = cancelled {
            let state =
                self.setting.checker.known(|known| Some(known.jobs.get(key)?.record.as_ref()?.state()));
            // It may be gone already, if clocks differ by more than the retention.
            if state.is_some_and(|state| state != State::Cancelled) {
                let story = format!("{key:?} was cancelled, and is {state:?}");
                self.setting.core.violated("acknowledged changes are in the store", story);
            }
        }
    }

    /// Whether a job is held, as the store has it.
    fn is_held(&self, key: &JobKey) -> bool {
        let held = |known: &mut CheckerState| known.jobs.get(key)?.record.as_ref()?.holder();
        self.setting.checker.known(held).is_some()
    }

    /// Gives a job other options, other locks and perhaps another start time.
    async fn edit(&mut self, key: &JobKey) {
        let script = Some(self.script()).filter(|script| !script.is_continuous());
        let script = script.unwrap_or_else(|| self.locking(Script::long(0)));
        self.note("edits", format!("{} [{script}]", key.1));
        *self.jobs.entry(key.clone()).or_default() |= script.is_endless();
        let start_us =
            self.rng.chance(300).then(|| self.runtime.now_us() + self.rng.ms(0, 20_000).as_micros() as i64);
        let new = NewJob::new(&key.0, &key.1, script.options(&self.rng));
        let new = &NewJob { not_before_us: start_us, ..new };
        self.link.set_op(Some(Op::of_edit(key, new.clone())));
        let before = self.setting.checker.known(|known| known.adds.get(key).copied());
        let (runtime, space, locks) = (&self.runtime, &self.keys, &script.locks);
        let edited = self
            .store
            .transact(|tx| async move {
                let mut job = jobs::get(&tx, space, &key.0, &key.1).await?.ok_or(Error::NotFound)?;
                let edit = Edit {
                    spec: JobSpec { locks: locks.clone(), ..job.spec.clone() },
                    options: Some(new.options.clone()),
                    priority: None,
                    start_us,
                    note: "options".to_owned(),
                };
                edit::edit(&tx, space, &mut job, edit, runtime.now_us()).await
            })
            .await;
        self.note("was told", format!("{edited:?}"));
        let after = self.setting.checker.known(|known| known.adds.get(key).copied());
        if matches!(edited, Ok(Ok(()))) && after == before {
            let story = format!("{:?} was told that {key:?} is edited", self.link.site);
            self.setting.core.violated("acknowledged changes are in the store", story);
        }
    }

    async fn hold(&mut self, key: &JobKey) {
        self.note("holds", key.1.clone());
        self.link.set_op(Some(Op::of(OpKind::Hold, key)));
        let (runtime, space) = (&self.runtime, &self.keys);
        let held = self
            .store
            .transact(|tx| async move {
                let mut job = jobs::get(&tx, space, &key.0, &key.1).await?.ok_or(Error::NotFound)?;
                edit::hold(&tx, space, &mut job, Holder::Client, None, runtime.now_us()).await
            })
            .await;
        self.note("was told", format!("{held:?}"));
        let record = self.setting.checker.known(|known| known.jobs.get(key)?.record.clone());
        // It may have expired, and be gone by now.
        if matches!(held, Ok(Ok(())))
            && record.is_some_and(|job| !job.state().is_final() && job.holder().is_none())
        {
            let story = format!("{:?} was told that {key:?} is held", self.link.site);
            self.setting.core.violated("acknowledged changes are in the store", story);
        }
    }

    async fn release(&mut self, key: &JobKey) {
        self.note("releases", key.1.clone());
        self.link.set_op(Some(Op::of(OpKind::Release, key)));
        let (runtime, space) = (&self.runtime, &self.keys);
        let released = self
            .store
            .transact(|tx| async move {
                let mut job = jobs::get(&tx, space, &key.0, &key.1).await?.ok_or(Error::NotFound)?;
                edit::release(&tx, space, &mut job, Holder::Client, None, runtime.now_us()).await
            })
            .await;
        self.note("was told", format!("{released:?}"));
    }

    async fn restart(&mut self, key: &JobKey) {
        self.note("restarts", key.1.clone());
        self.link.set_op(Some(Op::of(OpKind::Restart, key)));
        let space = &self.keys;
        let done =
            self.store.transact(|tx| async move { jobs::restart(&tx, space, &key.0, &key.1).await }).await;
        self.note("was told", done.map_or_else(|error| error.to_string(), |()| "done".to_owned()));
    }

    async fn retry(&mut self, key: &JobKey) {
        self.note("retries", key.1.clone());
        self.link.set_op(Some(Op::of(OpKind::Retry, key)));
        let (runtime, space) = (&self.runtime, &self.keys);
        let done = self
            .store
            .transact(|tx| async move {
                let job = jobs::get(&tx, space, &key.0, &key.1).await?.ok_or(Error::NotFound)?;
                // The server refuses this.
                if job.holder().is_some() {
                    return Ok(jobs::Retried::Not(job.state()));
                }
                jobs::retry(&tx, space, &key.0, &key.1, runtime.now_us()).await
            })
            .await;
        let told = done.map_or_else(|error| error.to_string(), |told| format!("{told:?}"));
        self.note("was told", told);
    }

    async fn set_priority(&mut self, key: &JobKey) {
        let Some(plan) = &self.setting.plan.eligibility else { return };
        let priority = plan.priority(&self.rng);
        self.note("sets the priority of", format!("{} to {priority}", key.1));
        self.link.set_op(Some(Op::of(OpKind::SetClass, key)));
        let space = &self.keys;
        let done = self
            .store
            .transact(|tx| async move { jobs::set_priority(&tx, space, &key.0, &key.1, priority).await })
            .await;
        let told = done.as_ref().map_or_else(|error| error.to_string(), |told| format!("{told:?}"));
        self.note("was told", told);
        let is = self.setting.checker.known(|known| Some(known.jobs.get(key)?.record.as_ref()?.priority));
        // It may have ended and be gone by now.
        if matches!(done, Ok(jobs::Prioritized::Set(_))) && is.is_some_and(|is| is != priority) {
            let story = format!("{key:?} was given priority {priority}, and has {is:?}");
            self.setting.core.violated("acknowledged changes are in the store", story);
        }
    }

    async fn add_schedules(&mut self) {
        for new in &crate::schedules::some(&self.rng, &self.setting.plan) {
            self.note("schedules", format!("{} {:?} {:?}", new.name, new.calendar, new.missed));
            self.link.set_op(Some(Op::of_schedules()));
            let (space, runtime) = (&self.keys, &self.runtime);
            let done = self
                .store
                .transact(|tx| async move { schedules::put(&tx, space, new, runtime.now_us()).await });
            self.note(
                "was told",
                done.await.map_or_else(|error| error.to_string(), |put| format!("{put:?}")),
            );
        }
    }

    /// Creates a group, or closes one.
    async fn change_groups(&mut self) {
        let open = self.setting.checker.known(|known| known.groups.open());
        if !open.is_empty() && self.rng.chance(400) {
            let group = self.rng.choose(&open).clone();
            return self.close_group(&group).await;
        }
        let new = &crate::groups::some(&self.rng, &self.setting.plan, &open);
        self.note("creates group", format!("{} of {}, in {:?}", new.name, new.tenant, new.parent));
        self.link.set_op(Some(Op::of_groups()));
        let (space, runtime) = (&self.keys, &self.runtime);
        let done =
            self.store.transact(|tx| async move { groups::create(&tx, space, new, runtime.now_us()).await });
        let told = done.await.map_or_else(|error| error.to_string(), |created| format!("{created:?}"));
        self.note("was told", told);
    }

    async fn close_group(&mut self, group: &crate::groups::GroupKey) {
        self.note("closes group", format!("{group:?}"));
        self.link.set_op(Some(Op::of_groups()));
        let (space, (tenant, name)) = (&self.keys, group);
        let done = self.store.transact(|tx| async move { groups::close(&tx, space, tenant, name).await });
        self.note("was told", done.await.map_or_else(|error| error.to_string(), |is| is.to_string()));
    }

    /// Closes all groups, so that they end.
    pub async fn close_groups(&mut self) {
        loop {
            let open = self.setting.checker.known(|known| known.groups.open());
            let Some(group) = open.first() else { return };
            self.close_group(group).await;
        }
    }

    /// Removes all schedules: they would add jobs for ever.
    pub async fn remove_schedules(&mut self) {
        loop {
            let names = self.setting.checker.known(|known| known.schedules.names());
            let Some(name) = names.first() else { return };
            self.note("removes schedule", name.clone());
            self.link.set_op(Some(Op::of_schedules()));
            let space = &self.keys;
            let done = self.store.transact(|tx| async move { schedules::remove(&tx, space, name).await });
            self.note("was told", done.await.map_or_else(|error| error.to_string(), |is| is.to_string()));
        }
    }

    /// Writes a filter, or removes one.
    async fn change_filters(&mut self) {
        let setting = self.setting.clone();
        let Some(eligibility) = &setting.plan.eligibility else { return };
        let names = setting.checker.known(|known| known.filters.as_ref().map(Filters::names));
        let names = names.unwrap_or_default();
        if !names.is_empty() && self.rng.chance(400) {
            let name = self.rng.choose(&names).clone();
            return self.remove_filter(&name).await;
        }
        let tenant = setting.plan.tenant(&self.rng);
        let now_us = self.runtime.now_us();
        let rule = eligibility.filter(&self.rng, &setting.plan.job_types(), &tenant, now_us);
        self.note("filters", format!("{rule:?}"));
        self.link.set_op(Some(Op::of_filters()));
        let (space, rule) = (&self.keys, &rule);
        let done = self.store.transact(|tx| async move { filters::put(&tx, space, rule).await }).await;
        self.note("was told", done.map_or_else(|error| error.to_string(), |()| "done".to_owned()));
    }

    async fn remove_filter(&mut self, name: &str) {
        self.note("removes filter", name.to_owned());
        self.link.set_op(Some(Op::of_filters()));
        let space = &self.keys;
        let done = self.store.transact(|tx| async move { filters::remove(&tx, space, name).await }).await;
        self.note("was told", done.map_or_else(|error| error.to_string(), |is| is.to_string()));
    }

    async fn remove(&mut self, key: &JobKey) {
        self.note("removes", key.1.clone());
        self.link.set_op(Some(Op::of(OpKind::Remove, key)));
        let space = &self.keys;
        let done =
            self.store.transact(|tx| async move { jobs::remove(&tx, space, &key.0, &key.1).await }).await;
        self.note("was told", done.map_or_else(|error| error.to_string(), |()| "done".to_owned()));
    }

    fn note(&self, what: &'static str, text: String) {
        self.setting.core.note(self.link.site, what, text);
    }
}
