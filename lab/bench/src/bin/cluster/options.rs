//! The command line of the benchmark.

pub const USAGE: &str = "\
cargo xtask bench cluster [OPTION]...
  Jobs that do nothing, from being added to their recorded end, through 1, 2 and 3 nodes that share a store: a cluster of three etcd members, started
  here on loopback (Debian's etcd-server), and the FoundationDB cluster that FDB_CLUSTER_FILE names, if it names one.

  --jobs N         jobs to measure, after a tenth as many that warm up (10000)
  --submitters N   how many add at the same time, over all nodes (96)
  --batch N        jobs per transaction that adds (1)
  --nodes A,B,…    how many nodes (1,2,3)
  --rounds N       how often each is measured (3)
  --only A,B       etcd, foundationdb (both)
  --quick          1000 jobs, one round: to see that it works";

/// What to measure.
#[derive(Debug)]
pub struct Options {
    pub jobs: usize,
    pub submitters: usize,
    pub batch: usize,
    pub nodes: Vec<usize>,
    pub rounds: usize,
    pub only: Option<Vec<String>>,
}

/// The values of `--only`.
const SUBJECTS: [&str; 2] = ["etcd", "foundationdb"];
/// The highest number of nodes. Each is a process.
const MAX_NODES: usize = 32;

impl Options {
    /// Parses the program's arguments. `Err` states what is wrong with them.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options =
            Self { jobs: 10_000, submitters: 96, batch: 1, nodes: vec![1, 2, 3], rounds: 3, only: None };
        while let Some(name) = arguments.next() {
            if name == "--quick" {
                options = Self { jobs: 1_000, rounds: 1, ..options };
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let count = |text: &str| {
                text.parse::<usize>()
                    .map_err(|_| format!("{name} {value}: expected a number"))
                    .map(|n| n.max(1))
            };
            match name.as_str() {
                "--jobs" => options.jobs = count(&value)?.max(100),
                "--submitters" => options.submitters = count(&value)?,
                "--batch" => options.batch = count(&value)?,
                "--rounds" => options.rounds = count(&value)?,
                "--nodes" => {
                    options.nodes = value.split(',').map(count).collect::<Result<_, _>>()?;
                    if options.nodes.iter().any(|nodes| *nodes > MAX_NODES) {
                        return Err(format!("{name} {value}: at most {MAX_NODES}"));
                    }
                }
                "--only" => {
                    let words: Vec<String> = value.split(',').map(str::to_owned).collect();
                    if let Some(word) = words.iter().find(|word| !SUBJECTS.contains(&word.as_str())) {
                        return Err(format!("{name} {word}: expected some of {}", SUBJECTS.join(", ")));
                    }
                    options.only = Some(words);
                }
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(options)
    }

    /// Whether `--only` allows this subject.
    pub fn wants(&self, subject: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|word| word == subject))
    }
}
