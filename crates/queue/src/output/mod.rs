//! What runs leave beside the record of their job: large results, errors with traces, and lines of log.
//!
//! *Forces.* The record is rewritten at each transition, and has to fit into one value. So what is large, or written often, has rows of its
//! own. A job that has some says so in its record ([`Job::has_output`](crate::JobFields::has_output)): other jobs pay nothing, and nothing outlives its job, because the
//! removal of the record clears one range.

mod errors;
mod log;
mod result;

use turnwise_store::Transaction;

use crate::{Job, Keyspace, Result};

pub use crate::stored_result::StoredResult;
pub(crate) use errors::keep as keep_error;
pub use errors::{KeptError, MAX_CLASS_BYTES, MAX_MESSAGE_BYTES, MAX_TRACE_BYTES, RunError, errors};
pub(crate) use log::{HEAD, append, append_to_running, check as check_log};
pub use log::{
    Level, LogLine, LogPage, LogSize, MAX_LINE_BYTES, MAX_LINES_AT_ONCE, MAX_LOG_BYTES, MAX_LOG_LINES,
    drop_lines, lines, log_row, log_sizes,
};
pub use result::{DEFAULT_MAX_RESULT_BYTES, JobResult, MAX_RESULT_BYTES, result};
pub(crate) use result::{clear as clear_result, store as store_result};

/// The kinds of rows of output, in their keys.
pub(crate) const ERROR: &str = "error";
pub(crate) const LOG: &str = "log";
pub(crate) const RESULT: &str = "result";

/// How much of its output a job keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The number of history entries.
    pub history: usize,
    /// The number of latest errors with a class, a trace or a long message, beside the first one.
    pub errors: usize,
    /// The largest result, in bytes.
    pub result_bytes: usize,
}

/// The number of latest errors that a job keeps by default.
pub const DEFAULT_MAX_ERRORS: usize = 5;

impl Kept {
    /// As many history entries, and as much of the rest as by default.
    pub const fn history(history: usize) -> Kept {
        Kept { history, errors: DEFAULT_MAX_ERRORS, result_bytes: DEFAULT_MAX_RESULT_BYTES }
    }
}

impl Default for Kept {
    fn default() -> Self {
        Kept::history(crate::DEFAULT_MAX_HISTORY)
    }
}

/// Clears all output of a job that is removed.
pub(crate) fn clear(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    match job.has_output {
        true => {
            tx.clear(keys.log_head(&job.job_type, &job.id))?;
            Ok(tx.clear_range(keys.output(&job.job_type, &job.id))?)
        }
        false => Ok(()),
    }
}
