//! Why a command failed.

/// Why a command failed, with its exit code.
pub enum Failure {
    /// The arguments are wrong: exit code 2.
    Usage(anyhow::Error),
    /// The command failed: exit code 1.
    Failed(anyhow::Error),
    /// The command defines its own exit code.
    Code(u8, anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Failed(error)
    }
}
