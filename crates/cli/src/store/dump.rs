//! `turnwise store dump`: prints rows to stdout.

use std::io::{BufWriter, Write};

use anyhow::anyhow;
use turnwise_admin::dump::{below, line, parse_key};
use turnwise_admin::scan::{Scan, everything};
use turnwise_queue::Keyspace;

use super::open::{StoreArgs, open_to_read};
use crate::Failure;
use crate::output::is_done;

#[derive(clap::Args)]
#[command(after_help = "\
Each line is a row: its key as a JSON array, a tab, and its value as JSON. An empty value is null, and a versionstamp is \
{\"$versionstamp\": hex}. A part of a value that is stored in several rows, or a value that is not JSON, is {\"$text\": …} or \
{\"$bytes\": hex}. Rows are printed in the order of their keys. The command writes nothing, so the disk of an embedded store may be \
read-only. Stop a server that uses an embedded store first.

Job options and replication documents may hold passwords. Without --secrets, options and passwords in documents are *****, and a \
value that cannot be parsed is {\"$hidden\": bytes}. With --secrets, values are printed as they are stored, with all passwords.

Examples:
  turnwise store dump embedded:/var/lib/turnwise --prefix jobs --limit 10
  turnwise store dump etcd://10.0.0.1/turnwise --prefix '[\"active\",\"replication\"]'
  turnwise store dump etcd://10.0.0.1/turnwise --from '[\"jobs\",\"mail\",\"4711\"]' --limit 1

Exit codes: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Only rows whose key begins with this: a word, or a JSON array
    #[arg(long, value_name = "KEY")]
    prefix: Option<String>,
    /// Only rows from this key on
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// Print at most this many rows
    #[arg(long, value_name = "ROWS")]
    limit: Option<u64>,
    /// Also print passwords and options
    #[arg(long)]
    secrets: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let url = args.store.url()?;
    let key = |name: &str, text: &Option<String>| {
        let key = text.as_deref().map(parse_key).transpose();
        key.map_err(|error| Failure::Usage(anyhow!("{name}: {error}")))
    };
    let mut range = key("--prefix", &args.prefix)?.map_or_else(everything, |prefix| below(&prefix));
    if let Some(from) = key("--from", &args.from)? {
        range.0 = range.0.max(from);
    }
    let store = open_to_read("URL", &url).await?;
    let keys = Keyspace::default();
    let mut scan = Scan::new(&store, range);
    let mut output = BufWriter::with_capacity(1 << 16, std::io::stdout());
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        left -= 1;
        let row = scan.next().await.map_err(|error| anyhow!("cannot read the store: {error}"))?;
        let Some((key, value)) = row else { break };
        let written = writeln!(output, "{}", line(&keys, &key, &value, args.secrets));
        if is_done(written)? {
            return Ok(());
        }
    }
    is_done(output.flush()).map(drop)
}
