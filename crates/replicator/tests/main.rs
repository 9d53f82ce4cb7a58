//! The integration tests of this crate, as one program that links once.
#![allow(clippy::unwrap_used)]

mod again;
mod attachments;
mod body_limit;
mod common;
mod connections;
mod continuous;
mod couchdb_ids;
mod couchdb_refusals;
mod every_fault;
mod faults;
mod feeds;
mod gateways;
mod many_revisions;
mod names;
mod one_shot;
mod read_only_source;
mod refused;
mod replaced;
mod sessions;
mod slow_target;
mod speed;
mod storm;
mod throttled;
mod trickle;
mod unread;
