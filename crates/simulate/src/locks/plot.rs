//! Draws how long jobs waited, and how many worked, as a picture (SVG) with a line per scheme.

use std::error::Error;

use plotters::prelude::*;

use super::{Compared, SchemeResults};
use crate::plot::{Area, COLOURS, LEGEND, OTHERS, WIDTH, chart, font, picture};

/// The most points of a line.
const POINTS: usize = 160;
const PANEL: u32 = 300;

/// The points of a line.
type Points = Vec<(f64, f64)>;

/// Draws the outcomes of one scenario. The upper panel shows how many jobs waited no longer than each time, and the
/// lower one how many worked at each moment.
///
/// # Errors
/// Errors of the drawing library; a caller can correct none of them.
pub fn svg(title: &str, compared: &Compared) -> Result<String, Box<dyn Error>> {
    picture(title, 2 * PANEL, |area| {
        let (charts, legend) = area.split_horizontally(WIDTH - LEGEND);
        let (above, below) = charts.split_vertically(PANEL);
        let waits: Vec<Points> = compared.outcomes.iter().map(waits).collect();
        panel(&above, "jobs that waited no longer", "% of all jobs", &waits, None)?;
        let working: Vec<Points> = compared.outcomes.iter().map(working).collect();
        let bound = Some(compared.bound.makespan_s / 60.0);
        let caption = "jobs that worked; no schedule ends before the grey line";
        panel(&below, caption, "jobs", &working, bound)?;
        explain(&legend, compared)
    })
}

/// The part of the jobs, in percent, that waited no longer than so many minutes.
fn waits(outcome: &SchemeResults) -> Points {
    let waits = &outcome.waits_s;
    let every = waits.len().div_ceil(POINTS).max(1);
    let shown = (0..waits.len()).filter(|n| n % every == every - 1 || *n + 1 == waits.len());
    let point = |n: usize| (waits[n] / 60.0, (n + 1) as f64 * 100.0 / waits.len() as f64);
    [(0.0, 0.0)].into_iter().chain(shown.map(point)).collect()
}

/// The average number of working jobs, in each of [`POINTS`] equal parts of the makespan.
fn working(outcome: &SchemeResults) -> Points {
    let stretch = (outcome.makespan_s / POINTS as f64).max(f64::MIN_POSITIVE);
    let mut sums = vec![0.0; POINTS];
    for pair in outcome.steps.windows(2) {
        let ((mut from, working, _), (to, ..)) = (pair[0], pair[1]);
        // Each iteration ends a part, or the step.
        for (n, sum) in sums.iter_mut().enumerate().skip((from / stretch) as usize) {
            let until = to.min((n + 1) as f64 * stretch);
            *sum += working as f64 * (until - from).max(0.0);
            from = from.max(until);
            if until >= to {
                break;
            }
        }
    }
    let middle = |n: usize| (n as f64 + 0.5) * stretch / 60.0;
    (0..).zip(sums).map(|(n, sum)| (middle(n), sum / stretch)).collect()
}

fn panel(
    area: &Area<'_>,
    caption: &str,
    y: &str,
    lines: &[Points],
    bound: Option<f64>,
) -> Result<(), Box<dyn Error>> {
    let most = |of: fn(&(f64, f64)) -> f64| lines.iter().flatten().map(of).fold(0.001, f64::max);
    let (right, top) = (most(|point| point.0).max(bound.unwrap_or(0.0)), most(|point| point.1));
    let (x, y) = (("minutes", right * 1.02), (y, top * 1.05));
    let mut chart = chart(area, caption, x, y, &|value| format!("{value:.0}"))?;
    if let Some(bound) = bound {
        chart.draw_series(LineSeries::new([(bound, 0.0), (bound, top)], OTHERS.mix(0.5).stroke_width(3)))?;
    }
    for (points, colour) in lines.iter().zip(COLOURS) {
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
    }
    Ok(())
}

fn explain(area: &Area<'_>, compared: &Compared) -> Result<(), Box<dyn Error>> {
    for (row, (outcome, colour)) in (0..).zip(compared.outcomes.iter().zip(COLOURS)) {
        let y = 30 + row * 40;
        area.draw(&PathElement::new(vec![(8, y + 6), (36, y + 6)], colour.stroke_width(2)))?;
        area.draw(&Text::new(outcome.scheme.name(), (44, y), font(13)))?;
        let minutes = format!(
            "mean wait {:.0} min, ends after {:.0}",
            outcome.mean_wait_s / 60.0,
            outcome.makespan_s / 60.0
        );
        area.draw(&Text::new(minutes, (44, y + 16), font(11)))?;
    }
    Ok(())
}
