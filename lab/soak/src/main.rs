//! Random writes on both sides of two-way replications during all kinds of faults, and the verdict at the end.
//!
//! Run it with `cargo xtask soak`, which builds what it runs.

mod options;

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{}", options::USAGE);
        return ExitCode::SUCCESS;
    }
    let options = match options::parse(arguments.into_iter()) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let mut terminated = signal(SignalKind::terminate()).expect("signals can be handled");
    let done = tokio::select! {
        done = turnwise_lab_soak::run(options) => done,
        // All started processes end with this one, and its disk is unmounted.
        _ = tokio::signal::ctrl_c() => Err(vec!["interrupted".to_owned()]),
        _ = terminated.recv() => Err(vec!["terminated".to_owned()]),
    };
    match done {
        Ok(()) => {
            println!("all holds");
            ExitCode::SUCCESS
        }
        Err(broken) => {
            broken.iter().for_each(|broken| println!("BROKEN: {broken}"));
            ExitCode::FAILURE
        }
    }
}
