//! Runs processes as jobs.
//!
//! [`run`] runs one process in its own process group and keeps the head and the tail of its output. When it returns or is
//! dropped, the whole group has ended. With a [`Guard`], the group also ends when this process is killed.
//!
//! [`Handler`] is the job type `command` on top of [`run`]:
//!
//! ```json
//! { "argv": ["sh", "-c", "echo $GREETING"], "env": { "GREETING": "hello" }, "cwd": "/tmp", "timeout_s": 60, "stdin": "" }
//! ```
//!
//! Only `argv` is required. The process gets the server's `PATH`, the variables in `env`, and `TURNWISE_JOB_ID`,
//! `TURNWISE_JOB_TYPE` and `TURNWISE_ATTEMPT`, but nothing else of the server's environment. Exit code 0 completes the job with a
//! [`Report`]. Exit code 65 ([`FAILED_EXIT_CODE`]) fails it permanently. Any other end is a crash, which is retried until the
//! job's `max_attempts`.

mod capture;
mod environment;
mod guard;
mod handler;
mod options;
mod process;
mod program;
mod report;

pub use capture::Captured;
pub use environment::Variables;
pub use guard::{Guard, guard_main};
pub use handler::{Handler, JOB_TYPE, Settings};
pub use options::Options;
pub use process::{Cause, Command, Exit, Finished, StartError, run};
pub use program::Programs;
pub use report::{Report, Verdict};

/// A command that ends with this exit code has failed permanently and is not retried. It is `EX_DATAERR` of `sysexits.h`, "the
/// input was wrong".
pub const FAILED_EXIT_CODE: i32 = 65;
