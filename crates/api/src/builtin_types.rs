//! Job types that the server manages itself, and the operations on them that `/v1` allows.

use serde_json::value::RawValue;
use turnwise_command::JOB_TYPE as COMMAND;
use turnwise_indexer::jobs::JOB_TYPE as INDEXING;
use turnwise_queue::webhooks::JOB_TYPE as WEBHOOK;
use turnwise_queue::{Holder, Job, types, workers};
use turnwise_replicator::JOB_TYPE as REPLICATION;
use turnwise_replicator::doc_processor::Summary;
use turnwise_web::access::Caller;

use super::app::App;
use super::error::{Result, V1Error};

/// Which node runs jobs of type `command`.
pub(super) enum Commands<'a> {
    /// This node.
    Here(&'a turnwise_command::Handler),
    /// Another node, which checks the program itself.
    Elsewhere,
    /// No node.
    Nowhere,
}

impl Commands<'_> {
    /// Reads the store, unless this node runs them itself.
    pub(super) async fn find(app: &App) -> Result<Commands<'_>> {
        if let Some(handler) = &app.commands {
            return Ok(Commands::Here(handler));
        }
        let tx = app.store.begin().await?;
        let workers = workers::healths(&tx, &app.keys, COMMAND, None, 1).await?;
        Ok(if workers.is_empty() { Commands::Nowhere } else { Commands::Elsewhere })
    }
}

/// Whether a client may add a job. Options that its handler could not read are rejected here, where the client gets the reason.
pub(super) fn check_addable(
    commands: &Commands<'_>,
    job_type: &str,
    options: Option<&RawValue>,
) -> Result<()> {
    let (reason, hint) = match (job_type, commands) {
        (REPLICATION, _) => (
            "type: replications cannot be added here",
            "use CouchDB's API: POST /_replicate, or a document in /_replicator",
        ),
        (WEBHOOK, _) => {
            ("type: deliveries cannot be added here", "PUT /v1/webhooks/{id} makes the server deliver events")
        }
        (INDEXING, _) => (
            "type: the jobs of indexes cannot be added here",
            "turnwise adds them itself, for the databases that [indexing] names",
        ),
        (COMMAND, Commands::Nowhere) => (
            "no server runs commands",
            "set [command] enabled = true in the configuration of one, or choose another job type and run your own worker",
        ),
        (COMMAND, commands) => return check_command(commands, options),
        _ => return Ok(()),
    };
    Err(V1Error::forbidden(reason, hint))
}

fn check_command(commands: &Commands<'_>, options: Option<&RawValue>) -> Result<()> {
    let Some(options) = options else { return Ok(()) };
    let checked = match commands {
        Commands::Here(handler) => handler.check(options),
        _ => turnwise_command::Options::parse(options).map(drop),
    };
    checked.map_err(|problem| {
        let hint = r#"options are like {"argv": ["sh", "-c", "echo hello"]}; see docs/configuration.md"#;
        V1Error::bad(problem, hint)
    })
}

/// Whether the options of a job that a caller sees are shown to it, and are tested by its conditions: the caller may change the job, and its
/// type is not the server's own. Options of those types have passwords and programs.
pub(super) fn shows_options(caller: &Caller, job_type: &str, tenant: &str) -> bool {
    caller.writes(tenant) && !types::is_of_server(job_type)
}

/// Whether clients add jobs of this type.
pub(super) fn is_for_clients(job_type: &str) -> bool {
    !matches!(job_type, REPLICATION | INDEXING | WEBHOOK)
}

/// Whether clients may register workers for this type.
pub(super) fn check_workable(job_type: &str) -> Result<()> {
    match types::is_of_server(job_type) {
        true => Err(V1Error::forbidden(
            format!("the server itself runs jobs of type `{job_type}`"),
            "choose another job type for your workers",
        )),
        false => Ok(()),
    }
}

/// Whether a job that has ended may run again with its stored options.
pub(super) fn check_rerunnable(caller: &Caller, job_type: &str) -> Result<()> {
    match job_type {
        COMMAND if !caller.commands() => Err(V1Error::forbidden(
            "this identity may not run programs again",
            "it needs the scope command, beside client:TENANTS",
        )),
        REPLICATION => Err(V1Error::forbidden(
            "this replication has ended, and its credentials are not kept",
            "change its document, or POST to /_replicate again",
        )),
        _ => Ok(()),
    }
}

/// Whether a client may edit and hold jobs of a type.
pub(super) fn check_editable(caller: &Caller, job_type: &str) -> Result<()> {
    let (reason, hint) = match job_type {
        REPLICATION => (
            "replications cannot be changed here",
            "change the document of the replication in its _replicator database",
        ),
        WEBHOOK => ("deliveries cannot be changed here", "change the webhook: PUT /v1/webhooks/{id}"),
        INDEXING => {
            ("the jobs of indexes cannot be changed here", "they follow from the settings in [indexing]")
        }
        COMMAND if !caller.commands() => {
            ("this identity may not change commands", "it needs the scope command, beside client:TENANTS")
        }
        _ => return Ok(()),
    };
    Err(V1Error::forbidden(reason, hint))
}

/// As whom a caller holds a job.
pub(super) fn holder(caller: &Caller) -> Holder {
    if caller.operates() { Holder::Operator } else { Holder::Client }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_types_of_the_server_are_those_that_its_crates_name() {
        assert_eq!(types::OF_SERVER, [COMMAND, INDEXING, REPLICATION, WEBHOOK]);
    }
}
