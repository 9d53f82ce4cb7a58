//! Background workers: they claim jobs, run their handlers and report back.
