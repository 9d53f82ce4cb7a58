//! Webhooks of many tenants, most of whose receivers are slow, silent, dead or flaky; and probes, which show that the others are not
//! held up by them.
//!
//! A probe is a job that nobody runs. It is added, and removed a little later, directly at a node. Each of both is an event, which is
//! committed before the node answers: the *delay* of a healthy webhook is the time from that answer to the receipt. In the end all
//! receivers are healthy, and every event must have reached every webhook that wants it, in order.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::api::{Answer, Api};
use super::identity::token;
use super::ledger::Entry;
use super::receiver::{Arrived, Manner, Receiver};
use super::{Engine, World};
use turnwise_testkit::Random;

/// The type of the probes.
const PROBE: &str = "probe";
/// The pause between two probes of a healthy tenant, and of another one.
const EACH: Duration = Duration::from_millis(400);
const EACH_OF_OTHERS: Duration = Duration::from_millis(2_000);
/// A probe is removed when this many further ones were added.
const REMOVED_AFTER: u64 = 3;
/// The pause before a request is repeated.
const AGAIN: Duration = Duration::from_millis(200);
/// Healthy webhooks' delays: 99 of 100 must be shorter.
const P99: Duration = Duration::from_secs(1);
/// A node that died is missed after its health timeout of 4 s, and its delivery waits for a backoff then. For so long after a fault,
/// webhooks may be late.
const GRACE: Duration = Duration::from_secs(8);
/// No event may wait longer than this for a healthy webhook, outside of faults.
const STUCK: Duration = Duration::from_secs(60);
/// In the end: how long it may take until all webhooks have all events.
const HEAL: Duration = Duration::from_secs(180);
/// How long the time of day that a node knew before may be in a delivery, and how far a signature's time may be from the right one.
const CLOCK_MEMORY: Duration = Duration::from_secs(45);
const CLOCK_TOLERANCE_S: i64 = 20;
/// Late deliveries that are printed.
const LATE_SHOWN: usize = 200;
/// A shorter test may have no calm time.
const LONG_SECONDS: u64 = 120;
/// Numbers of events that are remembered, to tell a repeated event from one out of order.
const REMEMBERED: usize = 20_000;
/// The webhook that has all events of all tenants.
pub(super) const ALL: &str = "all";

/// Tenant, number of webhooks, whether each has a receiver of its own, and what it does. [`Fault::PauseJobs`](super::faults) pauses also the
/// deliveries of tenants with a 1 in their names.
const POPULATION: [(&str, u8, bool, Manner); 10] = [
    ("healthy-0", 1, true, Manner::Healthy),
    ("healthy-3", 1, true, Manner::Healthy),
    ("healthy-2", 2, true, Manner::Healthy),
    ("late", 6, true, Manner::After(4)),
    ("slow-0", 10, false, Manner::After(28)),
    ("slow-1", 10, true, Manner::After(28)),
    ("silent-0", 15, false, Manner::Silent),
    ("silent-1", 10, true, Manner::Silent),
    ("dead", 6, true, Manner::Dead),
    ("flaky", 4, true, Manner::Flaky),
];

/// When a node has answered that a change was made.
#[derive(Clone, Copy)]
struct Commit {
    answered: Instant,
    /// Whether the first request was answered. Otherwise the time of the commit is not known.
    is_exact: bool,
}

/// An event that a healthy webhook got.
struct Sample {
    commit: Commit,
    received: Instant,
}

/// What a webhook has, and what it must get.
#[derive(Default)]
struct State {
    /// Events of probes that have happened, and were not received.
    missing: HashMap<String, Commit>,
    /// Those that were received, and when, until the probe's request was answered.
    early: HashMap<String, Instant>,
    /// For each kind of event, the number of the last probe.
    last: HashMap<String, u64>,
    seen: HashSet<String>,
    /// The numbers of the latest events, where the identity knows them.
    numbers: BTreeSet<u64>,
    samples: Vec<Sample>,
    /// For [`ALL`]: the events of each job.
    jobs: HashMap<String, BTreeSet<String>>,
    deliveries: u64,
}

struct Hook {
    id: String,
    tenant: Option<&'static str>,
    manner: Manner,
    state: Mutex<State>,
}

impl Hook {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn wants(&self, tenant: &str) -> bool {
        self.tenant.is_none_or(|own| own == tenant)
    }
}

/// All webhooks.
pub(super) struct Webhooks {
    hooks: BTreeMap<String, Hook>,
    healed: watch::Sender<bool>,
    /// The offsets of the nodes' clocks so far, in s.
    clocks: Mutex<Vec<(Instant, i64)>>,
    problems: Mutex<Vec<(&'static str, String)>>,
}

impl Webhooks {
    /// Starts the receivers, and writes the webhooks.
    pub async fn start(admin: &Api, seed: u64) -> Result<Arc<Webhooks>, String> {
        let mut random = Random::new(seed ^ 0x4007);
        let (mut hooks, mut receivers, mut writes) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut add = |id: String, tenant: Option<&'static str>, manner, url: String| {
            writes.push((id.clone(), tenant, url));
            hooks.insert(id.clone(), Hook { id, tenant, manner, state: Mutex::default() });
        };
        for (of, (tenant, count, own, manner)) in POPULATION.into_iter().enumerate() {
            let of = u8::try_from(of).expect("few");
            let first = Receiver::bind(manner, 1, of);
            let shared = first.url();
            receivers.push(first);
            for number in 0..count {
                let url = if own && number > 0 {
                    receivers.push(Receiver::bind(manner, 1 + number, of));
                    receivers[receivers.len() - 1].url()
                } else {
                    shared.clone()
                };
                add(format!("{tenant}-{number}"), Some(tenant), manner, url);
            }
        }
        let all = Receiver::bind(Manner::Healthy, 1, 200);
        add(ALL.to_owned(), None, Manner::Healthy, all.url());
        receivers.push(all);
        let webhooks = Arc::new(Webhooks {
            hooks,
            healed: watch::Sender::new(false),
            clocks: Mutex::new(vec![(Instant::now(), 0)]),
            problems: Mutex::default(),
        });
        for receiver in receivers {
            let (webhooks, healed) = (Arc::clone(&webhooks), webhooks.healed.subscribe());
            receiver.start(random.bits(), healed, move |arrived| webhooks.arrived(&arrived));
        }
        let mut tokens: HashMap<&str, Api> = HashMap::new();
        for (id, tenant, url) in writes {
            let api = match tenant {
                Some(tenant) if !tokens.contains_key(tenant) => {
                    let own = admin.of(&token(admin, &[&format!("client:{tenant}")]).await?);
                    tokens.entry(tenant).or_insert(own)
                }
                Some(tenant) => &tokens[tenant],
                None => admin,
            };
            write(api, &id, tenant, &url).await?;
        }
        Ok(webhooks)
    }

    /// Notes what the clocks of the nodes say from now on.
    pub fn set_clock(&self, offset: i64) {
        self.clocks.lock().expect("no holder of this lock panics").push((Instant::now(), offset));
    }

    /// Whether a clock says so, or said so a moment ago. The true time is always right: a node with few descriptors has it, because the library that
    /// changes its clock cannot open its file.
    fn is_now(&self, signed_s: i64) -> bool {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let real = i64::try_from(real).expect("a small number");
        if (signed_s - real).abs() <= CLOCK_TOLERANCE_S {
            return true;
        }
        let clocks = self.clocks.lock().expect("no holder of this lock panics");
        let ends = clocks.iter().skip(1).map(|(at, _)| Some(*at)).chain([None]);
        clocks.iter().zip(ends).any(|((_, offset), end)| {
            end.is_none_or(|end| end.elapsed() < CLOCK_MEMORY)
                && (signed_s - real - offset).abs() <= CLOCK_TOLERANCE_S
        })
    }

    fn problem(&self, kind: &'static str, text: String) {
        self.problems.lock().expect("no holder of this lock panics").push((kind, text));
    }

    /// Takes a delivery that was answered with 200.
    fn arrived(&self, arrived: &Arrived) {
        let now = Instant::now();
        let id = arrived.body["webhook"].as_str().unwrap_or_default();
        let Some(hook) = self.hooks.get(id) else {
            return self.problem("a delivery of no webhook", arrived.body.to_string());
        };
        if hook.manner == Manner::Healthy && !arrived.signed_s.is_some_and(|signed| self.is_now(signed)) {
            self.problem(
                "a delivery was signed at another time than now",
                format!("{id} {:?}", arrived.signed_s),
            );
        }
        let mut state = hook.state();
        state.deliveries += 1;
        for event in arrived.body["events"].as_array().into_iter().flatten() {
            if let Some(problem) = state.take(hook, event, now) {
                self.problem("an event came out of order", format!("{id}: {problem}"));
            }
        }
    }

    /// A change was made: all webhooks that want it must get it.
    fn happened(&self, tenant: &str, key: &str, commit: Commit) {
        for hook in self.hooks.values().filter(|hook| hook.wants(tenant)) {
            let mut state = hook.state();
            match state.early.remove(key) {
                Some(received) => state.samples.push(Sample { commit, received }),
                None if state.seen.contains(key) => {}
                None => {
                    state.missing.insert(key.to_owned(), commit);
                }
            }
        }
    }
}

impl State {
    /// Takes an event. Returns what is wrong with its place, if anything.
    fn take(&mut self, hook: &Hook, event: &Value, now: Instant) -> Option<String> {
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        let (name, id) = (text("event"), text("id"));
        let mut wrong = None;
        if hook.tenant.is_none() {
            let number: u64 = text("seq").parse().unwrap_or_default();
            let is_new = self.numbers.last().is_none_or(|last| *last < number);
            if !is_new && !self.numbers.contains(&number) {
                wrong = Some(format!("number {number} after {:?}", self.numbers.last()));
            }
            self.numbers.insert(number);
            if self.numbers.len() > REMEMBERED {
                self.numbers.pop_first();
            }
        }
        if text("type") != PROBE {
            let job = format!("{}/{id}", text("type"));
            self.jobs.entry(job).or_default().insert(name.to_owned());
            return wrong;
        }
        let key = format!("{name} {id}");
        if !self.seen.insert(key.clone()) {
            return wrong;
        }
        let (of, number) = id.rsplit_once('-').unwrap_or((id, "0"));
        let number = number.parse().unwrap_or_default();
        let last = self.last.insert(format!("{name} {of}"), number).unwrap_or_default();
        if number <= last {
            wrong = Some(format!("{key} after number {last}"));
        }
        match self.missing.remove(&key) {
            Some(commit) => self.samples.push(Sample { commit, received: now }),
            None => {
                self.early.insert(key, now);
            }
        }
        wrong
    }
}

/// Writes a webhook, and retries until a node responds.
async fn write(api: &Api, id: &str, tenant: Option<&str>, url: &str) -> Result<(), String> {
    let mut body = json!({ "url": url, "secret": "chaos-signs-deliveries" });
    if let Some(tenant) = tenant {
        body["tenant"] = json!(tenant);
        body["events"] = json!(["added", "removed"]);
    }
    loop {
        match api.ask(0, Method::PUT, &format!("/v1/webhooks/{id}"), Some(&body)).await {
            Answer::Got(status, _) if status.is_success() => return Ok(()),
            Answer::Got(status, answer) => return Err(format!("webhook {id}: {status} {answer}")),
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Adds and removes the probes of all tenants until the end, and reports events that are stuck.
pub(super) async fn run(world: Arc<World>) {
    let tenants = POPULATION.into_iter().map(|(tenant, .., manner)| {
        let each = if manner == Manner::Healthy { EACH } else { EACH_OF_OTHERS };
        probe(&world, tenant, each)
    });
    let watching = async {
        while !world.stop.is_cancelled() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            look(&world);
        }
    };
    futures::future::join(futures::future::join_all(tenants), watching).await;
}

async fn probe(world: &World, tenant: &str, each: Duration) {
    let Some(webhooks) = &world.webhooks else { return };
    let mut random = Random::new(world.options.seed ^ tenant.bytes().map(u64::from).sum::<u64>());
    let mut number = 0_u64;
    while !world.stop.is_cancelled() {
        tokio::time::sleep(each).await;
        number += 1;
        let id = format!("{tenant}-{number}");
        let job = json!({ "jobs": [{ "type": PROBE, "id": id, "tenant": tenant }] });
        let commit = until_done(world, &mut random, Method::POST, "/v1/jobs", Some(&job)).await;
        webhooks.happened(tenant, &format!("added {id}"), commit);
        if let Some(old) = number.checked_sub(REMOVED_AFTER).filter(|old| *old > 0) {
            let id = format!("{tenant}-{old}");
            let path = format!("/v1/jobs/{PROBE}/{id}");
            let commit = until_done(world, &mut random, Method::DELETE, &path, None).await;
            webhooks.happened(tenant, &format!("removed {id}"), commit);
        }
    }
}

/// Makes a change, and retries until a node has answered that it was made.
async fn until_done(
    world: &World,
    random: &mut Random,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Commit {
    let mut is_exact = true;
    loop {
        match world.ask_some(&world.identities.admin, random, method.clone(), path, body).await {
            Answer::Got(status, _) if status.is_success() => break,
            // An earlier request has removed it; or this one, if the answer to a commit was lost between the node and a shared store. The
            // event must come nevertheless.
            Answer::Got(StatusCode::NOT_FOUND, _)
                if method == Method::DELETE && (!is_exact || world.options.engine != Engine::Embedded) =>
            {
                is_exact = false;
                break;
            }
            Answer::Got(status, answer) => {
                world.ledger.repeated("a probe was refused", &format!("{method} {path}: {status} {answer}"));
            }
            _ => {}
        }
        is_exact = false;
        tokio::time::sleep(AGAIN).await;
    }
    Commit { answered: Instant::now(), is_exact }
}

/// Reports what receivers have found, and events that are stuck.
fn look(world: &World) {
    let Some(webhooks) = &world.webhooks else { return };
    let problems = std::mem::take(&mut *webhooks.problems.lock().expect("no holder of this lock panics"));
    problems.into_iter().for_each(|(kind, text)| world.ledger.repeated(kind, &text));
    let now = Instant::now();
    for hook in webhooks.hooks.values().filter(|hook| hook.manner == Manner::Healthy) {
        let oldest = hook.state().missing.iter().map(|(key, commit)| (commit.answered, key.clone())).min();
        let Some((since, key)) = oldest else { continue };
        let waited = world.calm.between(since, now, Duration::ZERO);
        if waited > STUCK {
            let text = format!("{} has waited for {key} for {waited:.0?} outside of faults", hook.id);
            world.ledger.repeated("an event is stuck", &text);
        }
    }
}

/// Makes all receivers healthy, waits until every webhook has every event, and judges the delays.
pub(super) async fn judge(world: &World) {
    let Some(webhooks) = &world.webhooks else { return };
    webhooks.healed.send_replace(true);
    let begun = Instant::now();
    while begun.elapsed() < HEAL && webhooks.hooks.values().any(|hook| !hook.state().missing.is_empty()) {
        tokio::time::sleep(AGAIN).await;
    }
    look(world);
    for hook in webhooks.hooks.values() {
        let missing: Vec<String> = hook.state().missing.keys().cloned().collect();
        if let Some(first) = missing.first() {
            let row = world.api.get(&format!("/v1/webhooks/{}", hook.id)).await.unwrap_or_default();
            let text = format!("{} lacks {} events, {first} among them: {row}", hook.id, missing.len());
            world.ledger.repeated("a webhook was not sent all events", &text);
        }
    }
    println!(
        "webhooks: all events were there {:.1?} after all receivers had become healthy",
        begun.elapsed()
    );
    delays(world, webhooks);
}

/// A delay of a healthy webhook in calm time.
struct CalmDelay<'a> {
    /// The second of the test in which the change was answered.
    second: u64,
    id: &'a str,
    delay: Duration,
    /// Without the machine's own stalls.
    judged: Duration,
}

fn calm_delays<'a>(world: &World, webhooks: &'a Webhooks) -> Vec<CalmDelay<'a>> {
    let mut found = Vec::new();
    for hook in webhooks.hooks.values().filter(|hook| hook.manner == Manner::Healthy) {
        for Sample { commit, received } in hook.state().samples.iter().filter(|sample| sample.commit.is_exact)
        {
            let Commit { answered, .. } = *commit;
            let before = answered.checked_sub(Duration::from_millis(1)).unwrap_or(answered);
            if world.calm.between(before, answered, GRACE).is_zero() {
                continue;
            }
            let delay = world.calm.between(answered, *received, GRACE);
            found.push(CalmDelay {
                second: answered.saturating_duration_since(world.begun).as_secs(),
                id: &hook.id,
                delay,
                judged: delay.saturating_sub(world.stalls.between(answered, *received)),
            });
        }
    }
    found
}

/// The delays that are judged, so far.
pub(super) fn so_far(world: &World) -> String {
    let Some(webhooks) = &world.webhooks else { return String::new() };
    let mut judged: Vec<Duration> = calm_delays(world, webhooks).iter().map(|of| of.judged).collect();
    format!("webhooks {}; ", Percentiles::of(&mut judged))
}

/// Judges the delays of healthy webhooks.
fn delays(world: &World, webhooks: &Webhooks) {
    println!("webhooks: {}", world.stalls.text());
    let (mut all, mut inexact) = (Vec::new(), 0);
    for hook in webhooks.hooks.values().filter(|hook| hook.manner == Manner::Healthy) {
        for Sample { commit, received } in &hook.state().samples {
            all.push(received.saturating_duration_since(commit.answered));
            inexact += usize::from(!commit.is_exact);
        }
    }
    let found = calm_delays(world, webhooks);
    let mut calm: Vec<Duration> = found.iter().map(|of| of.delay).collect();
    let mut without_stalls: Vec<Duration> = found.iter().map(|of| of.judged).collect();
    let late = found.iter().filter(|of| of.judged >= P99);
    let mut late: Vec<(u64, &str, Duration)> = late.map(|of| (of.second, of.id, of.judged)).collect();
    println!("webhooks: delays of all probes, whatever failed: {}", Percentiles::of(&mut all));
    println!("webhooks: {inexact} probes were repeated, so their delays are not known exactly");
    println!("webhooks: delays outside of faults: {}", Percentiles::of(&mut calm));
    let judged = Percentiles::of(&mut without_stalls);
    println!("webhooks: the same without the machine's own stalls, which is judged: {judged}");
    late.sort_unstable();
    for (second, id, delay) in late.iter().take(LATE_SHOWN) {
        println!("webhooks: an event of {second} s reached {id} after {delay:.1?}");
    }
    if judged.p99 >= P99 {
        world.ledger.finding(format!("99 of 100 delays of healthy webhooks must be under {P99:?}: {judged}"));
    }
    if judged.count == 0 && world.options.seconds >= LONG_SECONDS {
        world
            .ledger
            .finding("no delay of a healthy webhook could be judged: there was no calm time".to_owned());
    }
}

/// Some delays in order.
struct Percentiles {
    count: usize,
    p50: Duration,
    p90: Duration,
    p99: Duration,
    most: Duration,
}

impl Percentiles {
    fn of(delays: &mut [Duration]) -> Self {
        delays.sort_unstable();
        let at = |percent: usize| delays.get(delays.len() * percent / 100).copied().unwrap_or_default();
        let most = delays.last().copied().unwrap_or_default();
        Percentiles { count: delays.len(), p50: at(50), p90: at(90), p99: at(99), most }
    }
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Percentiles { count, p50, p90, p99, most } = self;
        write!(f, "{count}, p50 {p50:.1?}, p90 {p90:.1?}, p99 {p99:.1?}, at most {most:.1?}")
    }
}

/// Checks that the webhook of all events has those of every job that was acknowledged and has ended.
pub(super) async fn check_jobs(
    world: &World,
    jobs: &BTreeMap<String, Value>,
    entries: &BTreeMap<String, Entry>,
) {
    let Some(webhooks) = &world.webhooks else { return };
    let lacking = || {
        let state = webhooks.hooks[ALL].state();
        let wanted = entries.iter().filter(|(_, entry)| entry.acknowledged);
        let lacks = wanted.filter_map(|(key, _)| {
            let end = jobs.get(key)?["state"].as_str()?.to_owned();
            let seen = state.jobs.get(key);
            let lack = ["added".to_owned(), end]
                .into_iter()
                .find(|name| !seen.is_some_and(|seen| seen.contains(name)))?;
            Some(format!("{lack} of {key}"))
        });
        lacks.collect::<Vec<String>>()
    };
    let begun = Instant::now();
    while begun.elapsed() < HEAL && !lacking().is_empty() {
        tokio::time::sleep(AGAIN).await;
    }
    let lacks = lacking();
    let (count, deliveries) = {
        let state = webhooks.hooks[ALL].state();
        (state.jobs.values().map(BTreeSet::len).sum::<usize>(), state.deliveries)
    };
    println!("webhooks: {deliveries} deliveries told {count} events of {} jobs", entries.len());
    if let Some(first) = lacks.first() {
        let row = world.api.get(&format!("/v1/webhooks/{ALL}")).await.unwrap_or_default();
        world
            .ledger
            .finding(format!("{ALL} lacks {} events of jobs, {first} among them: {row}", lacks.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_after(tenant: Option<&'static str>, events: &[(&str, &str, &str)]) -> (State, Vec<String>) {
        let hook = Hook { id: "x".to_owned(), tenant, manner: Manner::Healthy, state: Mutex::default() };
        let mut state = State::default();
        let mut wrong = Vec::new();
        for (seq, name, id) in events {
            let event = json!({ "seq": seq, "event": name, "type": PROBE, "id": id });
            wrong.extend(state.take(&hook, &event, Instant::now()));
        }
        (state, wrong)
    }

    #[test]
    fn an_event_out_of_order_is_noticed_and_a_repeated_one_is_not() {
        let repeated =
            [("1", "added", "a-1"), ("2", "added", "a-2"), ("1", "added", "a-1"), ("3", "removed", "a-1")];
        for tenant in [None, Some("a")] {
            assert_eq!(state_after(tenant, &repeated).1, Vec::<String>::new());
        }
        let swapped = [("x", "added", "a-1"), ("y", "added", "a-3"), ("z", "added", "a-2")];
        assert_eq!(state_after(Some("a"), &swapped).1.len(), 1);
        let numbers = [("5", "added", "a-1"), ("4", "removed", "b-1")];
        assert_eq!(state_after(None, &numbers).1.len(), 1);
    }

    #[test]
    fn a_delay_counts_from_the_answer_also_if_the_event_came_first() {
        let hooks = BTreeMap::from([(
            "x".to_owned(),
            Hook { id: "x".to_owned(), tenant: Some("a"), manner: Manner::Healthy, state: Mutex::default() },
        )]);
        let webhooks = Webhooks {
            hooks,
            healed: watch::Sender::new(false),
            clocks: Mutex::default(),
            problems: Mutex::default(),
        };
        let commit = || Commit { answered: Instant::now(), is_exact: true };
        let deliver = |id: &str| {
            let events = json!([{ "seq": "s", "event": "added", "type": PROBE, "id": id }]);
            webhooks.arrived(&Arrived { body: json!({ "webhook": "x", "events": events }), signed_s: None });
        };
        deliver("a-1");
        webhooks.happened("a", "added a-1", commit());
        webhooks.happened("a", "added a-2", commit());
        webhooks.happened("b", "added b-1", commit());
        assert_eq!(webhooks.hooks["x"].state().missing.len(), 1, "only a-2 is missing, and b has no webhook");
        deliver("a-2");
        deliver("a-2");
        let state = webhooks.hooks["x"].state();
        assert_eq!((state.samples.len(), state.missing.len()), (2, 0));
    }
}
