//! Random writes on both sides of two-way replications during all kinds of faults, and the verdict at the end.
//!
//! Run it with `cargo xtask soak`, which builds what it runs.

mod options;

use std::process::ExitCode;

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
    match turnwise_lab_soak::run(options).await {
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
