//! The integration tests of this crate, as one program: it links once.
#![allow(clippy::unwrap_used)]

mod access;
mod any_node;
mod changes;
mod common;
mod couchdb_answers;
mod couchdb_checkpoints;
mod couchdb_shapes;
mod credentials;
mod cross_site;
mod databases;
mod fair_settings;
mod nodes;
mod parking;
mod replication_api;
mod replications;
mod rotation;
mod shared_config;
mod small_transactions;
mod start;
mod tenants_apart;
mod upstream;
mod v1_commands;
mod v1_decision;
mod v1_errors;
mod v1_events;
mod v1_filters;
mod v1_jobs;
mod v1_learning;
mod v1_lock_list;
mod v1_locks;
mod v1_many_tenants;
mod v1_openapi;
mod v1_why;
mod v1_workers;
mod written_before;
