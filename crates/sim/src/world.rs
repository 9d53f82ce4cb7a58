//! One world, from its beginning to its end.
//!
//! A world has rounds of chaos and calm. During chaos, nodes crash, pause, lose the store, and restart. The calm after it
//! checks the promises that have a deadline ([`liveness`]). Then all faults end, and every job must reach its end. Finally,
//! all processes leave, and only the records of jobs may be left.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use turnwise_policy::fair_share::Fairness;
use turnwise_store::Limits;

use crate::broken::in_words;
use crate::check::{Checker, CheckerState};
use crate::client::{Client, DAY_US};
use crate::core::{Core, Stats, Violation, lock};
use crate::engine::Writer;
use crate::external::{Actor, Life};
use crate::filters::Filters;
use crate::link::{Link, SLOW_MS};
use crate::liveness::{self, Inspection};
use crate::locks::Locks;
use crate::modes::Operator;
use crate::node::{Node, Process, Setting};
use crate::plan::{EXTERNAL, Plan, fair_rules};
use crate::rng::SeededRng;
use crate::script::PANIC;
use crate::store::SimStore;
use crate::trace::Site;
use crate::turns::{self, Turns};

/// How long the effects of faults last after them: an operation may be slow in both directions, and its transaction is
/// repeated after a pause.
const AFTERMATH: Duration = Duration::from_millis(2 * SLOW_MS + Limits::DEFAULT.transaction_ms);
/// The time between two checks whether the world's end has come.
const POLL: Duration = Duration::from_secs(2);
/// The time within which a further job ends once all faults are over, and every process leaves. It is far longer than the
/// longest script takes with the fewest slots, so that only stuck jobs can exceed it. Jobs that exclude each other by locks may need
/// more time in all.
const END: Duration = Duration::from_secs(3_600);
/// The time between two checks whether jobs start, in a calm.
const LOOK: Duration = Duration::from_secs(5);
/// So many calms may a world wait for one of them. The effects of faults before it, and workers that are registered again, delay it.
const LONGEST_WAIT_FOR_CALM: i64 = 10;
/// The time between two cycles, in worlds that must check turns.
const FAST_ROTATION: Duration = Duration::from_secs(2);
/// Worlds with more nodes do not check turns.
const MAX_NODES_FOR_TURNS: u32 = 6;
/// The longest pause of a node, in ms. It exceeds every health timeout.
const PAUSE_MS: u64 = 60_000;
/// The longest time without the store, in ms.
const CUT_MS: u64 = 40_000;
/// The longest run of a process that is asked to leave right after its start, in ms.
const HASTE_MS: u64 = 1_000;
/// The longest time before a process that has ended is replaced, in ms.
const RESTART_MS: u64 = 20_000;
/// The most that a clock is set forward or back, in ms.
const SHIFT_MS: u64 = 10_000;
/// The same, in worlds where clocks are set by hours.
pub const JUMP_MS: u64 = 3 * 3_600_000;

/// The longest time between the start or end of a charge and the commit of the claim or of its end. It covers the
/// transaction with its retries, and the response.
const CHARGED_LATE: Duration = Duration::from_millis(500);

/// How a world ended.
#[derive(Debug, Clone)]
pub struct Report {
    /// The counts of what happened.
    pub stats: Stats,
    /// The hash of its whole trace.
    pub hash: u64,
    /// The end of its trace, or all of it on request.
    pub trace: Vec<String>,
    /// The first violation.
    pub violation: Option<Violation>,
    /// How long it lasted on its own clock.
    pub lasted: Duration,
}

/// Runs the world of a seed to its end.
///
/// # Panics
/// If the machine cannot start a runtime.
pub fn run(seed: u64, keep_trace: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without threads and without I/O needs nothing");
    runtime.block_on(async {
        let core = Core::new(seed, keep_trace);
        let plan = Plan::new(seed, &core.rng);
        let checker = Checker::new(&core, &plan);
        let (clock, told) = (core.clone(), checker.clone());
        let store = SimStore::new(
            plan.limits,
            Box::new(move || clock.now_us()),
            Some(Box::new(move |writer: &Writer, version, changes: &[_]| {
                told.on_commit(writer, version, changes);
            })),
        );
        core.note(Site::World, "seed", format!("{seed} {plan:?}"));
        let tunables = plan.options.tunables.clone();
        let setting = Arc::new(Setting {
            core: core.clone(),
            store,
            checker,
            plan,
            servers: Mutex::default(),
            tunables: Mutex::new(tunables),
            told: Mutex::default(),
            heard: Mutex::default(),
            meters: Mutex::default(),
        });
        let meters = setting.clone();
        let mut world = World { setting, nodes: Vec::new(), actors: Vec::new(), operator: None };
        tokio::select! {
            biased;
            () = core.failed.notified() => {}
            ended = world.live() => {
                if let Err(Violation { invariant, story }) = ended {
                    core.violated(invariant, story);
                }
            }
        }
        // Nothing in a world exceeds the limits of any engine. A refused transaction is therefore a batch that is too long.
        let refused: u64 = lock(&meters.meters).iter().map(|meter| meter.counters().too_much).sum();
        if refused > 0 {
            core.violated("every transaction fits the store's limits", format!("{refused} did not"));
        }
        let (hash, trace) = core.trace();
        let lasted = Duration::from_micros(u64::try_from(core.elapsed_us()).unwrap_or(0));
        Report { stats: core.stats(), hash, trace, violation: core.violation(), lasted }
    })
}

/// Keeps the panics of simulated handlers out of the terminal, in this whole process.
pub fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let show = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload_as_str() != Some(PANIC) {
                show(panic);
            }
        }));
    });
}

/// The length of a pause: random, or close to the health timeout, so that the return of a worker may race with its removal.
fn pause_of(plan: &Plan, rng: &SeededRng) -> Duration {
    match rng.chance(500) {
        true => rng.ms(0, PAUSE_MS),
        false => {
            plan.health_timeout()
                + rng.ms(0, 2_000)
                + plan.options.health_interval * u32::from(rng.chance(500))
        }
    }
}

/// Pauses a process.
fn pause(core: &Arc<Core>, link: &Arc<Link>, time: Duration) {
    core.note(link.site, "pauses", format!("{time:?}"));
    core.count(|stats| stats.pauses += 1);
    core.disturb(Duration::ZERO);
    link.pause(time);
    let (core, link) = (core.clone(), link.clone());
    tokio::spawn(async move {
        sleep(time).await;
        core.note(link.site, "goes on", "");
        core.disturb(Duration::ZERO);
    });
}

/// Changes the rules of fair share, or the number of slots, in all processes.
fn change(setting: &Arc<Setting>) {
    let (core, plan) = (&setting.core, &setting.plan);
    let mut tunables = lock(&setting.tunables).clone();
    match core.rng.chance(500) {
        true => tunables.fair = fair_rules(&core.rng, plan.tenants),
        false => {
            let slots = core.rng.between(1, plan.options.tunables.max_jobs as u64);
            tunables.max_jobs = usize::try_from(slots).expect("it was one");
        }
    }
    core.note(Site::World, "changes", format!("{tunables:?}"));
    core.disturb(Duration::ZERO);
    setting.change(tunables);
}

/// Makes rotation so fast that many turns can be checked. Has no effect without rotation.
fn hurry(setting: &Arc<Setting>) {
    let mut tunables = lock(&setting.tunables).clone();
    if let Some(rotation) = &mut tunables.fair.rotation {
        rotation.interval = FAST_ROTATION;
        tunables.fair.fairness = Fairness::VirtualTime;
        setting.core.note(Site::World, "changes", format!("{tunables:?}"));
        setting.change(tunables);
    }
}

/// Causes a fault of an external worker.
fn disturb(setting: &Arc<Setting>, actor: &mut Actor) {
    let (core, plan) = (&setting.core, &setting.plan);
    let rng = &core.rng;
    actor.life.take_if(|life| life.has_left());
    let Some(life) = actor.life.as_mut() else { return actor.start(setting) };
    let link = life.link.clone();
    match rng.below(10) {
        0..4 if plan.crashes => {
            core.note(link.site, "crashes", "");
            core.count(|stats| stats.crashes += 1);
            core.disturb(Duration::ZERO);
            actor.life.take().expect("it was just there").crash();
        }
        4..7 if plan.pauses && !link.is_paused() => pause(core, &link, pause_of(plan, rng)),
        7..9 => {
            core.note(link.site, "is asked to leave", "");
            core.count(|stats| stats.shutdowns += 1);
            core.disturb(Duration::ZERO);
            life.shut_down();
        }
        _ => {}
    }
}

struct World {
    setting: Arc<Setting>,
    nodes: Vec<Node>,
    /// External workers.
    actors: Vec<Actor>,
    /// Who changes the modes of workers, if someone does.
    operator: Option<Operator>,
}

impl World {
    async fn live(&mut self) -> Result<(), Violation> {
        let setting = self.setting.clone();
        let (core, plan) = (&setting.core, &setting.plan);
        self.operator = plan.modes.then(|| Operator::new(&setting));
        for number in 0..plan.nodes {
            let mut node = Node::new(&setting, number);
            node.start(&setting);
            self.nodes.push(node);
        }
        for number in 0..plan.externals {
            let mut actor = Actor::new(number);
            actor.start(&setting);
            self.actors.push(actor);
        }
        let clients: Vec<JoinHandle<Client>> =
            (0..plan.clients).map(|n| tokio::spawn(Client::new(&setting, n).work())).collect();
        for _ in 0..plan.rounds {
            core.note(Site::World, "chaos", "");
            core.set_chaos(true);
            self.chaos().await;
            if let Some(operator) = &self.operator {
                operator.resume_all().await;
            }
            core.set_chaos(false);
            core.disturb(AFTERMATH);
            core.note(Site::World, "calm", "");
            self.calm().await?;
            self.leave_one().await?;
        }
        core.note(Site::World, "heals", "");
        core.end();
        for node in self.nodes.iter_mut().filter(|node| node.process.is_none()) {
            node.start(&setting);
        }
        for actor in self.actors.iter_mut().filter(|actor| actor.life.is_none()) {
            actor.start(&setting);
        }
        self.finish(clients).await?;
        self.leave().await
    }

    /// Causes one fault after the other.
    async fn chaos(&mut self) {
        let setting = self.setting.clone();
        let (core, plan) = (&setting.core, &setting.plan);
        let rng = &core.rng;
        let until_us = core.elapsed_us() + rng.ms(1_000, plan.chaos_ms).as_micros() as i64;
        while core.elapsed_us() < until_us {
            sleep(rng.ms(0, plan.fault_ms)).await;
            if let Some(operator) = &self.operator
                && rng.chance(400)
            {
                operator.change().await;
                continue;
            }
            if !self.actors.is_empty() && rng.chance(300) {
                let n = usize::try_from(rng.below(self.actors.len() as u64)).expect("it is below a usize");
                disturb(&setting, &mut self.actors[n]);
                continue;
            }
            let n = usize::try_from(rng.below(self.nodes.len() as u64)).expect("it is below a usize");
            let node = &mut self.nodes[n];
            let Some(process) = node.process.as_mut() else {
                if rng.chance(400) {
                    node.start(&setting);
                    if rng.chance(500) {
                        // The process is asked to leave right after its start.
                        sleep(rng.ms(0, HASTE_MS)).await;
                        self.nodes[n].process.as_mut().expect("it has just started").shut_down();
                    }
                }
                continue;
            };
            if process.has_left() {
                node.process = None;
                continue;
            }
            let link = process.link.clone();
            match rng.below(100) {
                0..30 if plan.crashes => {
                    core.note(link.site, "crashes", "");
                    core.count(|stats| stats.crashes += 1);
                    core.disturb(Duration::ZERO);
                    node.process.take().expect("it was just there").crash(&setting);
                    if rng.chance(500) {
                        sleep(rng.ms(0, RESTART_MS)).await;
                        self.nodes[n].start(&setting);
                    }
                }
                30..55 if plan.pauses && !link.is_paused() => {
                    let time = pause_of(plan, rng);
                    pause(core, &link, time);
                }
                55..75 if plan.cuts => {
                    let time = rng.ms(0, CUT_MS);
                    core.note(link.site, "is cut off", format!("{time:?}"));
                    link.cut(time);
                    core.disturb(time + AFTERMATH);
                }
                75..80 if plan.cuts => {
                    let time = rng.ms(0, CUT_MS / 2);
                    core.note(Site::World, "loses the store", format!("{time:?}"));
                    for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
                        process.link.cut(time);
                    }
                    core.disturb(time + AFTERMATH);
                }
                80..85 if plan.skews => {
                    let by_us = i64::try_from(rng.below(SHIFT_MS) * 1_000).expect("a few seconds");
                    let by_us = match plan.jumps && rng.chance(700) {
                        true => i64::try_from(rng.below(JUMP_MS) * 1_000).expect("a few hours"),
                        false => by_us,
                    };
                    let by_us = if rng.chance(500) { by_us } else { -by_us };
                    core.note(link.site, "sets its clock", by_us.to_string());
                    link.shift_clock(by_us);
                    node.skew_us += by_us;
                }
                95.. if plan.changes => change(&setting),
                85..95 => {
                    core.note(link.site, "is asked to leave", "");
                    core.count(|stats| stats.shutdowns += 1);
                    core.disturb(Duration::ZERO);
                    process.shut_down();
                }
                _ => {}
            }
        }
    }

    fn processes(&self) -> Vec<&Process> {
        self.nodes.iter().filter_map(|node| node.process.as_ref()).collect()
    }

    /// Waits until the calm has lasted long enough, and checks the promises.
    async fn calm(&mut self) -> Result<(), Violation> {
        let setting = self.setting.clone();
        let core = &setting.core;
        if self.processes().is_empty() {
            self.nodes[0].start(&setting);
        }
        let begun_us = core.elapsed_us();
        loop {
            let calm_us = i64::try_from(liveness::calm(&setting).as_micros()).expect("a minute");
            // A worker that is registered again delays a calm. If that happens all the time, the world would not end.
            if core.elapsed_us() - begun_us > LONGEST_WAIT_FOR_CALM * calm_us {
                let story =
                    format!("nothing disturbs them, and there is no calm of {} s", calm_us / 1_000_000);
                return Err(Violation { invariant: "workers that nothing disturbs stay members", story });
            }
            let left_us = core.calm_since_us() + calm_us - core.elapsed_us();
            let Ok(left_us @ 1..) = u64::try_from(left_us) else { break };
            sleep(Duration::from_micros(left_us).min(LOOK)).await;
            if core.elapsed_us() - core.calm_since_us() > 2 * liveness::SLACK.as_micros() as i64 {
                self.inspect(liveness::check_starts)?;
            }
        }
        for node in &mut self.nodes {
            node.process.take_if(|process| process.has_left());
        }
        for actor in &mut self.actors {
            actor.life.take_if(|life| life.has_left());
        }
        setting.checker.look_over(&setting.store.all());
        core.note(Site::World, "looks", "");
        self.inspect(liveness::check)
    }

    fn inspect(&self, check: impl Fn(&Inspection<'_>) -> Result<(), Violation>) -> Result<(), Violation> {
        let lives: Vec<_> = self.actors.iter().filter_map(|actor| actor.life.as_ref()).collect();
        liveness::inspect(&self.setting, &self.processes(), &lives, check)
    }

    /// Checks, in the calm, that a clean shutdown leaves nothing behind when it is done.
    async fn leave_one(&mut self) -> Result<(), Violation> {
        let well =
            |process: &Process| process.is_booted() && !process.is_leaving() && !process.link.is_paused();
        let n = self.nodes.iter().position(|node| node.process.as_ref().is_some_and(well));
        let Some(n) = n.filter(|_| self.setting.core.rng.chance(500)) else { return Ok(()) };
        let mut process = self.nodes[n].process.take().expect("it was just there");
        self.setting.core.count(|stats| stats.shutdowns += 1);
        self.shut_down(&mut process).await?;
        let site = process.link.site;
        let left = self.setting.checker.known(|known| {
            let of_it = |worker: &String| known.home(worker) == Some(site);
            let rows = known.workers.iter().filter(|((_, worker), _)| of_it(worker));
            let claims = known.jobs.iter().filter_map(|(key, rows)| {
                let claim = rows.record.as_ref()?.claim()?;
                of_it(&claim.worker).then(|| format!("{key:?} {claim:?}"))
            });
            rows.map(|row| format!("{row:?}")).chain(claims).collect::<Vec<_>>()
        });
        if left.is_empty() || self.setting.plan.is_slow() {
            return Ok(());
        }
        let story = format!("{site} left {left:#?}");
        Err(Violation { invariant: "a clean shutdown leaves no row", story })
    }

    async fn shut_down(&self, process: &mut Process) -> Result<(), Violation> {
        process.shut_down();
        self.wait_for(&process.link.site.to_string(), || process.has_left()).await
    }

    async fn wait_for(&self, who: &str, has_left: impl Fn() -> bool) -> Result<(), Violation> {
        let left = timeout(END, async {
            while !has_left() {
                sleep(Duration::from_millis(100)).await;
            }
        });
        left.await.map_err(|_| Violation {
            invariant: "a clean shutdown comes to its end",
            story: format!("{who} has not left after {END:?}"),
        })
    }

    /// Checks turns while clients are idle. Skipped with many nodes, where so many cycles would take minutes.
    async fn turns(&mut self, clients: &mut [Client]) -> Result<(), Violation> {
        let setting = self.setting.clone();
        if setting.plan.is_slow() || setting.plan.nodes > MAX_NODES_FOR_TURNS {
            return Ok(());
        }
        self.restart_those_that_left();
        if let Some(client) = clients.first_mut().filter(|_| setting.plan.fills) {
            hurry(&setting);
            client.fill().await;
        }
        if let Some(client) = clients.first_mut().filter(|_| setting.plan.jumps) {
            client.wait_a_day().await;
            self.a_day_passes().await;
        }
        self.calm().await?;
        setting.core.note(Site::World, "looks at turns", "");
        let mut turns = Turns::default();
        let until_us = setting.core.elapsed_us() + turns::TIME.as_micros() as i64;
        while setting.core.elapsed_us() < until_us {
            let turns = Mutex::new(&mut turns);
            self.inspect(|inspection| lock(&turns).inspect(inspection))?;
            self.inspect(liveness::check_starts)?;
            self.inspect(liveness::check_runs)?;
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Sets all clocks forward, once workers sleep until their next event.
    async fn a_day_passes(&mut self) {
        sleep(liveness::SLACK).await;
        // Clocks may be hours behind the agreed time.
        let by_us = 2 * DAY_US;
        for node in &mut self.nodes {
            node.skew_us += by_us;
            if let Some(process) = &node.process {
                process.link.shift_clock(by_us);
            }
        }
        self.setting.core.note(Site::World, "sets all clocks", by_us.to_string());
        self.setting.core.disturb(Duration::ZERO);
    }

    fn restart_those_that_left(&mut self) {
        let setting = self.setting.clone();
        for node in &mut self.nodes {
            if node.process.as_ref().is_none_or(Process::has_left) {
                node.start(&setting);
            }
        }
        for actor in &mut self.actors {
            if actor.life.as_ref().is_none_or(Life::has_left) {
                actor.start(&setting);
            }
        }
    }

    /// Waits for the end of every job. No faults happen any more.
    async fn finish(&mut self, clients: Vec<JoinHandle<Client>>) -> Result<(), Violation> {
        let setting = self.setting.clone();
        let mut ready = Vec::new();
        for client in clients {
            ready.push(client.await.map_err(|error| Violation {
                invariant: "the simulation itself works",
                story: format!("a client ended badly: {error}"),
            })?);
        }
        if let Some(client) = ready.first_mut().filter(|_| setting.plan.schedules) {
            client.remove_schedules().await;
            client.close_groups().await;
        }
        self.turns(&mut ready).await?;
        let mut end_us = 0;
        let mut fewest = usize::MAX;
        loop {
            for client in &mut ready {
                client.clean_up().await;
            }
            self.restart_those_that_left();
            let open = setting.checker.known(|known| {
                let open = known.jobs.iter().filter_map(|(key, rows)| {
                    let job = rows.record.as_ref()?;
                    (!job.state().is_final()).then(|| format!("{key:?} {}", in_words(Some(job))))
                });
                let filters = known.filters.iter().flat_map(Filters::names);
                let groups = known.groups.lasting().map(|(group, _)| format!("group {group:?}"));
                open.chain(filters.map(|name| format!("filter {name}"))).chain(groups).collect::<Vec<_>>()
            });
            if open.is_empty() {
                return Ok(());
            }
            if open.len() < fewest {
                fewest = open.len();
                end_us = setting.core.elapsed_us() + END.as_micros() as i64;
            }
            if setting.core.elapsed_us() > end_us {
                let story = format!("none within {END:?}: {open:#?}");
                return Err(Violation { invariant: "every job reaches its end", story });
            }
            sleep(POLL).await;
        }
    }

    /// Checks that each tenant was charged exactly the time that its jobs ran. Only valid without faults. A run that waits
    /// for a lock and lends its slot does not run.
    fn charges(&self, known: &CheckerState) -> Result<(), Violation> {
        let lends = !self.setting.plan.options.tunables.queue.waiting_uses_slot;
        for (tenant, account) in known.tenants.accounts().filter(|(tenant, _)| tenant.0 != EXTERNAL) {
            let ran_us = (account.held_us - if lends { account.waited_us } else { 0 }) as f64;
            let late_us = CHARGED_LATE.as_micros() as f64;
            let about_us = account.unclear_us as f64 + (account.runs + 1) as f64 * late_us;
            if (account.charged_us as f64 - ran_us).abs() > about_us {
                let story = format!("{tenant:?}: {account:?}");
                return Err(Violation { invariant: "each tenant is charged what its jobs ran", story });
            }
        }
        Ok(())
    }

    /// Makes all processes leave, and checks that only the records of ended jobs are left.
    async fn leave(&mut self) -> Result<(), Violation> {
        self.setting.core.note(Site::World, "ends", "");
        self.calm().await?;
        // External workers leave first, because they need the nodes.
        for actor in std::mem::take(&mut self.actors) {
            let Some(mut life) = actor.life else { continue };
            life.shut_down();
            self.wait_for("an external worker", || life.has_left()).await?;
        }
        for node in std::mem::take(&mut self.nodes) {
            let Some(mut process) = node.process else { continue };
            self.shut_down(&mut process).await?;
        }
        self.setting.checker.look_over(&self.setting.store.all());
        if self.setting.plan.is_quiet() {
            self.setting.checker.known(|known| self.charges(known))?;
        }
        let locks = self.setting.checker.known(|known| known.locks.as_ref().map(Locks::left));
        if let Some(left) = locks.filter(|left| !left.is_empty()) {
            let story = format!("{left:#?}");
            return Err(Violation { invariant: "no lock outlives the claim of its job", story });
        }
        let left = self.setting.checker.known(|known| format!("{:?}", known.workers));
        if left == "{}" || self.setting.plan.is_slow() {
            return Ok(());
        }
        Err(Violation { invariant: "a clean shutdown leaves no row", story: left })
    }
}
