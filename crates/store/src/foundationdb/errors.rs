//! Maps FoundationDB's error codes to store errors, sorted by what the caller does next.

use std::ops::RangeInclusive;

use foundationdb::{FdbError, FdbResult};

use crate::{Error, Limits, Result};

const TRANSACTION_TOO_OLD: i32 = 1007;
const NOT_COMMITTED: i32 = 1020;
const TRANSACTION_TIMED_OUT: i32 = 1031;
const TOO_MANY_WATCHES: i32 = 1032;
const DATABASE_LOCKED: i32 = 1038;
/// Invalid calls, and data larger than the cluster accepts. The client finds them before it sends anything.
const MISTAKES: [RangeInclusive<i32>; 2] = [2000..=2099, TRANSACTION_TOO_LARGE..=VALUE_TOO_LARGE];
const TRANSACTION_TOO_LARGE: i32 = 2101;
const VALUE_TOO_LARGE: i32 = 2103;
const CONNECTION_STRING_INVALID: i32 = 2104;
const TLS_ERROR: i32 = 2107;

/// The cluster that error messages name.
pub(super) struct Cluster {
    /// The path of its cluster file.
    pub(super) file: String,
}

impl Cluster {
    /// The error of an operation that cannot have written anything.
    pub(super) fn read_error(&self, error: FdbError) -> Error {
        match error.code() {
            TRANSACTION_TOO_OLD => Error::TooOld { limit_ms: Limits::DEFAULT.transaction_ms },
            code if is_mistake(code) => {
                Error::Misuse(format!("FoundationDB: {} (error {code})", error.message()))
            }
            _ => self.unavailable(error),
        }
    }

    /// The error of a commit. It reports "not committed" only if that is certain.
    pub(super) fn commit_error(&self, error: FdbError) -> Error {
        match error.code() {
            NOT_COMMITTED => Error::Conflict,
            code if code == TRANSACTION_TOO_OLD || is_mistake(code) => self.read_error(error),
            _ if error.is_retryable_not_committed() => self.unavailable(error),
            _ => Error::UnknownOutcome(self.explain(error)),
        }
    }

    /// The error of an operation that cannot have written anything and may work later.
    pub(super) fn unavailable(&self, error: FdbError) -> Error {
        Error::Unavailable(self.explain(error))
    }

    fn explain(&self, error: FdbError) -> String {
        let (file, code, message) = (&self.file, error.code(), error.message());
        match code {
            TRANSACTION_TIMED_OUT => format!(
                "the FoundationDB cluster of {file} does not answer: is it running, and have its disks room? `fdbcli -C {file} --exec status` tells"
            ),
            DATABASE_LOCKED => {
                format!("the FoundationDB cluster of {file} is locked: `fdbcli -C {file}` unlocks it")
            }
            CONNECTION_STRING_INVALID => format!("{file} is no cluster file of FoundationDB"),
            TLS_ERROR => format!(
                "no TLS with the FoundationDB cluster of {file}: FDB_TLS_CERTIFICATE_FILE, FDB_TLS_KEY_FILE and FDB_TLS_CA_FILE name what it needs"
            ),
            TOO_MANY_WATCHES => "this process waits for too many rows of FoundationDB at a time".to_owned(),
            _ => format!("FoundationDB: {message} (error {code})"),
        }
    }
}

/// Maps an error at the client's start.
pub(super) fn cannot_start<T>(result: FdbResult<T>) -> Result<T> {
    result.map_err(|error| {
        Error::Unavailable(format!(
            "the FoundationDB client cannot start, it needs libfdb_c of version 7.3 or later: {} (error {})",
            error.message(),
            error.code()
        ))
    })
}

fn is_mistake(code: i32) -> bool {
    MISTAKES.iter().any(|mistakes| mistakes.contains(&code))
}

#[cfg(test)]
mod tests {
    //! Every relevant code, as the error of a read and of a commit.

    use super::*;

    fn read(code: i32) -> Error {
        Cluster { file: "fdb.cluster".into() }.read_error(FdbError::from_code(code))
    }

    fn commit(code: i32) -> Error {
        Cluster { file: "fdb.cluster".into() }.commit_error(FdbError::from_code(code))
    }

    #[test]
    fn a_commit_that_certainly_did_not_happen_is_reported_as_such() {
        assert!(matches!(commit(1020), Error::Conflict));
        assert!(matches!(commit(1007), Error::TooOld { limit_ms: 5_000 }));
        // future_version, process_behind, database_locked, three kinds of throttling, proxies out of memory.
        for code in [1009, 1037, 1038, 1042, 1051, 1078, 1213, 1223] {
            assert!(matches!(commit(code), Error::Unavailable(_)), "{code}: {:?}", commit(code));
        }
        for code in [2000, 2004, 2005, 2017, 2101, 2102, 2103] {
            assert!(matches!(commit(code), Error::Misuse(_)), "{code}: {:?}", commit(code));
        }
    }

    #[test]
    fn any_other_commit_is_of_unknown_outcome() {
        // timed_out, commit_unknown_result, transaction_cancelled, request_maybe_delivered, transaction_timed_out,
        // cluster_version_changed, broken_promise, operation_cancelled, io_error, incompatible_protocol_version, internal_error,
        // and a code that does not exist.
        for code in [1004, 1021, 1025, 1030, 1031, 1039, 1100, 1101, 1510, 2100, 4100, 9999] {
            assert!(matches!(commit(code), Error::UnknownOutcome(_)), "{code}: {:?}", commit(code));
        }
    }

    #[test]
    fn a_read_writes_nothing() {
        assert!(matches!(read(1007), Error::TooOld { .. }));
        for code in [1004, 1009, 1021, 1031, 1032, 1037, 1038, 1039, 1100, 1213, 1510, 2100, 2104, 2107, 4100]
        {
            assert!(matches!(read(code), Error::Unavailable(_)), "{code}: {:?}", read(code));
        }
        for code in [2000, 2004, 2012, 2102] {
            assert!(matches!(read(code), Error::Misuse(_)), "{code}: {:?}", read(code));
        }
    }

    #[test]
    fn an_error_that_a_user_can_fix_says_how() {
        let told = [
            (1031, "is it running, and have its disks room?"),
            (1038, "unlocks it"),
            (2107, "FDB_TLS_CA_FILE"),
        ];
        for (code, advice) in told {
            let line = read(code).to_string();
            assert!(line.contains(advice) && line.contains("fdb.cluster"), "{line}");
        }
    }
}
