//! Tags: the rows of a job's tags follow the job, and a search reads the narrower of its indices.

use std::collections::BTreeSet;

use turnwise_queue::claims::{self, Ending};
use turnwise_queue::selection::{Position, Selection};
use turnwise_queue::tags::MAX_TAGS;
use turnwise_queue::{Context, Error, NewJob, jobs};
use turnwise_store::Limits;

use crate::common::{T, json, rows_in};

type World = crate::common::World<()>;

fn tags(names: &str) -> BTreeSet<String> {
    names.split_whitespace().map(str::to_owned).collect()
}

fn new(id: &str, tenant: &str, names: &str) -> NewJob {
    NewJob::new(T, id, json("{}")).with(|spec| (spec.tenant, spec.tags) = (tenant.to_owned(), tags(names)))
}

impl World {
    async fn add(&self, new: &NewJob) {
        self.run(async |tx, keys| jobs::add(tx, keys, new, 5).await).await;
    }

    async fn claim(&self, id: &str) -> turnwise_queue::Claim {
        let claim = self.next_claim("w");
        self.run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 6, 20), id, &claim).await).await;
        claim
    }

    async fn end(&self, id: &str, claim: &turnwise_queue::Claim) {
        self.run(async |tx, keys| {
            let (context, ending) = (Context::new(tx, keys, T, 7, 20), Ending::completed(json("1")));
            claims::end(context, id, claim, &ending, None, None).await
        })
        .await;
    }

    /// The rows of all tags: tag, tenant, id.
    async fn rows(&self) -> String {
        let text = |key: &[u8]| turnwise_queue::check::key_text(key);
        let rows = rows_in(&self.store, self.keys.family_range("tags")).await;
        rows.iter()
            .map(|(key, _)| text(key).replace(r#"["tags","test","#, "").replace(['"', ']'], ""))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The jobs that a search reads, page by page, each once.
    async fn read(&self, selection: &Selection, limit: usize) -> Vec<String> {
        let (mut at, mut found) = (Position::default(), Vec::new());
        loop {
            let page = selection.page(&self.tx().await, &self.keys, &at, limit).await.unwrap();
            found.extend(page.jobs.into_iter().map(|(_, job)| job.into_fields().id));
            match page.next {
                // A position survives in the row of a bulk operation.
                Some(next) => at = serde_json::from_str(&serde_json::to_string(&next).unwrap()).unwrap(),
                None => return found,
            }
        }
    }
}

#[tokio::test]
async fn the_rows_of_a_jobs_tags_follow_it_from_its_add_to_its_removal() {
    let world = World::new().await;
    world.add(&new("plain", "acme", "")).await;
    assert_eq!(world.rows().await, "");
    world.add(&new("a", "acme", "nightly eu")).await;
    assert_eq!(world.rows().await, "eu,acme,a nightly,acme,a");
    let claim = world.claim("a").await;
    assert_eq!(world.rows().await, "eu,acme,a nightly,acme,a");
    // Also while it runs, and once it has ended.
    world.add(&new("a", "acme", "eu us")).await;
    assert_eq!(world.rows().await, "eu,acme,a us,acme,a");
    world.end("a", &claim).await;
    assert_eq!(world.get("a").await.tags, tags("eu us"));
    let claim = world.claim("a").await;
    world.end("a", &claim).await;
    world.add(&new("a", "beta", "us")).await;
    assert_eq!(world.rows().await, "us,beta,a");
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await;
    assert_eq!(world.rows().await, "");
    // Retention removes them, too, and so does the end of a run whose job is being removed.
    world.add(&new("b", "acme", "eu")).await;
    let claim = world.claim("b").await;
    world.end("b", &claim).await;
    assert_eq!(
        world.run(async |tx, keys| jobs::prune(tx, keys, T, 8, 10, &mut Default::default()).await).await,
        1
    );
    world.add(&new("c", "acme", "eu")).await;
    let claim = world.claim("c").await;
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "c").await).await;
    assert_eq!(world.rows().await, "eu,acme,c");
    world.end("c", &claim).await;
    assert_eq!(world.rows().await, "");
}

#[tokio::test]
async fn a_tag_is_a_short_word() {
    let world = World::new().await;
    let most = (0..MAX_TAGS).map(|n| format!("t{n}")).collect::<Vec<_>>().join(" ");
    for right in ["a", "EU/west:1", "x@y+z_1.2-3", &"x".repeat(64), &most] {
        world.add(&new(right, "acme", right)).await;
    }
    let many = format!("{most} more");
    let wrong = ["ü".into(), "x".repeat(65), "a,b".into(), "*".into(), many];
    for wrong in wrong {
        let added =
            world.try_run(async |tx, keys| jobs::add(tx, keys, &new("w", "acme", &wrong), 5).await).await;
        assert!(matches!(added, Err(Error::Invalid { field: "tags", .. })), "{wrong}: {added:?}");
    }
    let empty = new("w", "acme", "").with(|spec| spec.tags = [String::new()].into());
    assert!(world.try_run(async |tx, keys| jobs::add(tx, keys, &empty, 5).await).await.is_err());
}

#[tokio::test]
async fn a_search_reads_each_job_with_one_of_its_tags_once() {
    let world = World::with_limits(Limits::DEFAULT).await;
    for (id, tenant, names) in [
        ("1", "acme", "eu"),
        ("2", "beta", "eu us"),
        ("3", "acme", "us"),
        ("4", "acme", ""),
        ("5", "acme", "eu nightly us"),
        ("6", "beta", "nightly"),
    ] {
        world.add(&new(id, tenant, names)).await;
    }
    for (text, expected) in [
        ("tag = eu", "1 5 2"),
        ("tag in (us, eu)", "1 5 2 3"),
        ("tag in (us, eu) and tenant in (acme, none)", "1 5 3"),
        ("tag = us and tenant = beta and attempts = 0", "2"),
        ("tag = none", ""),
    ] {
        let selection = Selection::parse(text, 0).unwrap();
        for limit in 1..5 {
            assert_eq!(world.read(&selection, limit).await.join(" "), expected, "{text}");
        }
    }
    // Records that the reader may not see are not read.
    let sees = |tenant: &str| tenant == "beta";
    let selection = Selection::parse("tag in (us, nightly)", 0).unwrap();
    let selection = selection.narrowed(&world.tx().await, &world.keys, &sees).await.unwrap();
    assert_eq!(world.read(&selection, 1).await, ["6", "2"]);
    let about = selection.about(&world.tx().await, &world.keys, &sees).await.unwrap();
    assert_eq!(about, Some(2), "a row per tag, and none of others");
}

#[tokio::test]
async fn a_search_by_tag_and_state_reads_the_narrower_index() {
    let world = World::with_limits(Limits::DEFAULT).await;
    for n in 0..40 {
        let names = if n < 3 { "rare common" } else { "common" };
        world.add(&new(&format!("{n:02}"), "acme", names)).await;
    }
    world.claim("20").await;
    for (text, expected) in [
        ("tag = rare", 3),
        ("tag = rare and state = pending", 3),
        ("tag = rare and state = running", 1),
        ("tag = common and state = running", 1),
        ("tag = common and state = limited", 40),
        ("tag = common and state in (pending, running)", 40),
    ] {
        let (tx, keys) = (world.tx().await, &world.keys);
        let selection = Selection::parse(text, 0).unwrap();
        let selection = selection.narrowed(&tx, keys, &|_| true).await.unwrap();
        assert_eq!(world.read(&selection, 7).await.len(), expected, "{text}");
        assert_eq!(selection.about(&tx, keys, &|_| true).await.unwrap(), Some(expected as u64), "{text}");
    }
}
