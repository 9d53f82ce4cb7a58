//! A random run of writes and ends: every document that must run has its job, and every job has a document.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Put { id: u8, source: u8, connections: u8 },
    Finish { id: u8 },
    Delete { id: u8 },
    Start { nth: u8 },
    End { nth: u8, how: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let n = || 0..4_u8;
    prop_oneof![
        4 => (n(), n(), 1..3_u8).prop_map(|(id, source, connections)| Step::Put { id, source, connections }),
        1 => n().prop_map(|id| Step::Finish { id }),
        1 => n().prop_map(|id| Step::Delete { id }),
        3 => n().prop_map(|nth| Step::Start { nth }),
        3 => (n(), 0..5_u8).prop_map(|(nth, how)| Step::End { nth, how }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn prop_every_document_has_its_job_and_every_job_its_document(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}

fn pick<T>(items: &[T], nth: u8) -> Option<&T> {
    if items.is_empty() { None } else { items.get(usize::from(nth) % items.len()) }
}

async fn run(steps: Vec<Step>) {
    let world = World::new().await;
    for step in steps {
        let running: Vec<Job> =
            world.jobs().await.into_iter().filter(|job| job.state() == State::Running).collect();
        match step {
            Step::Put { id, source, connections } => {
                let body = with(doc(&format!("s{source}")), json!({"http_connections": connections}));
                world.put(&id.to_string(), body).await.unwrap();
            }
            Step::Finish { id } => {
                let body = with(doc("s0"), json!({"_replication_state": "completed"}));
                world.put(&id.to_string(), body).await.unwrap();
            }
            Step::Delete { id } => {
                if world.documents.get(&id.to_string(), None).await.is_ok() {
                    world.delete(&id.to_string()).await;
                }
            }
            Step::Start { nth } => {
                let pending: Vec<Job> =
                    world.jobs().await.into_iter().filter(|job| job.state() == State::Pending).collect();
                if let Some(job) = pick(&pending, nth) {
                    world.start(&job.id).await;
                }
            }
            Step::End { nth, how } => {
                let ending = match how {
                    0 | 1 => completed(),
                    2 => Ending::Failed("no".into()),
                    3 => Ending::Stopped,
                    _ => Ending::Crashed { error: "ouch".into(), retry_us: Some(1) },
                };
                if let Some(job) = pick(&running, nth) {
                    let claim = job.claim().cloned().unwrap();
                    world.end(&job.id, &claim, ending, None).await;
                }
            }
        }
        check(&world).await;
    }
}

async fn check(world: &World) {
    let rows = world.rows().await;
    assert_eq!(check_rows(world.keys(), &rows), []);
    assert_eq!(turnwise_queue::check::check_rows(world.keys(), &rows), []);
    let mut owners: BTreeMap<(String, String), Job> = BTreeMap::new();
    for job in world.jobs().await {
        let leaving = job.then() == turnwise_queue::Then::Remove;
        let summary = Summary::of(&job).unwrap();
        let (db, id) = summary.document().map(|(db, id)| (db.to_owned(), id.to_owned())).unwrap();
        assert!(!is_final(&job), "{job:?}");
        if !leaving {
            assert!(owners.insert((db, id), job).is_none(), "two jobs of one document");
        }
    }
    for id in world.documents.ids(&Default::default(), 100).await {
        let document = world.get(&id).await;
        let owned = owners.remove(&(DB.to_owned(), id.clone()));
        let shall_run = !document.body.contains_key("_replication_state");
        assert_eq!(owned.is_some(), shall_run, "{id}: {document:?}");
        if let Some(job) = owned {
            let mut options = document.body.clone();
            options.retain(|name, _| !name.starts_with('_'));
            assert_eq!(world.options(&job).await, Value::Object(options));
        }
    }
    assert!(owners.is_empty(), "jobs without a document: {owners:?}");
}
