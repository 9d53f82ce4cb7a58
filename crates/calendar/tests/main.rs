//! Fires of calendars.
#![allow(clippy::unwrap_used)]

mod examples;
mod zones;
