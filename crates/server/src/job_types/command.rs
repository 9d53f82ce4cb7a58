//! The type `command`: as which user its jobs run, and with which limits.

use std::sync::Arc;

use rustix::process::geteuid;
use turnwise_command::{Guard, Handler, JOB_TYPE, Programs, Sandbox, Settings, User, Variables};
use turnwise_config::{Command, Config};
use turnwise_worker::{QueueRules, Tunables};

use super::{JobType, Start};
use crate::start::StartError;

/// The sandbox of this server's commands; `None` if it runs none.
///
/// # Errors
/// What is wrong with the settings, and how to correct it.
pub(crate) fn sandbox(config: &Command, guard: Option<&Guard>) -> Result<Option<Sandbox>, String> {
    if !config.enabled {
        return Ok(None);
    }
    let user = match &config.user {
        Some(name) => {
            let found = User::find(name).map_err(|error| format!("[command] user = {name}: {error}"))?;
            Some(found.ok_or_else(|| format!("[command] user = {name}: this machine has no such user"))?)
        }
        None => None,
    };
    let own = geteuid();
    let uid = user.as_ref().map_or(own.as_raw(), |user| user.uid);
    if uid == 0 && !config.allow_root {
        return Err("the commands of clients would run as root: set [command] user = NAME to a user who may do little on \
             this machine, or allow_root = true if they need to be root"
            .to_owned());
    }
    let user = user.filter(|user| user.uid != own.as_raw());
    if let (Some(name), Some(_)) = (&config.user, &user) {
        if !own.is_root() {
            return Err(format!(
                "[command] user = {name}: only root can run commands as another user. Start the server as root or as \
                 {name}, or leave the line out: commands then run as the server's user"
            ));
        }
        if guard.is_none() {
            return Err(format!("[command] user = {name}: this needs a guard, and the server has none"));
        }
    }
    Ok(Some(Sandbox { user, limits: config.limits }))
}

/// Starts the worker.
pub(crate) async fn start(start: &Start<'_>, handler: Arc<Handler>) -> Result<JobType, StartError> {
    let worker = start.worker(JOB_TYPE, handler, tune, start.config.command.max_jobs.least).await?;
    Ok(JobType { name: JOB_TYPE, worker, tune, slots: Some(|config| config.command.max_jobs) })
}

fn tune(config: &Config, queue: &Arc<QueueRules>, now: usize) -> Tunables {
    let slots = config.command.max_jobs;
    Tunables { bounds: slots.bounds(), ..super::tunables(config, queue, JOB_TYPE, slots.within(now)) }
}

/// The handler for jobs of type `command`.
pub(crate) fn handler(config: &Command, guard: Option<Guard>, sandbox: Sandbox) -> Handler {
    let programs = config.programs.clone().map_or(Programs::All, Programs::Only);
    let variables = match (&config.env, &programs) {
        (Some(names), _) => Variables::Only(names.clone()),
        (None, Programs::Only(_)) => Variables::harmless(),
        (None, Programs::All) => Variables::All,
    };
    let max_output_bytes = config.max_output_bytes;
    Handler::new(Settings { programs, variables, max_output_bytes, guard, sandbox, ..Settings::default() })
}
