//! Bulk operations with patterns and long numbers: each must end in time, and have changed exactly the jobs that its condition means.
//!
//! Each identity has a tenant of its own, with jobs that nobody runs, so that only its bulk operations change them. What a condition means
//! is computed here a second time, by code that shares nothing with the server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::World;
use super::api::{Answer, Api};
use super::identity::token;
use turnwise_testkit::Random;

/// The type of the jobs.
const TYPE: &str = "bulk";
/// The number of identities, and the number of jobs in a group.
const IDENTITIES: usize = 3;
const GROUP: u64 = 100;
/// An operation ends within this time, outside of faults.
const BOUND: Duration = Duration::from_secs(60);
/// The pause between two groups of an identity, two looks at an operation, and two tries of a request.
const PAUSE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Far enough that no clock that jumps makes a job due.
const DELAY_MS: u64 = 90 * 86_400_000;
/// A double cannot tell the numbers from here on apart.
const LARGE: u64 = 9_007_199_254_740_992;
/// Texts are matched up to this size, in bytes. One in 20 texts is as long.
const LONG_TEXT: usize = 16 << 10;
/// The number of operations whose ids are used once more.
const OLD: usize = 300;

/// What the conditions are about.
#[derive(Clone)]
struct Member {
    id: String,
    name: String,
    /// Many digits, as text.
    digits: String,
    n: u64,
}

/// A condition, and the jobs that it means.
struct Choice {
    condition: String,
    means: Box<dyn Fn(&Member) -> bool + Send + Sync>,
}

impl Choice {
    fn new(condition: impl Into<String>, means: impl Fn(&Member) -> bool + Send + Sync + 'static) -> Self {
        Choice { condition: condition.into(), means: Box::new(means) }
    }

    fn random(random: &mut Random, members: &[Member]) -> Choice {
        let mut pick = || members[usize::try_from(random.below(GROUP)).expect("an index")].clone();
        let (one, other) = (pick(), pick());
        match random.below(9) {
            0 => Choice::new("options.name ~ \"^[a-f]\"", |member| {
                ('a'..='f').any(|first| member.name.starts_with(first))
            }),
            1 => Choice::new("options.name ~ \"[aeiou]z*$\"", |member| {
                member.name.trim_end_matches('z').ends_with(['a', 'e', 'i', 'o', 'u'])
            }),
            2 => Choice::new("options.name !~ \"(a.*b|b.*a)\"", |member| {
                !(member.name.contains('a') && member.name.contains('b'))
            }),
            3 => {
                // A hundred words, none of which is longer than what is found by chance.
                let words: Vec<String> = (0..100).map(|_| random.text(3).replace(' ', "q")).collect();
                let condition = format!("options.name ~ \"{}\"", words.join("|"));
                Choice::new(condition, move |member| words.iter().any(|word| member.name.contains(word)))
            }
            4 => Choice::new(format!("options.digits = {}", one.digits), move |member| {
                member.digits == one.digits
            }),
            5 => {
                let condition = format!("options.digits in ({}, {})", one.digits, other.digits);
                Choice::new(condition, move |member| [&one.digits, &other.digits].contains(&&member.digits))
            }
            6 => Choice::new(format!("options.n = {}", one.n), move |member| member.n == one.n),
            7 => Choice::new(format!("options.n > {}", one.n), move |member| member.n > one.n),
            _ => {
                let condition =
                    format!("id = \"{}\" or options.name ~ \"^x\" and not options.n <= {}", one.id, other.n);
                Choice::new(condition, move |member| {
                    member.id == one.id || member.name.starts_with('x') && member.n > other.n
                })
            }
        }
    }
}

/// What an operation does to the jobs, and how a job looks before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Cancel,
    Remove,
    Priority,
    RunNow,
    Retry,
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Action::Cancel => "cancel",
            Action::Remove => "remove",
            Action::Priority => "priority",
            Action::RunNow => "run_now",
            Action::Retry => "retry",
        }
    }

    fn is_done(self, job: Option<&Value>) -> bool {
        let state = job.map(|job| job["state"].as_str().unwrap_or_default());
        match self {
            Action::Remove => job.is_none(),
            Action::Cancel => state == Some("cancelled"),
            Action::Priority => job.is_some_and(|job| job["priority"] == 7),
            Action::RunNow | Action::Retry => state == Some("pending"),
        }
    }
}

/// Makes operations with all identities until the end.
pub(super) async fn run(world: Arc<World>) {
    let mut seeds = Random::new(world.options.seed ^ 0xb01c);
    let mut each = Vec::new();
    for number in 0..IDENTITIES {
        let tenant = format!("bulk-{number}");
        match token(&world.api, &[&format!("client:{tenant}")]).await {
            Ok(token) => {
                let api = world.identities.client(0).of(&token);
                let old = Vec::new();
                let operator = Operator {
                    world: Arc::clone(&world),
                    api,
                    tenant,
                    random: Random::new(seeds.bits()),
                    old,
                    is_left_by_clock: false,
                };
                each.push(operator.run());
            }
            Err(problem) => world.ledger.finding(problem),
        }
    }
    let slowest = futures::future::join_all(each).await.into_iter().max().unwrap_or_default();
    let count = world.counts.get(DONE);
    println!("bulk: {count} operations, the slowest took {slowest:.1?} outside of faults");
    if count == 0 && world.options.seconds > 60 {
        world.ledger.finding("no bulk operation has ended".to_owned());
    }
}

const DONE: &str = "bulk operations";
/// How often a node's clock continued before the jobs were added.
const NEWER: &str = "bulk operations that a clock put before their jobs";

struct Operator {
    world: Arc<World>,
    api: Api,
    tenant: String,
    random: Random,
    /// Operations that are done: id, body, and when they began.
    old: Vec<(String, Value, Value)>,
    /// An operation of this group has left jobs alone that a clock put after it, so that later operations find other jobs.
    is_left_by_clock: bool,
}

impl Operator {
    /// Returns the time of the slowest operation.
    async fn run(mut self) -> Duration {
        let (mut number, mut slowest) = (0, Duration::ZERO);
        while !self.world.stop.is_cancelled() {
            number += 1;
            slowest = slowest.max(self.group(number).await.unwrap_or(BOUND));
            tokio::time::sleep(PAUSE).await;
        }
        slowest
    }

    /// Adds a group of jobs, changes some of them, and removes all. Returns the time of the slowest operation, or `None` if one has not
    /// ended.
    async fn group(&mut self, number: u64) -> Option<Duration> {
        let group = format!("{}-{number}", self.tenant);
        self.is_left_by_clock = false;
        let action = [Action::Cancel, Action::Remove, Action::Priority, Action::RunNow, Action::Retry]
            [usize::try_from(self.random.below(5)).expect("an index")];
        let members: Vec<Member> = (0..GROUP).map(|n| self.member(&group, n)).collect();
        self.add(&group, &members, action == Action::RunNow).await;
        let mut slowest = Duration::ZERO;
        let every = Choice::new("age >= 0s", |_| true);
        if action == Action::Retry {
            slowest = self.change(&group, &members, Action::Cancel, &every).await?;
        }
        let choice = Choice::random(&mut self.random, &members);
        slowest = slowest.max(self.change(&group, &members, action, &choice).await?);
        self.repeat().await;
        // Jobs that a clock put after their operation are still there, and would in the end be all that the tenant may have.
        let mut left = members;
        loop {
            let jobs = self.jobs().await;
            left.retain(|member| jobs.contains_key(&member.id));
            slowest = slowest.max(self.change(&group, &left, Action::Remove, &every).await?);
            if !self.is_left_by_clock || self.world.stop.is_cancelled() {
                return Some(slowest);
            }
            self.is_left_by_clock = false;
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn member(&mut self, group: &str, number: u64) -> Member {
        let random = &mut self.random;
        let length = if random.below(20) == 0 {
            LONG_TEXT
        } else {
            4 + usize::try_from(random.below(20)).expect("small")
        };
        Member {
            id: format!("{group}-{number}"),
            name: random.text(length).replace(' ', "z"),
            // They differ in their last digits only.
            digits: format!("123456789012345678{:03}", number % 1_000),
            n: LARGE + number,
        }
    }

    /// Sends a request until it is answered.
    async fn ask(&mut self, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        loop {
            match self.world.ask_some(&self.api, &mut self.random, method.clone(), path, body).await {
                Answer::Got(status, answer) => return (status, answer),
                _ => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    async fn add(&mut self, group: &str, members: &[Member], delayed: bool) {
        let tenant = self.tenant.clone();
        let job = |member: &Member| {
            let options =
                json!({ "group": group, "name": member.name, "digits": member.digits, "n": member.n });
            let mut job = json!({ "type": TYPE, "id": member.id, "tenant": tenant, "options": options });
            if delayed {
                job["delay_ms"] = json!(DELAY_MS);
            }
            job
        };
        // Some batches are small enough for one transaction of every store.
        for some in members.chunks(25) {
            let body = json!({ "jobs": some.iter().map(job).collect::<Vec<_>>() });
            let (status, answer) = self.ask(Method::POST, "/v1/jobs", Some(&body)).await;
            if !status.is_success() {
                let text = format!("{group}: {status} {answer}");
                self.world.ledger.repeated("jobs for a bulk operation were refused", &text);
            }
        }
    }

    /// Makes one operation, and checks what it has done. Returns how long it took outside of faults, or `None` if it
    /// has not ended.
    async fn change(
        &mut self,
        group: &str,
        members: &[Member],
        action: Action,
        choice: &Choice,
    ) -> Option<Duration> {
        let id = format!("{group}-{}-{}", action.name(), self.old.len() + 1);
        // With the type and the tenant the jobs are found by an index, and without them among all.
        let narrow = if self.random.below(3) == 0 { "" } else { "type = bulk and " };
        let condition = format!("{narrow}options.group = \"{group}\" and ({})", choice.condition);
        let mut body = json!({ "action": action.name(), "where": condition });
        if action == Action::Priority {
            body["priority"] = json!(7);
        }
        let begun = Instant::now();
        let calm = |world: &World| world.calm.between(begun, Instant::now(), Duration::ZERO);
        let path = format!("/v1/bulk/{id}");
        let (status, mut row) = self.ask(Method::PUT, &path, Some(&body)).await;
        if !status.is_success() {
            let text = format!("{condition}: {status} {row}");
            self.world.ledger.repeated("a bulk operation was refused", &text);
            return None;
        }
        while row["state"] == "running" {
            if calm(&self.world) > BOUND {
                self.world.ledger.repeated("a bulk operation has not ended in time", &row.to_string());
                // What it does from now on is not followed.
                self.ask(Method::DELETE, &path, None).await;
                return None;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            row = self.ask(Method::GET, &path, None).await.1;
        }
        let took = calm(&self.world);
        self.world.counts.add(DONE, 1);
        let means: BTreeSet<&str> =
            members.iter().filter(|member| (choice.means)(member)).map(|member| member.id.as_str()).collect();
        let jobs = self.jobs().await;
        let wrong = members
            .iter()
            .filter(|member| means.contains(member.id.as_str()) != action.is_done(jobs.get(&member.id)));
        let wrong: Vec<&str> = wrong.map(|member| member.id.as_str()).take(3).collect();
        let count = means.len() as u64;
        let is_counted = row["matched"] == count && row["changed"] == count && row["state"] == "done";
        // A job that was added, or added to its queue again, after the operation began is left alone. After a crash the clock of a node may
        // continue some seconds before what it was (docs/design/clocks-and-deadlines.md), so that a job is newer than an operation that was begun
        // after it.
        let is_newer =
            |id: &&str| jobs.get(*id).is_some_and(|job| last_added_us(job) > row["begun_us"].as_i64());
        let by_clock = !wrong.is_empty() && wrong.iter().all(is_newer);
        if by_clock {
            self.world.counts.add(NEWER, 1);
            self.is_left_by_clock = true;
        } else if !self.is_left_by_clock && (!wrong.is_empty() || !is_counted) {
            let text = format!("it meant {count} jobs, {wrong:?} are wrong: {row}");
            self.world.ledger.repeated("a bulk operation has not done what it says", &text);
        }
        self.old.push((id, body, row["begun_us"].clone()));
        Some(took)
    }

    /// Repeats an old operation: its id stands for it, and nothing begins again.
    async fn repeat(&mut self) {
        let from = self.old.len().saturating_sub(OLD);
        let index =
            from + usize::try_from(self.random.below((self.old.len() - from) as u64)).expect("an index");
        let (id, body, begun) = self.old[index].clone();
        let (status, row) = self.ask(Method::PUT, &format!("/v1/bulk/{id}"), Some(&body)).await;
        if status.is_success() && row["begun_us"] != begun {
            let text = format!("{id} of {} operations ago, begun {begun}: {row}", self.old.len() - index);
            self.world.ledger.repeated("a bulk operation that was repeated began again", &text);
        }
    }

    /// The tenant's jobs.
    async fn jobs(&mut self) -> BTreeMap<String, Value> {
        let (mut jobs, mut after) = (BTreeMap::new(), String::new());
        loop {
            let path = format!("/v1/jobs?type={TYPE}&tenant={}&limit=1000{after}", self.tenant);
            let page = self.ask(Method::GET, &path, None).await.1;
            for job in page["jobs"].as_array().into_iter().flatten() {
                jobs.insert(job["id"].as_str().unwrap_or_default().to_owned(), job.clone());
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return jobs,
            }
        }
    }
}

/// When a job was last added: by a client, or to its queue when it was retried or run at once.
fn last_added_us(job: &Value) -> Option<i64> {
    let events = job["history"].as_array().into_iter().flatten();
    let added = events.filter(|event| event["type"] == "added").filter_map(|event| event["at_us"].as_i64());
    added.chain(job["added_us"].as_i64()).max()
}
