//! Tasks: a worker gets jobs of those that it knows, and others stand in nobody's way.

use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_queue::claims::{self, Claiming, Ending};
use turnwise_queue::concurrency::{self, ReleaseOptions, Rotation, Tally};
use turnwise_queue::tasks::{KnownTasks, Tasks};
use turnwise_queue::{Claim, Context, NewJob, State, Terms, jobs};

use crate::common::{T, json};

type World = crate::common::World<OfTasks>;

#[derive(Default)]
struct OfTasks;

fn known(tasks: &[(&str, u32)]) -> KnownTasks {
    tasks.iter().map(|(task, cap)| ((*task).to_owned(), *cap)).collect()
}

impl World {
    async fn add(&self, id: &str, task: Option<&str>, now_us: i64) {
        let new = NewJob::new(T, id, json("{}")).with(|spec| spec.task = task.map(str::to_owned));
        self.run(async |tx, keys| jobs::add(tx, keys, &new, now_us).await).await;
    }

    /// What worker `w` takes, if it knows these tasks.
    async fn tasks(&self, known: Option<&KnownTasks>) -> Tasks {
        Tasks::of_worker(&self.tx().await, &self.keys, T, "w", known, 99).await.unwrap()
    }

    /// Claims a job for worker `w`, or moves it out of the queue. Returns its claim.
    async fn start(&self, id: &str, known: Option<&KnownTasks>) -> Option<Claim> {
        let (claim, tasks) = (self.next_claim("w"), self.tasks(known).await);
        self.run(async |tx, keys| {
            let (context, mut tally) = (Context::new(tx, keys, T, 7, 20), Tally::of(tasks));
            let levels = Levels::default();
            let claiming = claims::claim_within(
                context,
                &levels,
                &mut tally,
                None,
                &(&Terms::default()).into(),
                id,
                &claim,
            )
            .await?;
            match claiming {
                Claiming::Claimed { .. } => Ok(Some(claim)),
                Claiming::Limited(full) => {
                    assert!(matches!(full.limit.bucket, Bucket::Task(_)));
                    assert!(concurrency::hold_back(tx, keys, T, id, &full.limit, None, 8).await?);
                    Ok(None)
                }
                other => panic!("{other:?}"),
            }
        })
        .await
    }

    /// Returns jobs to the queue for worker `w`, in a pass with room for `most`.
    async fn release(&self, known: Option<&KnownTasks>, most: usize, mine: bool) {
        let tasks = &self.tasks(known).await;
        let in_turn = |waiting: &[(String, usize)], most: usize| {
            let all = waiting.iter().enumerate().flat_map(|(n, (_, jobs))| std::iter::repeat_n(n, *jobs));
            all.take(most).collect()
        };
        self.run(async |tx, keys| {
            let rotation = &Rotation::default();
            let options = ReleaseOptions { rotation, most, clears: true, tasks, now_us: 9 };
            concurrency::release_limited(tx, keys, T, options, |_, _| mine, in_turn).await
        })
        .await;
    }

    async fn states(&self, ids: &[&str]) -> Vec<State> {
        let mut states = Vec::new();
        for id in ids {
            states.push(self.find(id).await.unwrap().state());
        }
        states
    }
}

#[tokio::test]
async fn a_job_of_an_unknown_task_leaves_the_queue_and_keeps_its_place_for_who_knows_it() {
    let world = World::new().await;
    world.add("old", Some("send"), 1).await;
    world.add("new", Some("thumbnail"), 2).await;
    world.add("plain", None, 3).await;
    let (sends, makes) = (known(&[("send", 0)]), known(&[("thumbnail", 0), ("send", 0)]));
    assert!(world.start("new", Some(&sends)).await.is_none());
    assert!(world.start("plain", Some(&sends)).await.is_none(), "it has no task");
    assert!(world.start("old", Some(&sends)).await.is_some());
    // A pass of a worker that does not know the task leaves the job outside, and its mark in place.
    world.release(Some(&sends), 9, true).await;
    assert_eq!(world.states(&["new", "plain"]).await, [State::Delayed; 2]);
    // Whichever part of the names is its own.
    world.release(Some(&makes), 9, false).await;
    let job = world.find("new").await.unwrap();
    assert_eq!((job.state(), job.order_us()), (State::Pending, 2));
    assert!(world.start("new", Some(&makes)).await.is_some());
    // A worker that states no tasks takes everything.
    world.release(None, 9, false).await;
    assert!(world.start("plain", None).await.is_some());
}

#[tokio::test]
async fn no_more_jobs_of_a_task_start_than_its_cap_and_the_next_follows_an_end() {
    let world = World::new().await;
    for n in 0..5 {
        world.add(&format!("t{n}"), Some("thumbnail"), n).await;
    }
    let capped = known(&[("send", 0), ("thumbnail", 2)]);
    let first = world.start("t0", Some(&capped)).await.unwrap();
    assert!(world.start("t1", Some(&capped)).await.is_some());
    for id in ["t2", "t3", "t4"] {
        assert!(world.start(id, Some(&capped)).await.is_none(), "{id}");
    }
    world.release(Some(&capped), 9, true).await;
    assert_eq!(world.states(&["t2", "t3", "t4"]).await, [State::Delayed; 3]);
    // Its end wakes the workers of the type: its own worker may take another one.
    let wake = async || world.tx().await.get(&world.keys.wake(T)).await.unwrap();
    let before = wake().await;
    let ending = Ending::completed(json("1"));
    world
        .run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, 9, 20), "t0", &first, &ending, None, None).await
        })
        .await;
    assert_ne!(wake().await, before);
    world.release(Some(&capped), 9, true).await;
    assert_eq!(world.states(&["t2", "t3", "t4"]).await, [State::Pending, State::Delayed, State::Delayed]);
    assert!(world.start("t2", Some(&capped)).await.is_some());
    // Another worker of the type may have room, and no cap.
    world.release(Some(&known(&[("thumbnail", 0)])), 9, true).await;
    assert_eq!(world.states(&["t3", "t4"]).await, [State::Pending; 2]);
}

#[tokio::test]
async fn a_mark_goes_with_the_last_job_of_its_task() {
    let world = World::new().await;
    world.add("a", Some("x"), 1).await;
    assert!(world.start("a", Some(&known(&[("y", 0)]))).await.is_none());
    let marks = async || {
        let range = world.keys.roomy(T);
        crate::common::rows_in(&world.store, range).await.len()
    };
    assert_eq!(marks().await, 1);
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await;
    world.release(Some(&known(&[("x", 0)])), 9, true).await;
    assert_eq!(marks().await, 0);
}
