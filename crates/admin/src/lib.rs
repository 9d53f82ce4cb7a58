//! Tools for whole stores: [copying](copy) a store to another one, [checking](check) it, showing it as [text](dump),
//! sealing its secrets with another key ([`rekey()`]).
//!
//! Each of them reads every row of a store, which may be larger than memory, and which servers may be using if it is shared. So
//! they read page by page ([`scan`]), each page in its own transaction.

pub mod check;
pub mod copy;
pub mod dump;
mod open;
mod rekey;
pub mod scan;

pub use open::{open_existing, open_to_read};
pub use rekey::rekey;
