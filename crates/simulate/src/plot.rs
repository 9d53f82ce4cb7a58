//! Draws each tenant's slots over time, and what it is entitled to, as a picture (SVG).
//!
//! Each policy has a panel. A wide pale line is the entitlement of a tenant, and the thin line of the same colour is
//! what it got. Both are averages over a sliding window; without it, slots that are taken in turns would hide the
//! lines. Of many tenants, the panel shows a few as lines, from the largest to the smallest, and the others as their
//! mean.

use std::error::Error;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report;
use crate::results::Results;

/// The most lines of one panel, without the mean of the others.
const SHOWN: usize = 7;
/// The most points of a line. With several panels there are fewer, so that a picture of all policies is at most about
/// 60 kB.
const POINTS: usize = 160;
const POINTS_OF_MANY: usize = 90;
/// The window is this fraction of all points.
const WINDOW: usize = 20;
/// Longer names are cut to this many characters.
const NAME: usize = 20;

pub(crate) const WIDTH: u32 = 960;
const HEAD: u32 = 44;
const PANEL: u32 = 270;
pub(crate) const LEGEND: u32 = 230;

/// Colours that people with colour blindness can distinguish (Okabe and Ito 2008), darkest first.
pub(crate) const COLOURS: [RGBColor; SHOWN] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 70, 20),
];
pub(crate) const OTHERS: RGBColor = RGBColor(110, 110, 110);
const INK: RGBColor = RGBColor(40, 40, 40);

/// A line of the legend, and the tenants that it shows.
struct Line {
    name: String,
    colour: RGBColor,
    tenants: Vec<usize>,
}

/// Draws the outcomes of one scenario, one below the other.
///
/// # Errors
/// Errors of the drawing library; a caller can correct none of them.
pub fn svg(title: &str, outcomes: &[Results]) -> Result<String, Box<dyn Error>> {
    let panels = u32::try_from(outcomes.len())?;
    picture(title, PANEL * panels, |area| {
        for (outcome, area) in outcomes.iter().zip(area.split_evenly((outcomes.len().max(1), 1))) {
            let (chart, legend) = area.split_horizontally(WIDTH - LEGEND);
            let lines = lines(outcome);
            panel(&chart, outcome, &lines, if panels == 1 { POINTS } else { POINTS_OF_MANY })?;
            explain(&legend, &lines)?;
        }
        Ok(())
    })
}

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
pub(crate) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A picture with a title, and below it a part of this height.
pub(crate) fn picture(
    title: &str,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEAD + height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, rest) = root.split_vertically(HEAD);
        head.draw(&Text::new(cut(title, 90), (16, 12), font(17)))?;
        draw(&rest)?;
        root.present()?;
    }
    Ok(text)
}

/// A chart with labelled axes, from zero to their ends.
pub(crate) fn chart<'a, 'b>(
    area: &'a Area<'b>,
    caption: &str,
    (x, right): (&str, f64),
    (y, top): (&str, f64),
    y_label: &dyn Fn(&f64) -> String,
) -> Result<Chart<'a, 'b>, Box<dyn Error>> {
    let mut chart = ChartBuilder::on(area)
        .caption(caption, font(14))
        .margin(8)
        .margin_top(0)
        .x_label_area_size(34)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(RGBColor(225, 225, 225))
        .light_line_style(WHITE)
        .axis_style(RGBColor(150, 150, 150))
        .label_style(font(12))
        .axis_desc_style(font(12))
        .x_desc(x)
        .y_desc(y)
        .y_labels(6)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(y_label)
        .draw()?;
    Ok(chart)
}

pub(crate) fn font(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// The tenants to draw: all, or some from the largest to the smallest entitlement.
fn lines(outcome: &Results) -> Vec<Line> {
    let count = outcome.tenants.len();
    let mut order: Vec<usize> = (0..count).collect();
    if count > SHOWN {
        let entitled = |n: usize| outcome.tenants[n].entitled;
        order.sort_by(|a, b| entitled(*b).total_cmp(&entitled(*a)).then(a.cmp(b)));
    }
    let shown = SHOWN.min(count);
    let places: Vec<usize> = (0..shown).map(|n| n * (count - 1) / (shown - 1).max(1)).collect();
    let one_by_one = |(place, colour): (&usize, RGBColor)| {
        let tenant = &outcome.tenants[order[*place]];
        let shares = if tenant.shares == 1 { "share" } else { "shares" };
        let name = format!("{}: {} {shares}", cut(&tenant.name, NAME), tenant.shares);
        Line { name, colour, tenants: vec![order[*place]] }
    };
    let mut lines: Vec<Line> = places.iter().zip(COLOURS).map(one_by_one).collect();
    let others: Vec<usize> =
        (0..count).filter(|place| !places.contains(place)).map(|place| order[place]).collect();
    if !others.is_empty() {
        let name = match others.len() {
            1 => "one more".to_owned(),
            many => format!("mean of {many} others"),
        };
        lines.push(Line { name, colour: OTHERS, tenants: others });
    }
    lines
}

/// The average slots over the window before each point: (cycle, entitled, received).
fn averages(outcome: &Results, tenants: &[usize], most: usize) -> Vec<(f64, f64, f64)> {
    let series = &outcome.series;
    let points = series.cycles.len();
    let sum = |of: &[Vec<f64>], point: usize| -> f64 { tenants.iter().map(|n| of[*n][point]).sum() };
    // All sums start at zero.
    let at = |point: usize| match point {
        0 => (0.0, 0.0, 0.0),
        n => (series.cycles[n - 1] as f64, sum(&series.entitled, n - 1), sum(&series.received, n - 1)),
    };
    let window = (points / WINDOW).max(1);
    let unit = outcome.interval_ms as f64 * 1e3 * tenants.len() as f64;
    let every = points.div_ceil(most).max(1);
    let shown = (1..=points).filter(|point| point % every == 0 || *point == points);
    let average = |point: usize| {
        let (from, to) = (at(point.saturating_sub(window)), at(point));
        let cycles = (to.0 - from.0) * unit;
        (to.0, (to.1 - from.1) / cycles, (to.2 - from.2) / cycles)
    };
    shown.map(average).collect()
}

fn panel(area: &Area<'_>, outcome: &Results, lines: &[Line], points: usize) -> Result<(), Box<dyn Error>> {
    let drawn: Vec<_> = lines.iter().map(|line| averages(outcome, &line.tenants, points)).collect();
    let highest =
        drawn.iter().flatten().map(|(_, entitled, received)| entitled.max(*received)).fold(0.0, f64::max);
    let caption = format!(
        "{}: Jain {:.4}, largest deviation {}, longest wait {:.0} cycles",
        outcome.policy,
        outcome.jain(),
        report::percent(outcome.largest_deviation()),
        outcome.longest_wait_cycles(),
    );
    let (x, y) = (("cycle", outcome.cycles as f64), ("slots", (highest * 1.08).max(0.001)));
    let mut chart = chart(area, &caption, x, y, &|slots| number(*slots, highest))?;
    for (line, points) in lines.iter().zip(&drawn) {
        let entitled = straight(points.iter().map(|(cycle, entitled, _)| (*cycle, *entitled)).collect());
        chart.draw_series(LineSeries::new(entitled, line.colour.mix(0.28).stroke_width(6)))?;
    }
    for (line, points) in lines.iter().zip(&drawn) {
        let received = points.iter().map(|(cycle, _, received)| (*cycle, *received));
        chart.draw_series(LineSeries::new(received, line.colour.stroke_width(2)))?;
    }
    Ok(())
}

fn explain(area: &Area<'_>, lines: &[Line]) -> Result<(), Box<dyn Error>> {
    let middle = font(13).pos(Pos::new(HPos::Left, VPos::Center));
    for (row, line) in (0..).zip(lines) {
        let y = 36 + row * 20;
        let path = vec![(8, y), (36, y)];
        area.draw(&PathElement::new(path.clone(), line.colour.mix(0.28).stroke_width(6)))?;
        area.draw(&PathElement::new(path, line.colour.stroke_width(2)))?;
        area.draw(&Text::new(line.name.clone(), (44, y), middle.clone()))?;
    }
    let small = font(11).pos(Pos::new(HPos::Left, VPos::Center));
    let below = 44 + i32::try_from(lines.len())? * 20;
    area.draw(&Text::new("wide and pale: entitled; thin: received", (8, below), small))?;
    Ok(())
}

/// Omits points between two points of the same height.
fn straight(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let level = |n: usize| {
        let (before, here, after) = (points[n - 1].1, points[n].1, points[n + 1].1);
        let near = 1e-9 * here.abs().max(1e-9);
        (before - here).abs() <= near && (after - here).abs() <= near
    };
    let last = points.len().saturating_sub(1);
    (0..points.len()).filter(|n| *n == 0 || *n == last || !level(*n)).map(|n| points[n]).collect()
}

/// A label of the axis, with as many digits as its scale needs.
fn number(value: f64, highest: f64) -> String {
    match highest {
        ..0.1 => format!("{value:.3}"),
        ..1.0 => format!("{value:.2}"),
        ..5.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn cut(text: &str, longest: usize) -> String {
    match text.chars().count() > longest {
        true => text.chars().take(longest - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Policy, Scenario, run};

    #[test]
    fn a_picture_has_a_panel_per_policy_and_a_line_per_tenant() {
        let text = "name = 'a & b'\nslots = 10\nchurn = 2\ncycles = 100\n\
                    [[tenants]]\nname = 'tenant <1>'\njobs = 50\n[[tenants]]\nname = 'crowd'\njobs = 5\ncount = 40\n";
        let scenario = Scenario::parse(text).unwrap();
        let outcomes = [Policy::VirtualTime, Policy::Fifo].map(|policy| run(&scenario, policy).unwrap());
        let svg = svg(&scenario.name, &outcomes).unwrap();
        for part in [
            "a &amp; b",
            "tenant &lt;1&gt;: 100 shares",
            "mean of 34 others",
            "virtual_time: Jain",
            "fifo: Jain",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
        assert!(svg.len() < 60_000, "{}", svg.len());
    }

    #[test]
    fn a_window_averages_what_was_received_and_entitled() {
        let text = "name = 'x'\nslots = 3\nchurn = 1\ncycles = 100\n[[tenants]]\nname = 'a'\njobs = 9\n";
        let outcome = run(&Scenario::parse(text).unwrap(), Policy::VirtualTime).unwrap();
        let points = averages(&outcome, &[0], POINTS);
        assert_eq!(points.last().unwrap().0, 100.0);
        assert!(points.iter().all(|(_, entitled, received)| (entitled - 3.0).abs() < 1e-9 && (received - 3.0).abs() < 1e-9));
        assert_eq!(straight(points.iter().map(|p| (p.0, p.1)).collect()).len(), 2);
    }
}
