//! Compares a random run of writes with a model: a sorted map and a list.

#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::read::Stretch;
use super::tests::World;
use super::{Counters, Error, Revision};

#[derive(Debug, Clone)]
enum Step {
    /// Write or delete one of a few documents, with its current revision, an old one, or none.
    Put { id: u8, deleted: bool, value: u8, knows: u8 },
    /// Compare a range of ids.
    Ids { from: Option<u8>, to: Option<u8>, exclusive_end: bool, descending: bool, page: usize },
    /// Compare the changes.
    Changes { since: i64, descending: bool, page: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let id = || 0..6_u8;
    prop_oneof![
        6 => (id(), prop::bool::weighted(0.3), any::<u8>(), 0..4_u8)
            .prop_map(|(id, deleted, value, knows)| Step::Put { id, deleted, value, knows }),
        1 => (prop::option::of(id()), prop::option::of(id()), any::<bool>(), any::<bool>(), 1..4_usize).prop_map(
            |(from, to, exclusive_end, descending, page)| Step::Ids { from, to, exclusive_end, descending, page }
        ),
        1 => (0..12_i64, any::<bool>(), 1..4_usize)
            .prop_map(|(since, descending, page)| Step::Changes { since, descending, page }),
    ]
}

fn name(id: u8) -> String {
    // Ids that are difficult in keys: zero bytes and an escape.
    ["a", "b\0", "b\0\u{ff}", "c/d", "ä", "_design/x"][usize::from(id)].to_owned()
}

struct Doc {
    revs: Vec<Revision>,
    deleted: bool,
    value: u8,
    sequence: i64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn prop_the_store_agrees_with_a_map(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}

async fn run(steps: Vec<Step>) {
    let world = World::new().await;
    let mut model: BTreeMap<String, Doc> = BTreeMap::new();
    let mut sequence = 0;
    for step in steps {
        match step {
            Step::Put { id, deleted, value, knows } => {
                let id = name(id);
                let known = model.get(&id).and_then(|doc| match knows {
                    0 => None,
                    1 => doc.revs.first().cloned(),
                    _ => doc.revs.last().cloned(),
                });
                let written = world.put(&id, known.as_ref(), deleted, json!({ "value": value })).await;
                let may = match model.get(&id) {
                    None => true,
                    Some(doc) => known.as_ref() == doc.revs.last() || (known.is_none() && doc.deleted),
                };
                assert_eq!(written.is_ok(), may, "{id} {known:?}");
                match written {
                    Ok(rev) => {
                        sequence += 1;
                        let doc = model.entry(id).or_insert(Doc { revs: vec![], deleted, value, sequence });
                        assert!(!doc.revs.contains(&rev));
                        assert_eq!(rev.generation, doc.revs.len() as u64 + 1);
                        doc.revs.push(rev);
                        (doc.deleted, doc.value, doc.sequence) = (deleted, value, sequence);
                    }
                    Err(error) => assert!(matches!(error, Error::Conflict)),
                }
            }
            Step::Ids { from, to, exclusive_end, descending, page } => {
                let stretch = Stretch { from: from.map(name), to: to.map(name), exclusive_end, descending };
                let (low, high) =
                    if descending { (&stretch.to, &stretch.from) } else { (&stretch.from, &stretch.to) };
                let within = |id: &String| {
                    low.as_ref().is_none_or(|low| low <= id)
                        && high.as_ref().is_none_or(|high| id <= high)
                        && !(exclusive_end && stretch.to.as_ref() == Some(id))
                };
                let there = model.iter().filter(|(id, doc)| !doc.deleted && within(id));
                let mut expected: Vec<String> = there.map(|(id, _)| id.clone()).collect();
                if descending {
                    expected.reverse();
                }
                assert_eq!(world.ids(&stretch, page).await, expected, "{stretch:?}");
            }
            Step::Changes { since, descending, page } => {
                let after = |doc: &Doc| if descending { doc.sequence < since } else { doc.sequence > since };
                let row = |(id, doc): (&String, &Doc)| {
                    (doc.sequence, id.clone(), doc.revs.last().unwrap().clone(), doc.deleted)
                };
                let mut expected: Vec<_> = model.iter().filter(|(_, doc)| after(doc)).map(row).collect();
                expected.sort();
                if descending {
                    expected.reverse();
                }
                assert_eq!(world.changes(since, descending, page).await, expected);
            }
        }
        let deleted = model.values().filter(|doc| doc.deleted).count() as u64;
        let documents = model.len() as u64 - deleted;
        assert_eq!(world.counters().await, Counters { sequence, documents, deleted });
    }
    for (id, doc) in &model {
        let found = world.get(id, doc.revs.last()).await.unwrap();
        assert_eq!((found.body["value"].as_u64(), found.head.deleted), (Some(doc.value.into()), doc.deleted));
    }
}
