//! The turnwise binary.

use turnwise_allocator as _;

fn main() -> std::process::ExitCode {
    turnwise_cli::main()
}
