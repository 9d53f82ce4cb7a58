//! Peers, data sets and fault proxies for the tests and benchmarks.
