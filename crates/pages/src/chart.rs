//! Lines over time, as SVG.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use super::format::time;

/// The size of a chart in its own units.
const WIDTH: f64 = 1_000.0;
const HEIGHT: f64 = 160.0;
/// A line breaks where the next point is further away than this many steps: no server ran in between.
const GAP_STEPS: i64 = 3;

/// A line of a chart.
pub(super) struct Line<'a> {
    /// Its name, in the key.
    pub name: &'a str,
    /// The class that colours it.
    pub class: &'static str,
    /// A value for each point; `None` if there is none.
    pub values: Vec<Option<f64>>,
}

/// A chart of lines over the same times.
pub(super) struct Chart<'a> {
    pub title: Markup,
    /// The begins of the intervals, in µs.
    pub times_us: &'a [i64],
    /// The begin and the end of the chart, in µs.
    pub range_us: (i64, i64),
    /// The length of an interval, in µs.
    pub step_us: i64,
    pub lines: Vec<Line<'a>>,
    /// How a value is shown.
    pub show: fn(f64) -> String,
}

impl Chart<'_> {
    pub fn draw(&self) -> Markup {
        let values = self.lines.iter().flat_map(|line| line.values.iter().flatten());
        let highest = values.fold(0.0_f64, |highest, value| highest.max(*value));
        let top = round_up(highest);
        let told: Vec<String> = self.lines.iter().map(|line| self.told(line)).collect();
        html! {
            figure.chart {
                figcaption { (self.title) }
                div.plot {
                    span.scale aria-hidden="true" { span { ((self.show)(top)) } span { "0" } }
                    svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(told.join("; ")) {
                        line.rule x1="0" y1="0" x2=(WIDTH) y2="0" {}
                        line.rule x1="0" y1=(HEIGHT / 2.0) x2=(WIDTH) y2=(HEIGHT / 2.0) {}
                        line.rule x1="0" y1=(HEIGHT) x2=(WIDTH) y2=(HEIGHT) {}
                        @for line in &self.lines {
                            path class={ "line " (line.class) } d=(PreEscaped(self.path(line, top))) {}
                        }
                    }
                }
                div.axis { (time(self.range_us.0)) (time(self.range_us.1)) }
                p.key-line { @for (line, told) in self.lines.iter().zip(&told) { span class={ "key " (line.class) } { (told) } } }
            }
        }
    }

    /// What a line shows, in words: its latest value.
    fn told(&self, line: &Line<'_>) -> String {
        let last = line.values.iter().rev().find_map(|value| *value);
        match last {
            Some(last) => format!("{} {}", line.name, (self.show)(last)),
            None => format!("{}: nothing", line.name),
        }
    }

    fn path(&self, line: &Line<'_>, top: f64) -> String {
        let (from, to) = self.range_us;
        let span = (to - from).max(1) as f64;
        let mut path = String::new();
        let mut before: Option<i64> = None;
        for (at_us, value) in self.times_us.iter().zip(&line.values) {
            let Some(value) = value else {
                before = None;
                continue;
            };
            let x = (at_us - from) as f64 / span * WIDTH;
            let y = HEIGHT - value / top * HEIGHT;
            let is_next = before.is_some_and(|before| at_us - before <= GAP_STEPS * self.step_us);
            let _ = write!(path, "{}{x:.1} {y:.1}", if is_next { 'L' } else { 'M' });
            if !is_next {
                // A point alone is a short line.
                let _ = write!(path, "h0.5");
            }
            before = Some(*at_us);
        }
        path
    }
}

/// The next number of the form 1, 2 or 5 with zeros.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|top| *top >= value * 0.999_999).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        let tops = [0.0, 0.3, 1.0, 1.1, 4.0, 5.1, 99.0, 1_234.0].map(round_up);
        assert_eq!(tops, [1.0, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0, 2_000.0]);
    }

    #[test]
    fn a_line_breaks_where_nothing_is_known() {
        let (times_us, values) = ([0, 10, 20, 90, 100], [Some(0.0), Some(1.0), None, Some(2.0), Some(1.0)]);
        let line = Line { name: "jobs", class: "runs", values: values.to_vec() };
        let chart = Chart {
            title: html! { "Jobs" },
            times_us: &times_us,
            range_us: (0, 100),
            step_us: 10,
            lines: Vec::new(),
            show: |value| value.to_string(),
        };
        assert_eq!(chart.path(&line, 2.0), "M0.0 160.0h0.5L100.0 80.0M900.0 0.0h0.5L1000.0 80.0");
        assert_eq!(chart.told(&line), "jobs 1");
    }
}
