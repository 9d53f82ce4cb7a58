//! Runs processes as jobs.
//!
//! [`run`] runs one process and keeps the head and the tail of its output. With a [`Guard`], nothing that the process has started
//! outlives it, nor this process. A [`Sandbox`] limits what it may do.
//!
//! [`Handler`] is the job type `command` on top of [`run`]:
//!
//! ```json
//! { "argv": ["sh", "-c", "echo $GREETING"], "env": { "GREETING": "hello" }, "cwd": "/tmp", "timeout_s": 60, "stdin": "" }
//! ```
//!
//! Only `argv` is required. The process gets the server's `PATH`, the variables in `env`, and `TURNWISE_JOB_ID`,
//! `TURNWISE_JOB_TYPE`, `TURNWISE_ATTEMPT` and, in an array, `TURNWISE_ARRAY_INDEX`, but nothing else of the server's environment. Exit code 0 completes the job with a
//! [`Report`]. Exit code 65 ([`FAILED_EXIT_CODE`]) fails it permanently. Any other end is a crash, which is retried until the
//! job's `max_attempts`.

mod capture;
mod cgroup;
mod environment;
mod group;
mod guard;
mod guarded;
mod handler;
mod launch;
mod lines;
mod options;
mod own;
mod process;
mod program;
mod report;
mod sandbox;
#[cfg(target_os = "linux")]
mod system;
#[cfg(not(target_os = "linux"))]
#[path = "without_sandbox.rs"]
mod system;

pub use capture::Captured;
pub use environment::Variables;
pub use guard::{Guard, guard_main};
pub use handler::{Handler, JOB_TYPE, Settings};
pub use lines::{MAX_LINE_BYTES, OnLine, Output};
pub use options::Options;
pub use own::Own;
pub use process::{Cause, Command, Exit, Finished, StartError, run};
pub use program::Programs;
pub use report::{Report, Verdict};
pub use sandbox::{Limits, Sandbox, User};
pub use system::hide_from_commands;

/// A command that ends with this exit code has failed permanently and is not retried. It is `EX_DATAERR` of `sysexits.h`, "the
/// input was wrong".
pub const FAILED_EXIT_CODE: i32 = 65;
