//! The command line of the benchmark.

use std::path::PathBuf;

use crate::contender::Contender;
use crate::workload;

pub const USAGE: &str = "\
cargo xtask bench fairness [OPTION]...
  What a tenant with many jobs costs the others, in turnwise and in other job servers: 50 slots, jobs that sleep, each server alone, in turns,
  on an empty store. Servers that are not installed are left out: `cargo xtask bench --setup` installs them.

  --workloads A,B,…  calm, burst, names, lengths, zipf, backlog (all)
  --only A,B,…       turnwise, dispatch (a model), bullmq, queues (BullMQ, a queue per tenant), graphile (all)
  --backlog N        the jobs that wait in the workload backlog (1000000)
  --rounds N         how often each is measured; the tables have the medians (1)
  --svg DIR          draws the waits in the workload burst, and the parts in lengths (not drawn)
  --dir DIR          where stores go (target/bench-fairness)
  --turnwise FILE    the server (target/release/turnwise, built by the command)";

/// What to measure.
#[derive(Debug)]
pub struct Options {
    pub workloads: Option<Vec<String>>,
    pub only: Option<Vec<String>>,
    pub backlog: usize,
    pub rounds: usize,
    pub svg: Option<PathBuf>,
    pub dir: PathBuf,
    pub turnwise: PathBuf,
}

impl Options {
    /// Parses the program's arguments. `Err` states what is wrong with them.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            workloads: None,
            only: None,
            backlog: 1_000_000,
            rounds: 1,
            svg: None,
            dir: PathBuf::from("target/bench-fairness"),
            turnwise: PathBuf::from("target/release/turnwise"),
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let count = || value.parse::<usize>().map_err(|_| format!("{name} {value}: expected a number"));
            let some_of = |known: Vec<String>| {
                let words: Vec<String> = value.split(',').map(str::to_owned).collect();
                match words.iter().find(|word| !known.contains(word)) {
                    Some(word) => Err(format!("{name} {word}: expected some of {}", known.join(", "))),
                    None => Ok(Some(words)),
                }
            };
            match name.as_str() {
                "--workloads" => {
                    let known = workload::all(0).into_iter().map(|workload| workload.name).collect();
                    options.workloads = some_of(known)?;
                }
                "--only" => {
                    let known = Contender::ALL.map(|contender| contender.key().to_owned());
                    options.only = some_of(known.to_vec())?;
                }
                "--backlog" => options.backlog = count()?,
                "--rounds" => options.rounds = count()?.max(1),
                "--svg" => options.svg = Some(PathBuf::from(value)),
                "--dir" => options.dir = PathBuf::from(value),
                "--turnwise" => options.turnwise = PathBuf::from(value),
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(options)
    }

    /// Whether `--only` allows this contender.
    pub fn wants(&self, contender: Contender) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|word| word == contender.key()))
    }

    /// Whether `--workloads` includes this workload.
    pub fn wants_workload(&self, name: &str) -> bool {
        self.workloads.as_ref().is_none_or(|names| names.iter().any(|word| word == name))
    }
}
