//! Running processes as jobs.
//!
//! [`run`] runs one process in a group of its own, keeps the head and the tail of what it prints, and leaves nothing behind:
//! when it returns, or is dropped, the whole group is gone. With a [`Guard`] that also holds when this process is killed.
//!
//! [`Handler`] is the job type `command` on top of it:
//!
//! ```json
//! { "argv": ["sh", "-c", "echo $GREETING"], "env": { "GREETING": "hello" }, "cwd": "/tmp", "timeout_s": 60, "stdin": "" }
//! ```
//!
//! Only `argv` must be there. The process gets the server's `PATH`, what `env` says, and `TURNWISE_JOB_ID`, `TURNWISE_JOB_TYPE`
//! and `TURNWISE_ATTEMPT`; nothing else of the server's environment. Exit code 0 completes the job with a [`Report`]; exit code
//! 65 ([`FAILED_EXIT_CODE`]) fails it for good; everything else is a crash, tried again until the job's `max_attempts`.

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

/// A command that ends with this exit code has failed for good: it is not tried again. It is `EX_DATAERR` of `sysexits.h`,
/// "the input was wrong".
pub const FAILED_EXIT_CODE: i32 = 65;
