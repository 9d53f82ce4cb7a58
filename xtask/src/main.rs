//! The developer commands.

fn main() {}
