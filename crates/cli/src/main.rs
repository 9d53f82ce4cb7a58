//! The turnwise binary.

fn main() {}
