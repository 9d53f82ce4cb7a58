//! The command line of the soak test.

use std::path::PathBuf;

use turnwise_lab_soak::{ExternalServer, Options};

pub const USAGE: &str = "\
cargo xtask soak [OPTION]...
  Random writes, deletes, conflicts and attachments on both sides of two-way continuous replications, with random faults: kill -9 of
  turnwise and of the servers, resets, closed ports, 413, 429, 500, 503, slow, silent, cut and nonsensical answers, gateways that refuse
  what is optional, sessions that lapse, and a disk that is full at times. In the end both sides must
  be equal leaf by leaf, with all that was acknowledged; no job has failed, memory has not grown, the store passes its check, and
  turnwise's log and answers hold no secret. The exit status tells.

  --minutes N            how long writes and faults go on (30)
  --databases N          databases on each side (50); each is replicated both ways
  --rate N               writes in a second on both sides together (30)
  --seed N               all writes and faults follow from it (1)
  --settle SECONDS       how long it may take in the end until both sides are equal (300)
  --servers KIND         couchdb (two real ones, if there are any: sessions lapse, and a disk is full at times), or node
                         (pouchdb-servers) (couchdb)
  --gateways yes|no      whether a gateway in front of each server refuses optional requests and bodies over 1 MB (yes)
  --source URL           one server, http://user:password@host:port (one is started)
  --target URL           the other one
  --kill-source CMD      a command that kills it as kill -9 does (without it, it is not killed)
  --restart-source CMD   and one that starts it again
  --kill-target CMD, --restart-target CMD
  --log LEVEL            turnwise's --log (debug)
  --turnwise FILE        the binary (target/release/turnwise, built by the command)";

/// Parses the program's arguments. `Err` states what is wrong with them.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::new(PathBuf::from("target/release/turnwise"));
    let mut sides: [Side; 2] = Default::default();
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<f64>().map_err(|_| format!("{name} {value}: expected a number"));
        let count = || value.parse::<u64>().map_err(|_| format!("{name} {value}: expected a whole number"));
        match name.as_str() {
            "--minutes" => options.seconds = (number()? * 60.0) as u64,
            "--databases" => {
                options.databases = usize::try_from(count()?.max(1)).map_err(|error| error.to_string())?
            }
            "--rate" => options.writes_per_second = number()?.max(0.1),
            "--seed" => options.seed = count()?,
            "--settle" => options.settle_seconds = count()?,
            "--servers" if value == "couchdb" || value == "node" => options.couchdb = value == "couchdb",
            "--gateways" if value == "yes" || value == "no" => options.gateways = value == "yes",
            "--source" => sides[0].url = Some(value),
            "--target" => sides[1].url = Some(value),
            "--kill-source" => sides[0].kill = Some(value),
            "--kill-target" => sides[1].kill = Some(value),
            "--restart-source" => sides[0].restart = Some(value),
            "--restart-target" => sides[1].restart = Some(value),
            "--log" => options.log = value,
            "--turnwise" => options.turnwise = PathBuf::from(value),
            _ => return Err(format!("unknown option {name}")),
        }
    }
    let [source, target] = sides;
    options.source = source.external_server("source")?;
    options.target = target.external_server("target")?;
    Ok(options)
}

/// The options of one server.
#[derive(Default)]
struct Side {
    url: Option<String>,
    kill: Option<String>,
    restart: Option<String>,
}

impl Side {
    fn external_server(self, name: &str) -> Result<Option<ExternalServer>, String> {
        match (self.url, self.kill, self.restart) {
            (None, None, None) => Ok(None),
            (Some(url), None, None) => Ok(Some(ExternalServer { url, kill_and_restart: None })),
            (Some(url), Some(kill), Some(restart)) => {
                Ok(Some(ExternalServer { url, kill_and_restart: Some((kill, restart)) }))
            }
            (None, ..) => {
                Err(format!("--kill-{name} and --restart-{name} are for a server that --{name} names"))
            }
            _ => Err(format!("--kill-{name} and --restart-{name} go together")),
        }
    }
}
