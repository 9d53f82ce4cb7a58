//! The turnwise binary.

/// Threads free much of what other threads have allocated; glibc's allocator locks for that (docs/design/jobs-as-rows.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    turnwise_cli::main()
}
