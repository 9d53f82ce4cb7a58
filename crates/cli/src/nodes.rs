//! `turnwise nodes`: the servers that share a store.

use turnwise_client::NodeInfo;

use crate::table::ListArgs;
use crate::units::ago;
use crate::{Failure, table};

pub(crate) async fn run(args: ListArgs) -> Result<(), Failure> {
    let nodes = args.server.client()?.nodes().await?.nodes;
    table::list(&nodes, args.json, "nodes", ["NODE", "URL", "VERSION", "MODE", "SINCE"], row)
}

fn row(node: &NodeInfo) -> [String; 5] {
    [
        node.name.clone(),
        node.url.clone(),
        node.version.clone(),
        node.mode.as_str().to_owned(),
        ago(node.started_us),
    ]
}
