//! A store as a whole: [copied](copy) to another one, [checked](check), shown as [text](dump).
//!
//! What these have in common: they read every row of a store, which may be larger than memory and, on a shared store, in use
//! by servers. They read page by page ([`scan`]), each page in a transaction of its own.

pub mod check;
pub mod copy;
pub mod dump;
mod open;
pub mod scan;

pub use open::{open_existing, open_to_read};
