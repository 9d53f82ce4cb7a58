//! Jobs as rows: the keyspace and every transaction on it.
