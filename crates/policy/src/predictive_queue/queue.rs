//! All pending jobs in the order of their aged weights, kept up while running jobs start and end.
//!
//! [`order`](super::order) weighs a window. Where the whole queue is in memory (a simulation, a server that shows where a job stands), to
//! weigh 100,000 jobs anew after each event would be 100,000 weights for a few that have changed. Three observations
//! save nearly all of that:
//!
//! - *At a level a weight depends on the kinds of request, not on the job*, unless it names something that is held: then it is
//!   [`STUCK`] there. So all jobs of the same kinds that are stuck at the same levels weigh the same, whatever else
//!   happens. They are a *group*, and what changes for all jobs at a level (somebody locks all of it, or the big lock)
//!   changes some numbers per group, and moves nobody.
//! - *Within a group the order never changes.* All jobs age by the same clock, so that of two jobs of the same weight the one that has
//!   waited for more ticks weighs less until both are aged out; then the places in the queue decide, and the weight
//!   does not matter any more: those leave their groups. A group is a sorted set that time does not touch, and the order of
//!   all is that of merging the groups as far as somebody reads.
//! - *A resource is either named by few jobs or by many.* If by few, it knows them, and those that become stuck, or free, change groups: at
//!   most [`HOT`] of them. What is named by more than that is *hot*: it becomes part of what makes a group, as if it
//!   were a kind. Whether it is held is then a question that is asked once per group when the order is read.
//!
//! So an event costs the event's own resources times [`HOT`] at worst, however many jobs wait; reading the first jobs costs the
//! number of groups: some dozens of shapes, times the hot resources that they name.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, btree_set};

use slab::Slab;

use super::aging::{Aged, Aging, Rules};
use super::contention::{KINDS, Kind, STUCK, Weight, big_lock};
use super::locks::{Levels, Mode, Place, Request, Requests};
use super::summary::{Held, Running, Summary};

/// Pending jobs that name a resource at most for it to know them one by one. Each that changes its group costs some 0.4 µs,
/// so that 256 are 0.1 ms; a hot resource costs some 10 ns for each group that names it, whenever the order is read.
const HOT: usize = 256;

/// A pending job: the number that [`Queue::add`] gave it. It is used again when the job has gone.
pub type Number = usize;

/// Its row in a group: the tick in which it became pending, its place in the queue, and its number.
type Row = (i64, u64, Number);

/// Pending jobs in their order, and what running ones lock.
#[derive(Debug)]
pub struct Queue {
    rules: Rules,
    hot: usize,
    running: Summary,
    /// What each kind weighs at each level now, if it is not stuck by name.
    kinds: Vec<[Weight; 7]>,
    big_lock: Weight,
    /// The latest tick that was heard of.
    tick: i64,
    jobs: Slab<Job>,
    names: Vec<BTreeMap<String, usize>>,
    resources: Slab<Resource>,
    shapes: BTreeMap<Shape, usize>,
    families: Slab<Family>,
    /// Those that are aged out, by class. Their tick is 0: only their places count.
    aged_out: BTreeMap<i8, BTreeSet<Row>>,
}

#[derive(Debug)]
struct Job {
    class: i8,
    row: Row,
    named: Vec<Named>,
    /// Its family, and the levels at which it is stuck by name; `None` once it is aged out.
    group: Option<(usize, Levelset)>,
}

/// A resource that a job names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    resource: usize,
    mode: Mode,
    units: u32,
}

#[derive(Debug)]
struct Resource {
    level: usize,
    name: String,
    capacity: Option<u32>,
    held: Held,
    /// Jobs that name it.
    count: usize,
    /// Which these are, unless they are too many.
    jobs: Option<BTreeSet<Number>>,
}

/// Levels by number: bit by bit.
type Levelset = u16;

/// What a job's weight depends on, beside the levels at which it is stuck by a name of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    class: i8,
    big_lock: bool,
    kinds: Vec<(usize, [Kind; 2])>,
    hot: Vec<Named>,
}

/// Jobs of one shape, grouped by the levels at which they are stuck by name.
#[derive(Debug)]
struct Family {
    shape: Shape,
    groups: BTreeMap<Levelset, BTreeSet<Row>>,
}

impl Queue {
    /// Nothing is pending, and nothing runs.
    pub fn new(levels: &Levels, rules: Rules) -> Queue {
        let mut queue = Queue {
            rules,
            hot: HOT,
            running: Summary::new(levels),
            kinds: vec![[Weight::default(); 7]; levels.len()],
            big_lock: rules.least_base().plus(big_lock(levels)),
            tick: i64::MIN,
            jobs: Slab::new(),
            names: vec![BTreeMap::new(); levels.len()],
            resources: Slab::new(),
            shapes: BTreeMap::new(),
            families: Slab::new(),
            aged_out: BTreeMap::new(),
        };
        queue.weigh_kinds();
        queue
    }

    /// What running jobs lock.
    pub fn running(&self) -> &Summary {
        &self.running
    }

    /// Jobs that are pending.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Groups that a reader of the order has to look at.
    pub fn groups(&self) -> usize {
        self.families.iter().map(|(_, family)| family.groups.len()).sum::<usize>() + self.aged_out.len()
    }

    /// A job becomes pending, at this place of the queue (smaller ones first, among those of its class that weigh the same).
    pub fn add(&mut self, class: i8, since_us: i64, place: u64, wanted: &Requests) -> Number {
        let tick = self.rules.aging.tick(since_us);
        // Nobody is of the future: of those the order would change when it comes.
        self.tick = self.tick.max(tick);
        let mut shape = Shape { class, big_lock: wanted.big_lock, kinds: Vec::new(), hot: Vec::new() };
        let number = self.jobs.insert(Job { class, row: (tick, place, 0), named: Vec::new(), group: None });
        let mut named = Vec::new();
        let levels = self.running.levels().clone();
        for (level, name) in levels.names().enumerate() {
            let Some(at) = wanted.levels.get(name).filter(|at| !at.is_none()) else { continue };
            shape.kinds.push((level, at.requests().map(Kind::from)));
            // The big lock weighs the same whatever is named with it.
            for request in at.requests().into_iter().filter(|_| !wanted.big_lock) {
                match request {
                    Request::Shared(names) => named.extend(names.iter().map(|(name, units)| Named {
                        resource: self.name(level, name),
                        mode: Mode::Shared,
                        units: *units,
                    })),
                    Request::Exclusive(names) => named.extend(names.iter().map(|name| Named {
                        resource: self.name(level, name),
                        mode: Mode::Exclusive,
                        units: 1,
                    })),
                    _ => {}
                }
            }
        }
        let mut too_many = Vec::new();
        for Named { resource, .. } in &named {
            let Some(found) = self.resources.get_mut(*resource) else { continue };
            found.count += 1;
            if let Some(jobs) = &mut found.jobs {
                jobs.insert(number);
                if jobs.len() > self.hot {
                    too_many.push(*resource);
                }
            }
        }
        if let Some(job) = self.jobs.get_mut(number) {
            job.row.2 = number;
            job.named = named;
        }
        self.place(number, shape);
        for resource in too_many {
            self.becomes_hot(resource);
        }
        number
    }

    /// A job is no more pending: it starts, or is gone. Whether it was.
    pub fn remove(&mut self, number: Number) -> bool {
        if !self.jobs.contains(number) {
            return false;
        }
        self.leave(number);
        if let Some(Job { class, row, .. }) = self.jobs.try_remove(number)
            && let Some(rows) = self.aged_out.get_mut(&class)
        {
            rows.remove(&(0, row.1, number));
            if rows.is_empty() {
                self.aged_out.remove(&class);
            }
        }
        true
    }

    /// A job runs. (If it was pending, it is to be removed, too.)
    pub fn start(&mut self, job: &Running) {
        self.running.add(job);
        self.changed(job);
    }

    /// A running job has ended, or has locked more: then it starts again as it is.
    pub fn end(&mut self, job: &Running) {
        self.running.remove(job);
        self.changed(job);
    }

    /// Pending jobs, the first one first, as far as somebody reads. Each costs the logarithm of the number of groups; the first one costs
    /// that number.
    pub fn ordered(&mut self, now_us: i64) -> impl Iterator<Item = (Number, Aged)> {
        let (now, mut sources) = self.sources(now_us);
        let heads = sources.iter_mut().enumerate();
        let heads = heads.filter_map(|(source, rows)| Some(Reverse((rows.next(now)?, source)))).collect();
        Ordered { now, sources, heads }
    }

    /// All pending jobs, the first one first: what [`Queue::ordered`] says, in less time if all of it is wanted. (Merging hundreds of sets row
    /// by row jumps about in memory; sorting does not.)
    pub fn all(&mut self, now_us: i64) -> Vec<(Number, Aged)> {
        let mut all = Vec::with_capacity(self.len());
        let (now, mut sources) = self.sources(now_us);
        sources.iter_mut().for_each(|rows| all.extend(std::iter::from_fn(|| rows.next(now))));
        // Not the unstable one: this one makes use of the runs that the groups are.
        all.sort();
        all.into_iter().map(|(_, aged, _, number)| (number, aged)).collect()
    }

    fn sources(&mut self, now_us: i64) -> ((Aging, i64), Vec<Source<'_>>) {
        self.age(now_us);
        let aged_out = self.aged_out.iter().map(|(class, rows)| (*class, Weight::default(), rows));
        let groups = self.families.iter().flat_map(|(_, family)| {
            let Family { shape, groups } = family;
            groups.iter().map(|(stuck, rows)| (shape.class, self.weight(shape, *stuck), rows))
        });
        let source = aged_out.chain(groups);
        let source = source.map(|(class, weight, rows)| Source { class, weight, rows: rows.iter() });
        ((self.rules.aging, self.tick), source.collect())
    }

    /// What a job weighs now, before it ages. Jobs that are aged out weigh nothing.
    pub fn weight_of(&self, number: Number) -> Option<Weight> {
        let Some((family, stuck)) = self.jobs.get(number)?.group else { return Some(Weight::default()) };
        Some(self.weight(&self.families.get(family)?.shape, stuck))
    }

    fn weight(&self, shape: &Shape, stuck: Levelset) -> Weight {
        if shape.big_lock {
            return self.big_lock;
        }
        let stuck = stuck | self.stuck(&shape.hot, true);
        shape.kinds.iter().fold(self.rules.least_base(), |sum, (level, kinds)| {
            let worst =
                || kinds.iter().map(|kind| self.kinds[*level][*kind as usize]).max().unwrap_or_default();
            sum.plus(if stuck & 1 << level == 0 { worst() } else { STUCK })
        })
    }

    /// The levels at which one of these is held so that a job is stuck, of those that are hot or of those that are not.
    fn stuck(&self, named: &[Named], hot: bool) -> Levelset {
        let level = |named: &Named| {
            let resource = self.resources.get(named.resource)?;
            let is_stuck = resource.jobs.is_none() == hot
                && resource.held.is_stuck(named.mode, named.units, resource.capacity);
            is_stuck.then_some(1 << resource.level)
        };
        named.iter().filter_map(level).fold(0, |all, level: Levelset| all | level)
    }

    /// The number of a resource that is named.
    fn name(&mut self, level: usize, name: &str) -> usize {
        if let Some(number) = self.names[level].get(name) {
            return *number;
        }
        let number = self.resources.insert(Resource {
            level,
            name: name.to_owned(),
            capacity: self.running.levels().capacity(level, name),
            held: self.running.held(level, name),
            count: 0,
            jobs: Some(BTreeSet::new()),
        });
        self.names[level].insert(name.to_owned(), number);
        number
    }

    /// Puts a job into the family of this shape (what is hot is found out here), and there into its group.
    fn place(&mut self, number: Number, mut shape: Shape) {
        let Some(Job { row, named, .. }) = self.jobs.get(number) else { return };
        let is_hot =
            |named: &Named| self.resources.get(named.resource).is_some_and(|found| found.jobs.is_none());
        shape.hot = named.iter().filter(|named| is_hot(named)).copied().collect();
        shape.hot.sort_unstable();
        let (row, stuck) = (*row, self.stuck(named, false));
        let family = match self.shapes.get(&shape) {
            Some(family) => *family,
            None => {
                let family = self.families.insert(Family { shape: shape.clone(), groups: BTreeMap::new() });
                self.shapes.insert(shape, family);
                family
            }
        };
        if let Some(found) = self.families.get_mut(family) {
            found.groups.entry(stuck).or_default().insert(row);
        }
        if let Some(job) = self.jobs.get_mut(number) {
            job.group = Some((family, stuck));
        }
    }

    /// Takes a job out of its group. Its shape, unless it was in none.
    fn take_out(&mut self, number: Number) -> Option<Shape> {
        let job = self.jobs.get_mut(number)?;
        let (number, stuck) = job.group.take()?;
        let family = self.families.get_mut(number)?;
        let rows = family.groups.get_mut(&stuck)?;
        rows.remove(&job.row);
        if rows.is_empty() {
            family.groups.remove(&stuck);
        }
        if !family.groups.is_empty() {
            return Some(family.shape.clone());
        }
        let Family { shape, .. } = self.families.try_remove(number)?;
        self.shapes.remove(&shape);
        Some(shape)
    }

    /// A job leaves its group for good, and the resources that it names forget it.
    fn leave(&mut self, number: Number) {
        self.take_out(number);
        let named = self.jobs.get_mut(number).map(|job| std::mem::take(&mut job.named)).unwrap_or_default();
        for Named { resource, .. } in named {
            let Some(found) = self.resources.get_mut(resource) else { continue };
            found.count -= 1;
            if let Some(jobs) = &mut found.jobs {
                jobs.remove(&number);
            }
            if found.count == 0
                && let Some(Resource { level, name, .. }) = self.resources.try_remove(resource)
            {
                self.names[level].remove(&name);
            }
        }
    }

    /// From now on a resource is part of the shape of those that name it, until nobody does.
    fn becomes_hot(&mut self, resource: usize) {
        let jobs = self.resources.get_mut(resource).and_then(|found| found.jobs.take());
        for number in jobs.into_iter().flatten() {
            if let Some(shape) = self.take_out(number) {
                self.place(number, shape);
            }
        }
    }

    fn weigh_kinds(&mut self) {
        for (level, weights) in self.kinds.iter_mut().enumerate() {
            *weights = KINDS.map(|kind| self.running.apart(level, kind));
        }
    }

    /// What this job locks has changed: jobs that name some of it may be stuck now, or not any more.
    fn changed(&mut self, job: &Running) {
        self.weigh_kinds();
        for lock in job.locks() {
            let Place::Resource { level, name } = &lock.place else { continue };
            let Some(number) = self.names.get(*level).and_then(|names| names.get(name)) else { continue };
            let held = self.running.held(*level, name);
            let Some(found) = self.resources.get_mut(*number) else { continue };
            if std::mem::replace(&mut found.held, held) == held {
                continue;
            }
            let jobs: Vec<Number> = found.jobs.iter().flatten().copied().collect();
            jobs.into_iter().for_each(|job| self.change_group(job));
        }
    }

    fn change_group(&mut self, number: Number) {
        let Some(job) = self.jobs.get(number) else { return };
        let stuck = self.stuck(&job.named, false);
        let Some(job) = self.jobs.get_mut(number) else { return };
        let Some((family, before)) = job.group.filter(|(_, before)| *before != stuck) else { return };
        job.group = Some((family, stuck));
        let Some(Family { groups, .. }) = self.families.get_mut(family) else { return };
        if let Some(rows) = groups.get_mut(&before) {
            rows.remove(&job.row);
            if rows.is_empty() {
                groups.remove(&before);
            }
        }
        groups.entry(stuck).or_default().insert(job.row);
    }

    /// Once in a tick: who is aged out now leaves its group. Each job does so once.
    fn age(&mut self, now_us: i64) {
        let Aging { ticks, .. } = self.rules.aging;
        self.tick = self.tick.max(self.rules.aging.tick(now_us));
        let last = self.tick.saturating_sub(i64::from(ticks));
        let over =
            |rows: &BTreeSet<Row>| rows.range(..=(last, u64::MAX, Number::MAX)).copied().collect::<Vec<_>>();
        let groups = self.families.iter().flat_map(|(_, family)| family.groups.values());
        for (_, place, number) in groups.flat_map(over).collect::<Vec<_>>() {
            self.leave(number);
            if let Some(job) = self.jobs.get(number) {
                self.aged_out.entry(job.class).or_default().insert((0, place, number));
            }
        }
    }
}

/// Rows of one group, which weigh the same but for their age.
#[derive(Debug)]
struct Source<'a> {
    class: i8,
    weight: Weight,
    rows: btree_set::Iter<'a, Row>,
}

impl Source<'_> {
    fn next(&mut self, (aging, now): (Aging, i64)) -> Option<Head> {
        let (tick, place, number) = self.rows.next()?;
        Some((self.class, aging.aged(self.weight, aging.between(*tick, now)), *place, *number))
    }
}

/// What the order of jobs is by, and which job it is.
type Head = (i8, Aged, u64, Number);

/// The merge of all groups.
struct Ordered<'a> {
    now: (Aging, i64),
    sources: Vec<Source<'a>>,
    /// The next one of each source.
    heads: BinaryHeap<Reverse<(Head, usize)>>,
}

impl Iterator for Ordered<'_> {
    type Item = (Number, Aged);

    fn next(&mut self) -> Option<Self::Item> {
        let mut first = self.heads.peek_mut()?;
        let Reverse(((_, aged, _, number), source)) = *first;
        match self.sources.get_mut(source).and_then(|rows| rows.next(self.now)) {
            Some(next) => *first = Reverse((next, source)),
            None => {
                PeekMut::pop(first);
            }
        }
        Some((number, aged))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::super::contention::weigh_by_comparing;
    use super::super::tests::{levels, requests, running};
    use super::*;

    const TICK: i64 = 30_000_000;

    #[derive(Debug, Clone)]
    enum Event {
        Add(i8, u64, Requests),
        Remove(Index),
        Start(Running),
        End(Index),
        /// So many tenths of a tick later.
        Later(i64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            6 => (0..2_i8, 0..50_u64, requests()).prop_map(|(class, place, wanted)| Event::Add(class, place, wanted)),
            2 => any::<Index>().prop_map(Event::Remove),
            2 => running().prop_map(Event::Start),
            2 => any::<Index>().prop_map(Event::End),
            1 => (0..100_i64).prop_map(Event::Later),
        ]
    }

    /// The same, without any memory of what was.
    #[derive(Default)]
    struct Plain {
        jobs: BTreeMap<Number, (i8, i64, u64, Requests)>,
        running: Vec<Running>,
    }

    impl Plain {
        fn ordered(&self, now_us: i64, rules: &Rules) -> Vec<(Number, Aged)> {
            let key = |(number, (class, since_us, place, wanted)): (&Number, &(i8, i64, u64, Requests))| {
                let weight = weigh_by_comparing(wanted, &self.running, &levels(), rules.base).total;
                let aged = rules.aging.aged(weight, rules.aging.age(*since_us, now_us));
                (*class, aged, *place, *number)
            };
            let mut all: Vec<_> = self.jobs.iter().map(key).collect();
            all.sort_unstable();
            all.into_iter().map(|(_, aged, _, number)| (number, aged)).collect()
        }
    }

    fn check(events: Vec<Event>, hot: usize) -> Result<(), TestCaseError> {
        let rules = Rules { aging: Aging { ticks: 20, ..Aging::default() }, ..Rules::default() };
        let mut queue = Queue { hot, ..Queue::new(&levels(), rules) };
        let (mut plain, mut now_us) = (Plain::default(), 0);
        for event in events {
            match event {
                Event::Add(class, place, wanted) => {
                    // Some have waited for a while when they come.
                    let since_us = now_us - i64::try_from(place * place).unwrap() * TICK / 100;
                    let number = queue.add(class, since_us, place, &wanted);
                    let before = plain.jobs.insert(number, (class, since_us, place, wanted));
                    prop_assert_eq!(before, None);
                }
                Event::Remove(index) if !plain.jobs.is_empty() => {
                    let number = *plain.jobs.keys().nth(index.index(plain.jobs.len())).unwrap();
                    plain.jobs.remove(&number);
                    prop_assert!(queue.remove(number));
                    prop_assert!(!queue.remove(number));
                }
                Event::Start(job) => {
                    queue.start(&job);
                    plain.running.push(job);
                }
                Event::End(index) if !plain.running.is_empty() => {
                    let job = plain.running.swap_remove(index.index(plain.running.len()));
                    queue.end(&job);
                }
                Event::Remove(_) | Event::End(_) => {}
                Event::Later(tenths) => now_us += tenths * TICK / 10,
            }
            let all = plain.ordered(now_us, &rules);
            prop_assert_eq!(&queue.ordered(now_us).collect::<Vec<_>>(), &all);
            prop_assert_eq!(&queue.all(now_us), &all);
            prop_assert_eq!(queue.len(), plain.jobs.len());
        }
        // Whatever came and went: nothing of it is left.
        for number in plain.jobs.keys() {
            prop_assert!(queue.remove(*number));
        }
        prop_assert!(queue.is_empty() && queue.groups() == 0);
        prop_assert!(queue.resources.is_empty() && queue.families.is_empty() && queue.shapes.is_empty());
        prop_assert!(queue.names.iter().all(BTreeMap::is_empty));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn prop_the_order_is_that_of_sorting_everything_anew(
            events in prop::collection::vec(event(), 1..60), hot in prop_oneof![Just(0_usize), Just(2), Just(HOT)],
        ) {
            check(events, hot)?;
        }
    }
}
