//! What must hold of decisions, whatever waits and runs.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::predictive_queue::summary::Running;
use crate::predictive_queue::tests::{levels, requests, running};

/// A waiting job, with owned data.
#[derive(Debug, Clone)]
struct Job {
    id: String,
    priority: i8,
    since_us: i64,
    requests: Requests,
    verdict: Verdict,
    pinned: bool,
}

/// Everything that a view refers to.
#[derive(Debug, Clone)]
struct Scene {
    jobs: Vec<Job>,
    running: Vec<Running>,
    reserved: Option<usize>,
    room: usize,
    shard: Shard,
    locks: bool,
    beyond: bool,
    eager: bool,
    random: u64,
    now_us: i64,
}

fn job() -> impl Strategy<Value = Job> {
    let verdict =
        prop_oneof![4 => Just(Verdict::Unknown), 1 => Just(Verdict::OtherPass), 1 => Just(Verdict::Tried)];
    let pinned = prop::bool::weighted(0.1);
    (0..3_i8, 0..2_000_000_000_i64, requests(), verdict, pinned).prop_map(
        |(priority, since_us, requests, verdict, pinned)| Job {
            id: String::new(),
            priority,
            since_us,
            requests,
            verdict,
            pinned,
        },
    )
}

fn scene() -> impl Strategy<Value = Scene> {
    let jobs = prop::collection::vec(job(), 0..25);
    let world = (prop::collection::vec(running(), 0..4), prop::option::of(any::<Index>()), 0..30_usize);
    let shard = prop_oneof![Just(1_usize), 2..5_usize];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<u64>(), 0..2_000_000_000_i64);
    (jobs, world, shard, flags).prop_map(|(mut jobs, (running, reserved, room), workers, flags)| {
        let (locks, beyond, eager, random, now_us) = flags;
        for (n, job) in jobs.iter_mut().enumerate() {
            job.id = format!("job {n}");
            if !locks {
                job.requests = Requests::default();
            }
        }
        let names: Vec<String> = (0..workers).map(|n| format!("w{n}")).collect();
        let reserved = reserved.filter(|_| !jobs.is_empty() && locks).map(|at| at.index(jobs.len()));
        Scene {
            reserved,
            running,
            room,
            shard: Shard::new(&names, "w0", now_us),
            jobs,
            locks,
            beyond,
            eager,
            random,
            now_us,
        }
    })
}

impl Scene {
    fn decide(&self) -> Decision {
        let candidates: Vec<Candidate<'_>> = self
            .jobs
            .iter()
            .enumerate()
            .map(|(n, job)| Candidate {
                id: &job.id,
                priority: job.priority,
                since_us: job.since_us,
                requests: &job.requests,
                reservation: (self.reserved == Some(n)).then_some(0),
                pinned: job.pinned,
                verdict: job.verdict,
            })
            .collect();
        let mut summary = Summary::new(&levels());
        self.running.iter().for_each(|running| summary.add(running));
        let reservations: Vec<Running> =
            self.reserved.iter().map(|job| Running::starting(&self.jobs[*job].requests, &levels())).collect();
        let locks = Locks { running: &summary, reservations: &reservations };
        let view = View {
            candidates: &candidates,
            beyond: self.beyond,
            room: self.room,
            shard: self.shard,
            eager: self.eager,
            random: self.random,
            locks: self.locks.then_some(locks),
            preemption: None,
        };
        schedule(&view, &Rules::default(), self.now_us)
    }

    /// The reason why a job waits, or `None` if it starts.
    fn reason(decision: &Decision, job: usize) -> Option<&HoldReason> {
        decision.hold.iter().find(|hold| hold.candidate == job).map(|hold| &hold.reason)
    }
}

/// A scene of jobs that declare no locks, for one worker.
fn plain(jobs: usize, room: usize) -> Scene {
    let job = |n| Job {
        id: format!("job {n}"),
        priority: 0,
        since_us: 0,
        requests: Requests::default(),
        verdict: Verdict::Unknown,
        pinned: false,
    };
    Scene {
        jobs: (0..jobs).map(job).collect(),
        running: Vec::new(),
        reserved: None,
        room,
        shard: Shard::ALL,
        locks: false,
        beyond: false,
        eager: false,
        random: 0,
        now_us: 0,
    }
}

#[test]
fn free_slots_are_filled_in_the_order_of_the_queue() {
    let decision = plain(4, 2).decide();
    assert_eq!(decision.start, [0, 1]);
    assert_eq!(
        [2, 3].map(|job| Scene::reason(&decision, job).cloned()),
        [Some(HoldReason::NoRoom), Some(HoldReason::NoRoom)]
    );
    assert!(decision.has_no_room());
    assert!(plain(4, 0).decide().start.is_empty());
    assert!(!plain(4, 4).decide().has_no_room());
}

#[test]
fn a_refused_job_leaves_its_room_to_the_next_one() {
    let mut scene = plain(4, 1);
    for (refused, next) in [(0, 1), (1, 2), (2, 3)] {
        scene.jobs[refused].verdict = Verdict::Tried;
        assert_eq!(scene.decide().start, [next]);
    }
    scene.jobs[3].verdict = Verdict::OtherPass;
    let decision = scene.decide();
    assert_eq!((decision.start.len(), decision.has_no_room()), (0, false));
    assert_eq!(Scene::reason(&decision, 3), Some(&HoldReason::OtherPass));
}

#[test]
fn workers_that_see_the_same_queue_start_different_jobs() {
    let names: Vec<String> = (0..3).map(|n| format!("w{n}")).collect();
    let mut started = Vec::new();
    for name in &names {
        let scene = Scene { shard: Shard::new(&names, name, 0), ..plain(30, 30) };
        let decision = scene.decide();
        assert_eq!(decision.start.len() + decision.skipped().count(), 30);
        started.extend(decision.start);
    }
    started.sort_unstable();
    assert_eq!(started, (0..30).collect::<Vec<_>>());
}

proptest! {
    #[test]
    fn prop_each_job_starts_or_waits_for_one_reason(scene in scene()) {
        let decision = scene.decide();
        let mut seen: Vec<usize> = decision.hold.iter().map(|hold| hold.candidate).collect();
        seen.extend(&decision.start);
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..scene.jobs.len()).collect::<Vec<_>>());
    }

    #[test]
    fn prop_no_more_jobs_start_than_there_is_room_for_and_no_slot_stays_free_for_want_of_room(scene in scene()) {
        let decision = scene.decide();
        prop_assert!(decision.start.len() <= scene.room);
        prop_assert!(!decision.has_no_room() || decision.start.len() == scene.room);
    }

    #[test]
    fn prop_only_own_jobs_that_were_not_refused_start(scene in scene()) {
        for job in scene.decide().start {
            let Job { id, verdict, pinned, .. } = &scene.jobs[job];
            prop_assert_eq!(*verdict, Verdict::Unknown);
            // Jobs of other shards start if they were skipped for long enough, or if all that is seen is theirs.
            prop_assert!(*pinned || scene.shard.has(id) || scene.eager || scene.beyond);
        }
    }

    #[test]
    fn prop_jobs_that_start_go_together_with_each_other_and_with_running_ones(scene in scene()) {
        prop_assume!(scene.locks);
        let levels = levels();
        let mut held = Summary::new(&levels);
        scene.running.iter().for_each(|running| held.add(running));
        for job in scene.decide().start {
            let wants = &scene.jobs[job].requests;
            prop_assert!(held.obstacle(&wants.known(&levels)).is_none(), "job {}", job);
            held.add(&Running::starting(wants, &levels));
        }
    }

    #[test]
    fn prop_a_job_that_reserves_waits_for_a_lock(scene in scene()) {
        let decision = scene.decide();
        if let Some(job) = decision.reserve {
            let is_locked = matches!(Scene::reason(&decision, job), Some(HoldReason::Locked(_) | HoldReason::LockReserved(_)));
            prop_assert!(is_locked);
            prop_assert!(scene.reserved.is_none());
        }
        prop_assert!(decision.ages_out_us.is_none() || decision.is_blocked());
    }
}
