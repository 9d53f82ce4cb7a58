//! The options of a `command` job.
//!
//! Every value may be secret, so errors name members and never repeat their values.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Longest timeout of a command.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The prefix of the variables that turnwise sets.
const OWN_PREFIX: &str = "TURNWISE_";
/// The members of the options.
const MEMBERS: [&str; 5] = ["argv", "env", "cwd", "timeout_s", "stdin"];

/// The options of a `command` job. There is no `Debug`, because they may contain secrets.
#[derive(PartialEq)]
pub struct Options {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its environment besides `PATH` and turnwise's own variables.
    pub env: Vec<(String, String)>,
    /// Its working directory, an absolute path.
    pub cwd: Option<PathBuf>,
    /// How long it may run.
    pub timeout: Option<Duration>,
    /// The text for its stdin.
    pub stdin: Option<String>,
}

impl Options {
    /// Parses `{"argv": […], "env"?: {…}, "cwd"?: "…", "timeout_s"?: …, "stdin"?: "…"}`.
    ///
    /// # Errors
    /// What is wrong, and how to correct it.
    pub fn parse(options: &RawValue) -> Result<Options, String> {
        let Ok(Value::Object(mut members)) = serde_json::from_str(options.get()) else {
            return Err(r#"options: expected an object like {"argv": ["sh", "-c", "echo hello"]}"#.into());
        };
        if let Some(unknown) = members.keys().find(|name| !MEMBERS.contains(&name.as_str())) {
            let shown: String = unknown.chars().take(40).collect();
            return Err(format!("options: unknown member `{shown}`; there are {}", MEMBERS.join(", ")));
        }
        Ok(Options {
            argv: argv(members.remove("argv"))?,
            env: env(members.remove("env"))?,
            cwd: cwd(text("cwd", members.remove("cwd"))?)?,
            timeout: timeout(members.remove("timeout_s"))?,
            stdin: text("stdin", members.remove("stdin"))?,
        })
    }
}

fn argv(value: Option<Value>) -> Result<Vec<String>, String> {
    let wrong = || "argv: expected a list of texts, the program first".to_owned();
    let Some(Value::Array(values)) = value else { return Err(wrong()) };
    let mut argv = Vec::with_capacity(values.len());
    for value in values {
        let Value::String(arg) = value else { return Err(wrong()) };
        argv.push(without_nul("argv", arg)?);
    }
    match argv.first() {
        Some(program) if !program.is_empty() => Ok(argv),
        _ => Err(wrong()),
    }
}

fn env(value: Option<Value>) -> Result<Vec<(String, String)>, String> {
    let wrong = || "env: expected an object with texts as values".to_owned();
    let members: Map<String, Value> = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(members)) => members,
        Some(_) => return Err(wrong()),
    };
    let mut env = Vec::with_capacity(members.len());
    for (name, value) in members {
        let Value::String(value) = value else { return Err(wrong()) };
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err("env: a name must not be empty, nor contain `=` or NUL".into());
        }
        if name.starts_with(OWN_PREFIX) {
            return Err(format!("env: names with {OWN_PREFIX} are set by turnwise; use another name"));
        }
        env.push((name, without_nul("env", value)?));
    }
    Ok(env)
}

fn cwd(value: Option<String>) -> Result<Option<PathBuf>, String> {
    match value {
        Some(cwd) if !cwd.starts_with('/') => Err("cwd: expected an absolute path".into()),
        Some(cwd) => Ok(Some(without_nul("cwd", cwd)?.into())),
        None => Ok(None),
    }
}

fn timeout(value: Option<Value>) -> Result<Option<Duration>, String> {
    let seconds = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value.as_f64().filter(|seconds| *seconds > 0.0),
    };
    let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match timeout.filter(|timeout| !timeout.is_zero() && *timeout <= MAX_TIMEOUT) {
        Some(timeout) => Ok(Some(timeout)),
        None => Err(format!("timeout_s: expected seconds above 0, at most {}", MAX_TIMEOUT.as_secs())),
    }
}

fn text(name: &str, value: Option<Value>) -> Result<Option<String>, String> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name}: expected a text")),
    }
}

fn without_nul(name: &str, text: String) -> Result<String, String> {
    match text.contains('\0') {
        true => Err(format!("{name}: a NUL character cannot be passed to a process")),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(options: Value) -> Result<Options, String> {
        Options::parse(&serde_json::value::to_raw_value(&options).unwrap())
    }

    #[test]
    fn all_members_are_read_and_null_is_as_good_as_missing() {
        let options = parse(
            json!({ "argv": ["cat", "-"], "env": { "A": "1" }, "cwd": "/tmp", "timeout_s": 0.5, "stdin": "x" }),
        );
        let options = options.unwrap();
        assert_eq!(options.argv, ["cat", "-"]);
        assert_eq!(options.env, [("A".to_owned(), "1".to_owned())]);
        assert_eq!((options.cwd, options.timeout), (Some("/tmp".into()), Some(Duration::from_millis(500))));
        assert_eq!(options.stdin.as_deref(), Some("x"));
        let nulls = json!({ "argv": ["a"], "env": null, "cwd": null, "timeout_s": null, "stdin": null });
        assert!(parse(nulls).unwrap() == parse(json!({ "argv": ["a"] })).unwrap());
    }

    #[test]
    fn an_error_names_the_member_and_does_not_repeat_its_value() {
        const SECRET: &str = "hunter2";
        for (name, wrong) in [
            ("options", json!(SECRET)),
            ("options", json!([SECRET])),
            ("options", json!({ "argv": ["a"], "arg": SECRET })),
            ("argv", json!({})),
            ("argv", json!({ "argv": SECRET })),
            ("argv", json!({ "argv": [] })),
            ("argv", json!({ "argv": ["", SECRET] })),
            ("argv", json!({ "argv": [SECRET, 1] })),
            ("argv", json!({ "argv": ["a", "hunter2\0"] })),
            ("env", json!({ "argv": ["a"], "env": [SECRET] })),
            ("env", json!({ "argv": ["a"], "env": { "A": 1, "B": SECRET } })),
            ("env", json!({ "argv": ["a"], "env": { "": SECRET } })),
            ("env", json!({ "argv": ["a"], "env": { "hunter2=": "" } })),
            ("env", json!({ "argv": ["a"], "env": { "A": "hunter2\0" } })),
            ("env", json!({ "argv": ["a"], "env": { "TURNWISE_JOB_ID": SECRET } })),
            ("cwd", json!({ "argv": ["a"], "cwd": SECRET })),
            ("cwd", json!({ "argv": ["a"], "cwd": 1 })),
            ("cwd", json!({ "argv": ["a"], "cwd": "/hunter2\0" })),
            ("timeout_s", json!({ "argv": ["a"], "timeout_s": SECRET })),
            ("timeout_s", json!({ "argv": ["a"], "timeout_s": 0 })),
            ("timeout_s", json!({ "argv": ["a"], "timeout_s": -1 })),
            ("timeout_s", json!({ "argv": ["a"], "timeout_s": 1e300 })),
            ("timeout_s", json!({ "argv": ["a"], "timeout_s": 1e-300 })),
            ("stdin", json!({ "argv": ["a"], "stdin": { "secret": SECRET } })),
        ] {
            let Err(problem) = parse(wrong.clone()) else { panic!("taken: {wrong}") };
            assert!(problem.starts_with(name), "{wrong}: {problem}");
            assert!(!problem.contains(SECRET), "{wrong}: {problem}");
        }
    }
}
