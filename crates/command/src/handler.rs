//! The handler of `command` jobs.

use std::ffi::OsString;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use turnwise_worker::{JobContext, JobHandler, Outcome};

use crate::{Command, Guard, Options, Programs, Report, Sandbox, StartError, Variables, Verdict, run};

/// The name of the job type.
pub const JOB_TYPE: &str = "command";
/// The queue's limit for a job's result, 12 kB.
const MAX_REPORT_BYTES: usize = 12 << 10;

/// A server's settings for commands.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The programs that jobs may run.
    pub programs: Programs,
    /// The variables that jobs may set in their environment.
    pub variables: Variables,
    /// How many bytes to keep of a command's stdout, and as many of its stderr. A result has 12 kB for both.
    pub max_output_bytes: usize,
    /// The time between SIGTERM and SIGKILL. It must be less than the worker's own grace period.
    pub grace: Duration,
    /// Runs commands, and ends everything that they have started. See [`Command::guard`].
    pub guard: Option<Guard>,
    /// What commands may do, if they have a guard.
    pub sandbox: Sandbox,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            programs: Programs::All,
            variables: Variables::All,
            max_output_bytes: MAX_REPORT_BYTES,
            grace: Duration::from_secs(3),
            guard: None,
            sandbox: Sandbox::default(),
        }
    }
}

/// Runs a process per job.
pub struct Handler {
    settings: Settings,
}

impl Handler {
    /// A handler with these settings.
    pub fn new(settings: Settings) -> Self {
        Handler { settings }
    }

    /// Checks that a job with these options could run here, so that a server can refuse it when it is added.
    ///
    /// # Errors
    /// What is wrong with the options. The text repeats no value, because values may be secret.
    pub fn check(&self, options: &RawValue) -> Result<(), String> {
        let options = Options::parse(options)?;
        self.find(&options).map(drop)
    }

    fn find(&self, options: &Options) -> Result<std::path::PathBuf, String> {
        options.env.iter().try_for_each(|(name, _)| self.settings.variables.check(name))?;
        let path = options.env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_ref());
        self.settings.programs.find(&options.argv[0], path, options.cwd.as_deref())
    }

    fn command(&self, job: &JobContext) -> Result<Command, String> {
        let options = Options::parse(&job.options)?;
        let program = self.find(&options)?;
        let mut env: Vec<(OsString, OsString)> = Vec::new();
        env.extend(std::env::var_os("PATH").map(|path| ("PATH".into(), path)));
        env.extend(options.env.into_iter().map(|(name, value)| (name.into(), value.into())));
        let attempt = job.job.attempts.saturating_add(1).to_string();
        env.push(("TURNWISE_JOB_ID".into(), job.job.id.clone().into()));
        env.push(("TURNWISE_JOB_TYPE".into(), job.job.job_type.clone().into()));
        env.push(("TURNWISE_ATTEMPT".into(), attempt.into()));
        let index = job.job.group.as_ref().and_then(|group| group.index);
        env.extend(index.map(|index| ("TURNWISE_ARRAY_INDEX".into(), index.to_string().into())));
        env.extend(job.traceparent().map(|trace| ("TRACEPARENT".into(), trace.into())));
        Ok(Command {
            program,
            argv: options.argv.into_iter().map(Into::into).collect(),
            inherit_env: false,
            env,
            cwd: options.cwd,
            stdin: options.stdin.map(String::into_bytes),
            timeout: options.timeout,
            grace: self.settings.grace,
            max_output_bytes: self.settings.max_output_bytes,
            on_line: None,
            guard: self.settings.guard.clone(),
            sandbox: Some(self.settings.sandbox.clone()),
        })
    }
}

#[async_trait]
impl JobHandler for Handler {
    async fn run(&self, job: JobContext) -> Outcome {
        let command = match self.command(&job) {
            Ok(command) => command,
            Err(problem) => return Outcome::Failed(problem),
        };
        let finished = match run(command, job.stop.clone()).await {
            Ok(finished) => finished,
            Err(StartError::Wrong(problem)) => return Outcome::Failed(problem),
            Err(error @ StartError::NotNow(_)) => return Outcome::Crashed(error.to_string()),
        };
        let report = Report::new(&finished, MAX_REPORT_BYTES);
        let verdict = Verdict::new(&finished);
        if matches!(verdict, Verdict::Failed(_) | Verdict::Crashed(_)) {
            // A failed job has no result, and the output is the best source for the cause.
            job.report(&report);
        }
        match verdict {
            Verdict::Completed => Outcome::completed(&report),
            Verdict::Failed(reason) => Outcome::Failed(reason),
            Verdict::Crashed(reason) => Outcome::Crashed(reason),
            Verdict::Stopped => Outcome::Stopped,
        }
    }
}
