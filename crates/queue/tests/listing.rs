//! Lists by time: every combination of state, tenant and reason, page by page, against all records sorted.

use std::collections::BTreeSet;

use turnwise_queue::claims::Ending;
use turnwise_queue::listing::{Cursor, Listing, Order, Wanted};
use turnwise_queue::{After, Context, Job, NewJob, Place, State, claims, failures, jobs, reason_class};
use turnwise_store::Limits;

use crate::common::{T, json};

type World = crate::common::World<()>;

const OTHER: &str = "other";

impl World {
    async fn put(&self, new: &NewJob, now_us: i64) {
        self.unchecked(async |tx, keys| jobs::add(tx, keys, new, now_us).await).await.unwrap();
    }

    async fn claim_and_end(&self, job_type: &str, id: &str, at_us: i64, ending: Option<Ending>) {
        let claim = self.next_claim("w");
        self.unchecked(async |tx, keys| {
            claims::claim(Context::new(tx, keys, job_type, at_us, 20), id, &claim).await?;
            if let Some(ending) = &ending {
                let context = Context::new(tx, keys, job_type, at_us + 1, 20);
                claims::end(context, id, &claim, ending, None, None).await?;
            }
            Ok(())
        })
        .await
        .unwrap();
    }

    /// Jobs of two types, three tenants, several priorities, in all states that need no filter.
    async fn filled() -> World {
        let world = World::with_limits(Limits::DEFAULT).await;
        let worker = turnwise_queue::workers::Worker::new("w", "n", 0, 9);
        world
            .unchecked(async |tx, keys| turnwise_queue::workers::register(tx, keys, OTHER, &worker))
            .await
            .unwrap();
        for n in 0..120_i64 {
            let job_type = if n % 3 == 0 { OTHER } else { T };
            let id = format!("{:03}", (n * 37) % 120);
            let mut new = NewJob::new(job_type, &id, json("{}"));
            new.spec.tenant = format!("t{}", (n / 10 + n) % 3);
            new.spec.tags = ["eu", "us"]
                .iter()
                .zip([3, 4])
                .filter(|(_, of)| n % of == 0)
                .map(|(tag, _)| (*tag).to_owned())
                .collect();
            new.priority = i8::try_from(n % 4 - 1).ok();
            // Several jobs have the same time.
            let at_us = 10_000 + n / 4 * 10;
            match n % 10 {
                7 => new.not_before_us = Some(1_000_000 + n / 20),
                8 => {
                    new.after = vec![After::completed(T, "blocker")];
                    if n == 8 {
                        world
                            .put(
                                &NewJob::new(T, "blocker", json("{}")).with(|spec| spec.tenant = "b".into()),
                                5,
                            )
                            .await;
                    }
                }
                _ => {}
            }
            world.put(&new, at_us).await;
            let failed = |reason: &str| Some(Ending::Failed(reason.into()));
            let ending = match n % 10 {
                0..=2 => Some(Ending::completed(json("null"))),
                3 => failed(if n % 20 == 3 { "HTTP 503" } else { "timeout after 12345 ms" }),
                4 => Some(Ending::Crashed { error: "HTTP 503".into(), retry_us: Some(2_000_000 + n / 20) }),
                5 => None,
                9 => {
                    let cancelled = world
                        .unchecked(async |tx, keys| jobs::cancel(tx, keys, job_type, &id, at_us + 5).await);
                    cancelled.await.unwrap();
                    continue;
                }
                _ => continue,
            };
            world.claim_and_end(job_type, &id, at_us + 3, ending).await;
        }
        world.check().await;
        world
    }

    async fn all(&self) -> Vec<Job> {
        let tx = self.tx().await;
        let mut all = jobs::list(&tx, &self.keys, T, None, 1_000).await.unwrap();
        all.extend(jobs::list(&tx, &self.keys, OTHER, None, 1_000).await.unwrap());
        all
    }

    /// All pages of a list, as type and id.
    async fn listed(&self, wanted: &Wanted, page: usize) -> Vec<(String, String)> {
        let mut listed = Vec::new();
        let mut from = Some(Cursor::default());
        for _ in 0..1_000 {
            let Some(after) = from else { return listed };
            from = self.page(wanted, page, &after, &mut listed).await;
        }
        panic!("there is no end of it")
    }

    /// Adds a page of a list. Returns where the next one begins.
    async fn page(
        &self,
        wanted: &Wanted,
        page: usize,
        from: &Cursor,
        listed: &mut Vec<(String, String)>,
    ) -> Option<Cursor> {
        let tx = self.tx().await;
        let sees = |tenant: &str| tenant != "t2";
        let mut listing = Listing::open(&tx, &self.keys, wanted, &sees, from).await.unwrap();
        let mut last = None;
        let mut left = page;
        while left > 0 {
            let found = listing.next(left).await.unwrap();
            if found.is_empty() {
                break;
            }
            left -= found.len();
            for (cursor, job) in found {
                listed.push((job.job_type.clone(), job.id.clone()));
                last = Some(cursor);
            }
        }
        let next = if left == 0 { last } else { listing.position() };
        // A position survives the way through a client.
        next.map(|next| serde_json::from_str(&serde_json::to_string(&next).unwrap()).unwrap())
    }

    /// Adds blocked jobs with ids that begin with `name`, at descending times up to `at_us`.
    async fn block(&self, name: &str, count: i64, at_us: i64) {
        for first in (0..count).step_by(900) {
            self.unchecked(async |tx, keys| {
                for n in first..(first + 900).min(count) {
                    let mut new = NewJob::new(T, &format!("{name}-{n:04}"), json("{}"));
                    new.after = vec![After::completed(T, "blocker")];
                    jobs::add(tx, keys, &new, at_us - n).await?;
                }
                Ok(())
            })
            .await
            .unwrap();
        }
    }
}

fn time_of(job: &Job) -> i64 {
    match &job.place {
        Place::Active(_) => job.started_us.unwrap(),
        Place::Blocked { .. } | Place::Ended(_) => job.changed_us,
        _ => job.order_us(),
    }
}

fn wanted(order: Order) -> Wanted {
    Wanted { order, types: None, states: None, tenants: None, tags: None, class: None, ids: None }
}

#[tokio::test]
async fn every_list_has_the_jobs_in_the_order_of_their_times() {
    let world = World::filled().await;
    let mut all = world.all().await;
    all.sort_by(|a, b| (time_of(a), &a.job_type, &a.id).cmp(&(time_of(b), &b.job_type, &b.id)));
    let states = ["pending", "running", "delayed", "crashing", "blocked", "completed", "failed", "cancelled"];
    let mut not_empty = 0;
    for order in [Order::Oldest, Order::Newest] {
        if order == Order::Newest {
            all.reverse();
        }
        for state in [None].into_iter().chain(states.map(Some)) {
            for tenants in [None, Some(vec!["t1".to_owned()]), Some(vec!["t0".to_owned(), "b".to_owned()])] {
                for (class, tags) in [
                    (None, None),
                    (Some("HTTP 503"), None),
                    (Some("timeout after N ms"), None),
                    (None, Some(vec!["eu".to_owned()])),
                    (Some("HTTP 503"), Some(vec!["eu".to_owned(), "us".to_owned()])),
                ] {
                    for types in [None, Some(vec![T.to_owned()])] {
                        let wanted = Wanted {
                            types: types.clone(),
                            states: state.map(|state| BTreeSet::from([state.to_owned()])),
                            tenants: tenants.clone(),
                            tags: tags.clone(),
                            class: class.map(reason_class::number),
                            ..wanted(order)
                        };
                        let is_wanted = |job: &&Job| {
                            let name = match job.state() {
                                State::Delayed if matches!(job.place, Place::Blocked { .. }) => {
                                    "blocked".to_owned()
                                }
                                state => serde_json::to_value(state).unwrap().as_str().unwrap().to_owned(),
                            };
                            job.tenant != "t2"
                                && state.is_none_or(|state| state == name)
                                && types.as_ref().is_none_or(|types| types.contains(&job.job_type))
                                && tenants.as_ref().is_none_or(|tenants| tenants.contains(&job.tenant))
                                && tags
                                    .as_ref()
                                    .is_none_or(|tags| tags.iter().any(|tag| job.tags.contains(tag)))
                                && class.is_none_or(|class| job.reason_class().as_deref() == Some(class))
                        };
                        let expected: Vec<_> = all
                            .iter()
                            .filter(is_wanted)
                            .map(|job| (job.job_type.clone(), job.id.clone()))
                            .collect();
                        not_empty += usize::from(!expected.is_empty());
                        for page in [1, 7, 1_000] {
                            let listed = world.listed(&wanted, page).await;
                            assert_eq!(listed, expected, "{wanted:?}, {page} per page");
                        }
                    }
                }
            }
        }
    }
    assert!(not_empty > 60, "{not_empty}");
}

#[tokio::test]
async fn ids_are_looked_up_and_an_unknown_state_finds_nothing() {
    let world = World::filled().await;
    let ids = Some(vec!["blocker".to_owned(), "038".to_owned(), "none".to_owned()]);
    let found = world.listed(&Wanted { ids, ..wanted(Order::Newest) }, 10).await;
    assert_eq!(found.len(), 2, "{found:?}");
    let states = Some(BTreeSet::from(["limited".to_owned()]));
    assert_eq!(world.listed(&Wanted { states, ..wanted(Order::Newest) }, 10).await, []);
}

#[tokio::test]
async fn a_search_for_few_jobs_among_many_ends_at_a_bound_and_continues() {
    let world = World::with_limits(Limits::DEFAULT).await;
    for batch in 0..5 {
        world
            .unchecked(async |tx, keys| {
                for n in 0..1_000 {
                    let mut new = NewJob::new(T, &format!("{batch}-{n:04}"), json("{}"));
                    new.not_before_us = Some(1_000_000 + n);
                    new.spec.tenant = if (batch, n) == (3, 0) { "rare".into() } else { "many".into() };
                    jobs::add(tx, keys, &new, 10).await?;
                }
                Ok(())
            })
            .await
            .unwrap();
    }
    let rare = Wanted { tenants: Some(vec!["rare".into()]), ..wanted(Order::Newest) };
    assert_eq!(world.listed(&rare, 10).await, [(T.to_owned(), "3-0000".to_owned())]);
    // Records that the caller does not see are not counted.
    let (tx, from) = (world.tx().await, Cursor::default());
    let all = wanted(Order::Newest);
    let mut listing = Listing::open(&tx, &world.keys, &all, &|tenant| tenant == "rare", &from).await.unwrap();
    assert_eq!(listing.next(10).await.unwrap().len(), 1);
    assert_eq!(
        (listing.next(10).await.unwrap().len(), listing.looked_at(), listing.position()),
        (0, 1, None)
    );
}

#[tokio::test]
async fn a_list_by_tag_reads_the_jobs_with_the_tag_unless_they_are_many() {
    let world = World::with_limits(Limits::DEFAULT).await;
    for batch in 0..5_i64 {
        world
            .unchecked(async |tx, keys| {
                for n in 0..1_000 {
                    let mut new = NewJob::new(T, &format!("{batch}-{n:04}"), json("{}"));
                    new.not_before_us = Some(1_000_000 + n * 10 + batch);
                    let tags = ["many", "few"].iter().zip([n % 2 == 0, n % 500 == 3]).filter(|(_, has)| *has);
                    new.spec.tags = tags.map(|(tag, _)| (*tag).to_owned()).collect();
                    jobs::add(tx, keys, &new, 10).await?;
                }
                Ok(())
            })
            .await
            .unwrap();
    }
    let by = |tag: &str| Wanted { tags: Some(vec![tag.to_owned()]), ..wanted(Order::Newest) };
    let few = by("few");
    let (tx, from) = (world.tx().await, Cursor::default());
    let mut listing = Listing::open(&tx, &world.keys, &few, &|_| true, &from).await.unwrap();
    let mut found = Vec::new();
    loop {
        match listing.next(100).await.unwrap() {
            jobs if jobs.is_empty() => break,
            jobs => found.extend(jobs.into_iter().map(|(_, job)| job.into_fields().id)),
        }
    }
    assert_eq!(
        (found.join(" ").as_str(), listing.looked_at()),
        ("4-0503 3-0503 2-0503 1-0503 0-0503 4-0003 3-0003 2-0003 1-0003 0-0003", 10)
    );
    // These are more than one request reads.
    let many = world.listed(&by("many"), 1_000).await;
    assert_eq!((many.len(), many[0].1.as_str(), many[2_499].1.as_str()), (2_500, "4-0998", "0-0000"));
    assert_eq!(many.iter().collect::<BTreeSet<_>>().len(), 2_500);
}

#[tokio::test]
async fn jobs_that_cannot_be_sorted_follow_in_the_order_of_their_keys() {
    let world = World::with_limits(Limits::DEFAULT).await;
    world.put(&NewJob::new(T, "blocker", json("{}")), 5).await;
    world.block("b", 5_400, 10).await;
    let listed = world.listed(&wanted(Order::Newest), 1_000).await;
    assert_eq!((listed.len(), listed[0].1.as_str()), (5_401, "blocker"));
    assert!(listed[1..].is_sorted(), "by id");
    assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), 5_401);
}

#[tokio::test]
async fn jobs_that_can_no_longer_be_sorted_are_not_listed_twice() {
    for order in [Order::Newest, Order::Oldest] {
        let world = World::with_limits(Limits::DEFAULT).await;
        world.put(&NewJob::new(T, "blocker", json("{}")), 1_000_000).await;
        world.block("a", 4_500, 500_000).await;
        let (mut listed, wanted) = (Vec::new(), wanted(order));
        let mut from = Some(Cursor::default());
        for page in 0.. {
            let Some(after) = from else { break };
            from = world.page(&wanted, 1_000, &after, &mut listed).await;
            if page == 1 {
                world.block("new", 900, 2_000_000).await;
            }
        }
        let distinct: BTreeSet<_> = listed.iter().collect();
        assert_eq!(distinct.len(), listed.len(), "{order:?}");
        assert_eq!(listed.iter().filter(|(_, id)| id.starts_with("a-")).count(), 4_500, "{order:?}");
        let new = listed.iter().filter(|(_, id)| id.starts_with("new-")).count();
        assert_eq!(new, if order == Order::Newest { 0 } else { 900 });
        assert_eq!(listed.iter().filter(|(_, id)| id == "blocker").count(), 1);
    }
}

#[tokio::test]
async fn failures_are_counted_by_the_class_of_their_reason() {
    let world = World::filled().await;
    let tx = world.tx().await;
    let types = [T.to_owned(), OTHER.to_owned()];
    let all = failures::most_frequent(&tx, &world.keys, &types, None, None, &|_| true, 10).await.unwrap();
    let of = |class: &str| all.failures.iter().find(|failure| failure.class == class).unwrap().jobs;
    assert_eq!((of("HTTP 503"), of("timeout after N ms")), (6, 6));
    assert_eq!((all.looked_at, all.complete, all.more), (12, true, false));
    let one = failures::most_frequent(&tx, &world.keys, &types, Some(&["t1".into()]), None, &|_| true, 1)
        .await
        .unwrap();
    assert!(one.looked_at < 12 && one.looked_at > 0 && one.failures[0].example.tenant == "t1", "{one:?}");
    let none = failures::most_frequent(&tx, &world.keys, &types, None, None, &|_| false, 10).await.unwrap();
    assert_eq!((none.looked_at, none.failures.len()), (0, 0));
    for (n, task) in (0..).zip([Some("send"), Some("receive"), None]) {
        let new =
            NewJob::new(T, &format!("of-{n}"), json("{}")).with(|spec| spec.task = task.map(str::to_owned));
        world.put(&new, 900 + n).await;
        world.claim_and_end(T, &new.id, 910 + n, Some(Ending::Failed("no route".into()))).await;
    }
    let tx = world.tx().await;
    let of = async |task| {
        failures::most_frequent(&tx, &world.keys, &types, None, Some(task), &|_| true, 10).await.unwrap()
    };
    let send = of("send").await;
    assert_eq!((send.looked_at, send.failures[0].example.id.as_str()), (1, "of-0"));
    assert!(of("none").await.failures.is_empty());
}

#[tokio::test]
async fn retention_removes_the_old_jobs_of_all_partitions() {
    let world = World::filled().await;
    let ended = |jobs: &[Job]| jobs.iter().filter(|job| job.state().is_final()).count();
    let middle_us = {
        let mut times: Vec<i64> =
            world.all().await.iter().filter(|job| job.state().is_final()).map(|job| job.changed_us).collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    let young: Vec<String> = world
        .all()
        .await
        .into_iter()
        .filter(|job| !job.state().is_final() || job.changed_us >= middle_us)
        .map(|job| format!("{}/{}", job.job_type, job.id))
        .collect();
    for job_type in [T, OTHER] {
        // In batches of any size, and nothing but old jobs.
        while world
            .run(async |tx, keys| {
                jobs::prune(tx, keys, job_type, middle_us, 7, &mut Default::default()).await
            })
            .await
            > 0
        {}
    }
    let left = world.all().await;
    assert!(ended(&left) > 10);
    assert_eq!(left.iter().map(|job| format!("{}/{}", job.job_type, job.id)).collect::<Vec<_>>(), young);
}

#[tokio::test]
async fn a_row_that_states_another_tenant_is_found() {
    use turnwise_queue::check;
    let world = World::filled().await;
    let job = world.all().await.into_iter().find(|job| job.state() == State::Failed).unwrap();
    let key = (job.job_type.clone(), job.id.clone());
    let row = job.index_row().key(&world.keys, &key);
    world
        .unchecked(async |tx, _| Ok(tx.set(row.clone(), bytes::Bytes::from_static(b"\"someone\""))?))
        .await
        .unwrap();
    let rows = crate::common::rows_in(&world.store, (bytes::Bytes::new(), b"\xff"[..].into())).await;
    let found = check::check_rows(&world.keys, &rows);
    assert_eq!(
        found.iter().map(|finding| finding.invariant).collect::<Vec<_>>(),
        [check::Invariant::RowAgrees]
    );
}
