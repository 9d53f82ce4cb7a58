//! The allocator of the `turnwise` binary, for which it is enough to depend on this crate.
//!
//! Threads free much of what other threads have allocated; glibc's allocator locks for that. It is a crate of its own, since the code
//! between every allocation and the allocator is compiled where it is chosen, and the command line is not optimised.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
