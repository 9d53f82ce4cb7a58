//! The developer commands. `cargo xtask` without arguments lists them.

mod api_check;
mod bench;
mod browser;
mod command;
mod failures;
mod foundationdb;
mod lab;
mod leaks;
mod peers;
mod test_programs;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask test [FILTER]...          install the peers if need be, then run all tests (or those that match)
       cargo xtask test --beside COMMAND        all tests, and the command once they are built
       cargo xtask test --cluster foundationdb   three nodes on a real FoundationDB, while they and it fail
       cargo xtask bench --setup                 install the servers that bench queue and bench fairness compare with
       cargo xtask sim OPTION...                 the deterministic world: one seed, many, or the mutants it must catch
       cargo xtask soak [OPTION]...              two-way replications for half an hour, with everything failing that can
       cargo xtask chaos [OPTION]...             clients and workers of a server, or two on one store, with everything failing that can
       cargo xtask api-check [OPTION]...         /v1 against its OpenAPI description: a validator, and schemathesis
       Each bench, the soak and the chaos explains its options with --help.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["test", "--cluster", "foundationdb"] => test_cluster_on_foundationdb(),
        ["test", "--beside", command] => test(&[], Some(command)),
        ["test", filter @ ..] => test(filter, None),
        ["bench", "--setup"] => bench::setup(),
        ["bench", name, options @ ..] => match bench::bench(name, options) {
            Some(result) => result,
            None => return wrong_usage(),
        },
        ["api-check", options @ ..] => api_check::api_check(options),
        ["sim", options @ ..] => lab::sim(options),
        ["soak", options @ ..] => lab::soak(options),
        ["chaos", options @ ..] => lab::chaos(options),
        _ => return wrong_usage(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

fn wrong_usage() -> ExitCode {
    eprintln!("{USAGE}\n{}", bench::usage());
    ExitCode::from(2)
}

/// Runs all tests of the workspace, several programs at the same time, and a command beside them. With a filter, runs what
/// `cargo test` runs. Failures are repeated at the end. Also fails if a secret appeared anywhere.
fn test(filter: &[&str], beside: Option<&str>) -> command::Result {
    let mut tests = command::cargo();
    tests.args(["test", "--workspace", "--no-fail-fast"]);
    // FoundationDB's engine links a library that no distribution has, so it is built only if FoundationDB is available.
    let foundationdb = foundationdb::Server::start()?;
    if let Some(server) = &foundationdb {
        server.set_env(&mut tests).args(["--features", "turnwise-cli/foundationdb"]);
    }
    // Cargo compiles for minutes while the rest is fetched and installed.
    let build = if filter.is_empty() { Some(test_programs::Build::start(&tests)?) } else { None };
    peers::install()?;
    peers::install_python()?;
    peers::install_etcd()?;
    peers::install_prometheus()?;
    let browser = browser::install()?;
    let leaks = leaks::Folder::empty(bench::target().join("leaks"))?;
    leaks.set_env(&mut tests);
    if let Some(python) = &browser {
        tests.env(browser::PYTHON, python);
    }
    let tested = match build {
        Some(build) => test_programs::run(build, &tests, beside),
        None => failures::repeated(tests.args(filter)),
    };
    // Both results count. Secrets come first, because a test that found one has failed for that reason.
    leaks.verdict().and(tested)
}

/// Runs the test of nodes on a shared store, with a real FoundationDB. It takes some minutes.
fn test_cluster_on_foundationdb() -> command::Result {
    peers::install()?;
    let Some(server) = foundationdb::Server::start()? else { return Ok(()) };
    let mut test = command::cargo();
    server.set_fault_env(server.set_env(&mut test));
    let test =
        test.args(["test", "--package", "turnwise-cli", "--features", "foundationdb", "--test", "cluster"]);
    command::run(test.args(["foundationdb", "--", "--nocapture"]))
}
