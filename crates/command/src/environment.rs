//! Which variables a job may set.
//!
//! Where only some programs may be run, their environment must not make them run others: `LD_PRELOAD`, `BASH_ENV`, `BASH_FUNC_ls%%`, `PATH`, `PYTHONPATH`,
//! `GIT_SSH_COMMAND` and many more do. Which ones do is known to each program alone, so that what is not allowed by name is refused.

/// Variables that tell a program how to write and nothing else.
const HARMLESS: [&str; 4] = ["LANG", "LANGUAGE", "LC_*", "TZ"];
/// Of a name that is refused so many characters are shown.
const SHOWN_CHARS: usize = 40;

/// The variables that jobs may set beside turnwise's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variables {
    /// All.
    All,
    /// These; a name that ends in `*` stands for all that begin so.
    Only(Vec<String>),
}

impl Variables {
    /// Those that change nothing but language and time zone.
    pub fn harmless() -> Variables {
        Variables::Only(HARMLESS.iter().map(|name| (*name).to_owned()).collect())
    }

    /// Whether a job may set the variable.
    ///
    /// # Errors
    /// What is wrong. It repeats the name, and not the value.
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
    fn what_is_not_named_is_refused() {
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
