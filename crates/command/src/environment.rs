//! Which variables a job may set.
//!
//! If a server restricts the programs, a job must not make them run others through their environment. `LD_PRELOAD`, `BASH_ENV`,
//! `BASH_FUNC_ls%%`, `PATH`, `PYTHONPATH`, `GIT_SSH_COMMAND` and many more do that. Each program defines its own, so this is a
//! list of allowed names, and all others are refused.

/// Variables that only affect a program's output format.
const HARMLESS: [&str; 4] = ["LANG", "LANGUAGE", "LC_*", "TZ"];
/// Characters of a refused name that the error shows.
const SHOWN_CHARS: usize = 40;

/// The variables that jobs may set besides turnwise's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variables {
    /// All variables.
    All,
    /// Only these; a name that ends in `*` allows all names with that prefix.
    Only(Vec<String>),
}

impl Variables {
    /// The variables that change only language and time zone.
    pub fn harmless() -> Variables {
        Variables::Only(HARMLESS.iter().map(|name| (*name).to_owned()).collect())
    }

    /// Checks that a job may set the variable.
    ///
    /// # Errors
    /// What is wrong. The text repeats the name, and not the value.
    pub(crate) fn check(&self, name: &str) -> Result<(), String> {
        let Variables::Only(allowed) = self else { return Ok(()) };
        let fits = |allowed: &String| match allowed.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == allowed,
        };
        if allowed.iter().any(fits) {
            return Ok(());
        }
        let shown: String = name.chars().take(SHOWN_CHARS).collect();
        let list = allowed.join(", ");
        Err(format!(
            "env: this server lets jobs set {list} only, and not {shown:?}; its administrator may add it to [command] env"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_not_listed_is_refused() {
        let harmless = Variables::harmless();
        for name in ["LANG", "LANGUAGE", "LC_ALL", "LC_", "TZ"] {
            assert_eq!(harmless.check(name), Ok(()), "{name}");
        }
        for name in
            ["LD_PRELOAD", "BASH_ENV", "BASH_FUNC_ls%%", "ENV", "PATH", "IFS", "lang", "LANGX", "PYTHONPATH"]
        {
            let refused = harmless.check(name).unwrap_err();
            assert!(
                refused.starts_with("env: ") && refused.contains(name) && refused.contains("[command] env"),
                "{refused}"
            );
            assert_eq!(Variables::All.check(name), Ok(()));
        }
        assert!(harmless.check(&"x\u{1b}".repeat(100)).unwrap_err().len() < 400);
        let own = Variables::Only(vec!["JOB_*".into(), "X".into()]);
        assert_eq!((own.check("JOB_A"), own.check("X")), (Ok(()), Ok(())));
        assert!(own.check("LANG").is_err() && own.check("XY").is_err());
    }
}
