//! The replication job type: copies CouchDB-protocol databases.
