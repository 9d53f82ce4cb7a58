//! Job types that belong to the server, and what may be done with them through `/v1`.

use turnwise_queue::Job;
use turnwise_replicator::JOB_TYPE as REPLICATION;
use turnwise_replicator::doc_processor::Summary;

use super::error::{Result, V1Error};
use crate::http::App;

/// The type of jobs that run a program on the server.
pub(super) const COMMAND: &str = "command";

/// Whether jobs of this type may be added.
pub(super) fn check_addable(app: &App, job_type: &str) -> Result<()> {
    match job_type {
        REPLICATION => Err(V1Error::forbidden(
            "replications are not added here",
            "use CouchDB's API: POST /_replicate, or a document in /_replicator",
        )),
        COMMAND if !app.commands => Err(V1Error::forbidden(
            "this server runs no commands",
            "set [command] enabled = true in its configuration, or choose another job type and run your own worker",
        )),
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
