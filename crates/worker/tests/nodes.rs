//! Nodes as members, and their names.

use std::time::Duration;

use turnwise_queue::nodes::{self, NODE_TYPE};
use turnwise_queue::{Context, NodeOptions, Result, workers};
use turnwise_worker::{DEFAULT_HEALTH_INTERVAL, Joined, Options, Worker, join_nodes};

use crate::common::{PATIENCE, World};

/// How long a node watches another one of its name: half of a health timeout, and one second.
const WATCHES: Duration = Duration::from_millis(8_500);

async fn join(world: &World, name: &str) -> Result<Joined> {
    join_at(world, name, None).await
}

async fn join_at(world: &World, name: &str, place: Option<&str>) -> Result<Joined> {
    let options = Options { node: name.to_owned(), ..Options::default() };
    let (url, version) = ("http://127.0.0.1:1".to_owned(), "1".to_owned());
    let node = NodeOptions { url, version, place: place.map(str::to_owned), upstream: false };
    tokio::time::timeout(PATIENCE, join_nodes(&world.store, &world.keys, &options, node, None)).await.unwrap()
}

async fn joined(world: &World, name: &str) -> Worker {
    match join(world, name).await.unwrap() {
        Joined::Node(node) => node,
        Joined::NameTaken { id, .. } => panic!("{name} is taken by {id}"),
    }
}

async fn names(world: &World) -> Vec<(String, String)> {
    let nodes = world.run(async |tx, keys| nodes::list(tx, keys).await).await;
    nodes.into_iter().map(|node| (node.node, node.id)).collect()
}

#[tokio::test]
async fn nodes_are_listed_while_they_are_members() {
    let world = World::new();
    let (a, b) = (joined(&world, "a").await, joined(&world, "b").await);
    let nodes = world.run(async |tx, keys| nodes::list(tx, keys).await).await;
    let url = |node: &workers::Worker| node.node_options.as_ref().unwrap().url.clone();
    assert_eq!(nodes.iter().map(url).collect::<Vec<_>>(), ["http://127.0.0.1:1"; 2]);
    a.shutdown().await;
    assert_eq!(names(&world).await.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["b"]);
    b.shutdown().await;
    // The versionstamp of the nodes' hidden type must not make it appear as a type with workers.
    assert_eq!(
        world.run(async |tx, keys| workers::types_after(tx, keys, None, 10).await).await,
        Vec::<String>::new()
    );
    // Its name is free immediately.
    joined(&world, "a").await.shutdown().await;
}

#[tokio::test]
async fn a_name_that_a_living_node_has_is_refused() {
    let world = World::new();
    let first = joined(&world, "a").await;
    let (second, ()) = tokio::join!(join(&world, "a"), async {
        world.clock.wait_for_sleeper(WATCHES).await;
        // The first node waits for its next ping, and the second one waits for that.
        world.tick(2).await;
    });
    let ids = names(&world).await;
    let Joined::NameTaken { id, url } = second.unwrap() else { panic!("two nodes have one name") };
    assert_eq!(ids, [("a".to_owned(), id)]);
    assert_eq!(url.as_deref(), Some("http://127.0.0.1:1"));
    first.shutdown().await;
}

#[tokio::test]
async fn of_two_nodes_that_start_at_once_under_one_name_one_succeeds() {
    let world = World::new();
    let (first, second, ()) = tokio::join!(join(&world, "a"), join(&world, "a"), async {
        world.clock.wait_for_sleeper(WATCHES).await;
        // The first node waits for its next ping, and the second one waits for that.
        world.tick(2).await;
    });
    let both = [first.unwrap(), second.unwrap()];
    assert_eq!(both.iter().filter(|joined| matches!(joined, Joined::Node(_))).count(), 1);
    assert_eq!(names(&world).await.len(), 1);
}

#[tokio::test]
async fn the_next_node_takes_the_name_of_a_killed_node() {
    let world = World::new();
    drop(joined(&world, "a").await);
    let killed = names(&world).await;
    let (next, ()) = tokio::join!(joined(&world, "a"), async {
        world.clock.wait_for_sleeper(WATCHES).await;
        world.clock.advance(WATCHES - Duration::from_millis(1));
        tokio::task::yield_now().await;
        assert_eq!(names(&world).await, killed, "not before it has waited");
        world.clock.advance(Duration::from_millis(1));
    });
    let now = names(&world).await;
    assert_eq!(now.len(), 1);
    assert_ne!(now, killed);
    next.shutdown().await;
    assert_eq!(names(&world).await, []);
}

#[tokio::test]
async fn a_node_on_the_listener_of_an_older_node_does_not_wait_for_it() {
    let world = World::new();
    drop(join_at(&world, "a", Some("here")).await.unwrap());
    let killed = names(&world).await;
    // The clock does not move.
    let Joined::Node(next) = join_at(&world, "a", Some("here")).await.unwrap() else { panic!("taken") };
    let now = names(&world).await;
    assert_eq!(now.len(), 1);
    assert_ne!(now, killed);
    // A different URL, or none, proves nothing.
    for place in [Some("there"), None] {
        let (other, ()) = tokio::join!(join_at(&world, "a", place), async {
            world.clock.wait_for_sleeper(WATCHES).await;
            world.tick(2).await;
        });
        assert!(matches!(other.unwrap(), Joined::NameTaken { .. }), "{place:?}");
    }
    next.shutdown().await;
}

#[tokio::test]
async fn a_removed_node_registers_again_under_its_name() {
    let world = World::new();
    let node = joined(&world, "a").await;
    let (_, old) = names(&world).await.remove(0);
    world
        .run(async |tx, keys| workers::remove(Context::new(tx, keys, NODE_TYPE, 0, 20), &old, 1).await)
        .await;
    let membership = world.keys.workers_versionstamp(NODE_TYPE);
    let seen = world.store.begin().await.unwrap().get(&membership).await.unwrap();
    let changed = world.store.watch(membership, seen).await.unwrap();
    world.clock.wait_for_sleeper(DEFAULT_HEALTH_INTERVAL).await;
    world.clock.advance(DEFAULT_HEALTH_INTERVAL);
    tokio::time::timeout(PATIENCE, changed).await.expect("it does not come back");
    let nodes = world.run(async |tx, keys| nodes::list(tx, keys).await).await;
    assert_eq!((nodes.len(), &*nodes[0].node), (1, "a"));
    assert_ne!(nodes[0].id, old);
    assert!(nodes[0].node_options.is_some());
    node.shutdown().await;
}
