//! The two text formats of metrics: Prometheus' own, and OpenMetrics.
//!
//! They differ in three places. OpenMetrics names a family of counters without `_total`, writes bounds as decimal numbers,
//! and ends with a line `# EOF`.

use std::fmt::Write;

use axum::http::{HeaderMap, header};
use turnwise_store::metrics::Times;

/// The name of OpenMetrics in the header `Accept`.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// The format that a request accepts.
    pub fn accepted(headers: &HeaderMap) -> Format {
        let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        match accepted.any(|value| value.contains(OPEN_METRICS)) {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The kind of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A text of metrics that is being written.
pub struct Text {
    format: Format,
    text: String,
}

/// A family that is being written.
pub struct Family<'a> {
    text: &'a mut Text,
    /// The name of its samples, with `_total` if it is of counters.
    name: String,
}

impl Text {
    pub fn new(format: Format) -> Text {
        Text { format, text: String::with_capacity(64 << 10) }
    }

    /// Begins a family. The name of a counter has no `_total`. `help` has no line break.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) -> Family<'_> {
        let sample = if kind == Kind::Counter { format!("{name}_total") } else { name.to_owned() };
        let named = if self.format == Format::OpenMetrics { name } else { &sample };
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {named} {help}\n# TYPE {named} {}", kind.name());
        Family { text: self, name: sample }
    }

    /// A family of one counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, Kind::Counter, help).value(&[], value);
    }

    /// A family of one gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, Kind::Gauge, help).value(&[], value);
    }

    pub fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

impl Family<'_> {
    /// Writes a sample.
    pub fn value(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.sample("", labels, None, value);
    }

    /// Writes the samples of a histogram, in seconds.
    pub fn times(&mut self, labels: &[(&str, &str)], times: &Times) {
        let mut up_to = 0;
        for (bound_us, count) in times.bounds_us.iter().zip(&times.counts) {
            up_to += count;
            let bound = format!("{:?}", seconds(*bound_us));
            self.sample("_bucket", labels, Some(&bound), up_to);
        }
        let count = times.count();
        self.sample("_bucket", labels, Some("+Inf"), count);
        self.sample("_sum", labels, None, seconds(times.sum_us));
        self.sample("_count", labels, None, count);
    }

    fn sample(
        &mut self,
        suffix: &str,
        labels: &[(&str, &str)],
        bound: Option<&str>,
        value: impl std::fmt::Display,
    ) {
        let text = &mut self.text.text;
        text.push_str(&self.name);
        text.push_str(suffix);
        let mut before = '{';
        for (label, value) in labels.iter().copied().chain(bound.map(|bound| ("le", bound))) {
            text.push(before);
            text.push_str(label);
            text.push_str("=\"");
            escape(value, text);
            text.push('"');
            before = ',';
        }
        if before == ',' {
            text.push('}');
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, " {value}");
    }
}

fn escape(value: &str, text: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

/// A time in seconds, as all metrics have it.
#[allow(clippy::cast_precision_loss, reason = "times of up to a hundred years are exact")]
pub fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use turnwise_store::metrics::Histogram;

    use super::*;

    fn written(format: Format) -> String {
        let mut text = Text::new(format);
        text.counter("a", "Counts.", 3);
        let histogram = Histogram::new(&[1_000, 1_000_000]);
        for us in [500, 2_000, 2_000_000] {
            histogram.observe_us(us);
        }
        text.family("b_seconds", Kind::Histogram, "Takes.").times(&[("t", "x\"\\\ny")], &histogram.read());
        text.end()
    }

    #[test]
    fn both_formats_are_written() {
        let prometheus = r#"# HELP a_total Counts.
# TYPE a_total counter
a_total 3
# HELP b_seconds Takes.
# TYPE b_seconds histogram
b_seconds_bucket{t="x\"\\\ny",le="0.001"} 1
b_seconds_bucket{t="x\"\\\ny",le="1.0"} 2
b_seconds_bucket{t="x\"\\\ny",le="+Inf"} 3
b_seconds_sum{t="x\"\\\ny"} 2.0025
b_seconds_count{t="x\"\\\ny"} 3
"#;
        assert_eq!(written(Format::Prometheus), prometheus);
        let open = prometheus.replace("HELP a_total", "HELP a").replace("TYPE a_total", "TYPE a");
        assert_eq!(written(Format::OpenMetrics), format!("{open}# EOF\n"));
    }

    #[test]
    fn the_header_accept_chooses_the_format() {
        let accepted = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, value.parse().unwrap());
            Format::accepted(&headers)
        };
        let of_a_scraper = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
        assert_eq!(accepted(of_a_scraper), Format::OpenMetrics);
        assert_eq!(accepted("text/plain"), Format::Prometheus);
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Prometheus);
    }
}
