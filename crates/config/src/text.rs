//! Formats the values of settings as in the file: one function for each kind of value, with the name of the method of [`Value`](super::value::Value)
//! that parses it. `None` if there is no value.

use std::path::PathBuf;
use std::time::Duration;

use turnwise_identity::Patterns;
use turnwise_outbound::EgressRules;
use turnwise_policy::backoff::OnLost;

use super::value::INFINITY;

pub(super) use {
    list as auth_plugins, list as choices, list as header_names, list as host_names, list as methods,
    list as origins, list as servers, optional as optional_number, optional as optional_parsed,
    optional as optional_patterns, optional as otel_endpoint, optional as otel_headers, optional as server,
    optional as trace_url, optional as uuid, optional_list as programs, optional_list as variables,
    plain as boolean, plain as decimal, plain as number, plain as parsed, plain as parsed_as, plain as slots,
    plain as socket_options, plain as weight,
};

pub(super) fn plain(value: &impl ToString) -> Option<String> {
    Some(value.to_string()).filter(|text| !text.is_empty())
}

pub(super) fn optional(value: &Option<impl ToString>) -> Option<String> {
    value.as_ref().map(ToString::to_string)
}

pub(super) fn list(values: &[impl ToString]) -> Option<String> {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    plain(&values.join(","))
}

pub(super) fn optional_list(values: &Option<Vec<String>>) -> Option<String> {
    values.as_deref().and_then(list)
}

pub(super) fn number_or_infinity(number: &Option<usize>) -> Option<String> {
    optional(number).or_else(|| plain(&INFINITY))
}

pub(super) fn ms(length: &Duration) -> Option<String> {
    plain(&length.as_millis())
}

pub(super) fn ms_or_infinity(length: &Option<Duration>) -> Option<String> {
    length.as_ref().and_then(ms).or_else(|| plain(&INFINITY))
}

pub(super) fn ms_us(us: &i64) -> Option<String> {
    plain(&(us / 1_000))
}

pub(super) fn optional_ms_us(us: &Option<i64>) -> Option<String> {
    us.as_ref().and_then(ms_us)
}

pub(super) fn seconds(length: &Duration) -> Option<String> {
    plain(&length.as_secs_f64())
}

pub(super) fn seconds_us(us: &i64) -> Option<String> {
    plain(&(us / 1_000_000))
}

pub(super) fn on_lost(on_lost: &OnLost) -> Option<String> {
    plain(&on_lost.name())
}

pub(super) fn egress_rules(rules: &EgressRules) -> Option<String> {
    rules.text()
}

pub(super) fn word(text: &Option<String>) -> Option<String> {
    text.clone()
}

pub(super) fn patterns(patterns: &Patterns) -> Option<String> {
    Some(patterns.to_string())
}

pub(super) fn file(file: &Option<PathBuf>) -> Option<String> {
    file.as_ref().map(|file| file.display().to_string())
}
