//! The HTTP API, the configuration, and the composition of everything.
