//! Job types that belong to the server, and what may be done with them through `/v1`.

use serde_json::value::RawValue;
use turnwise_command::JOB_TYPE as COMMAND;
use turnwise_queue::Job;
use turnwise_replicator::JOB_TYPE as REPLICATION;
use turnwise_replicator::doc_processor::Summary;

use super::error::{Result, V1Error};
use crate::http::App;

/// Whether a job may be added. Options that its handler could not read are refused here, where someone reads why.
pub(super) fn check_addable(app: &App, job_type: &str, options: &RawValue) -> Result<()> {
    match (job_type, &app.commands) {
        (REPLICATION, _) => Err(V1Error::forbidden(
            "replications are not added here",
            "use CouchDB's API: POST /_replicate, or a document in /_replicator",
        )),
        (COMMAND, None) => Err(V1Error::forbidden(
            "this server runs no commands",
            "set [command] enabled = true in its configuration, or choose another job type and run your own worker",
        )),
        (COMMAND, Some(handler)) => handler.check(options).map_err(|problem| {
            V1Error::bad(
                problem,
                r#"options are like {"argv": ["sh", "-c", "echo hello"]}; see docs/configuration.md"#,
            )
        }),
        _ => Ok(()),
    }
}

/// Whether clients may have workers for this type.
pub(super) fn check_workable(job_type: &str) -> Result<()> {
    match job_type {
        REPLICATION | COMMAND => Err(V1Error::forbidden(
            format!("the server itself works on jobs of type `{job_type}`"),
            "choose another job type for your workers",
        )),
        _ => Ok(()),
    }
}

/// Whether a job may be cancelled or removed.
pub(super) fn check_stoppable(job: &Job) -> Result<()> {
    if job.job_type != REPLICATION {
        return Ok(());
    }
    let Some(summary) = Summary::of(job) else {
        return Err(V1Error::forbidden("this replication cannot be read", "stop it through CouchDB's API"));
    };
    match summary.document() {
        None => Ok(()),
        Some((db, doc)) => Err(V1Error::forbidden(
            format!("this replication belongs to document `{doc}` of `{db}`"),
            "delete the document to stop it",
        )),
    }
}
