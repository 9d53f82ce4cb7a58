//! The guard of commands, which is this executable with another subcommand.

/// The name of the subcommand that runs a guard.
pub const GUARD: &str = "command-guard";

/// Creates a guard for commands, which runs this executable.
pub fn guard() -> std::io::Result<turnwise_command::Guard> {
    turnwise_command::Guard::this_executable([GUARD])
}
