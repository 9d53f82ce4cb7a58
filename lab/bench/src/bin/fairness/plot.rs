//! Pictures (SVG): a line per contender over time.

use std::path::Path;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::contender::Contender;
use crate::measure::received;
use crate::record::Job;
use crate::workload::Workload;

/// Points of a line: time in s, value.
pub type Series = Vec<(f64, f64)>;

type DrawingError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

const SIZE: (u32, u32) = (900, 360);
/// The shortest wait that is drawn, in s: the axis is logarithmic.
const SHORTEST_S: f64 = 0.001;
/// The time over which a tenant's part is averaged, in s.
const PART_S: u64 = 5;

/// Colours that people with colour blindness can distinguish (Okabe and Ito 2008).
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(110, 110, 110),
];

/// What is drawn of a run: the mean wait of the victims' jobs that were added in each second, in s; without victims, the part
/// of all slots that the first tenant had.
pub fn series(workload: &Workload, jobs: &[Job]) -> Series {
    if !workload.streams.iter().any(|stream| stream.victim) {
        let part = |to: u64| {
            let (from, to) = ((to - PART_S) as f64 * 1e3, to as f64 * 1e3);
            let slots = workload.slots as f64 * (to - from);
            (to / 1e3, received(workload, jobs, from, to)[0] / slots)
        };
        return (PART_S..=workload.seconds).map(part).collect();
    }
    let end_ms = workload.seconds as f64 * 1e3;
    let mut sums = vec![(0.0, 0.0); workload.seconds as usize + 1];
    for job in jobs.iter().filter(|job| workload.streams[job.stream].victim) {
        let Some(added) = job.added_ms else { continue };
        let wait = (job.started_ms.unwrap_or(end_ms) - added).max(0.0);
        let (sum, count) = &mut sums[(added / 1e3) as usize];
        *sum += wait / 1e3;
        *count += 1.0;
    }
    let means = sums.iter().enumerate().filter(|(_, (_, count))| *count > 0.0);
    means.map(|(second, (sum, count))| (second as f64 + 0.5, (sum / count).max(SHORTEST_S))).collect()
}

/// Draws the workloads `burst` and `lengths` into a folder; nothing of others.
pub fn draw(folder: &Path, workload: &Workload, lines: &[(Contender, Series)]) -> Result<(), String> {
    let (file, title, logarithmic) = match workload.name.as_str() {
        "burst" => ("fairness-burst.svg", "Mean wait of the jobs of three small tenants, in s", true),
        "lengths" => ("fairness-lengths.svg", "Part of all slots of the tenant with jobs of 10 ms", false),
        _ => return Ok(()),
    };
    let mut svg = String::new();
    draw_chart(&mut svg, title, logarithmic, workload.seconds as f64, lines)
        .map_err(|error| error.to_string())?;
    let file = folder.join(file);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&file, svg))
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn draw_chart<'a>(
    svg: &'a mut String,
    title: &str,
    logarithmic: bool,
    seconds: f64,
    lines: &[(Contender, Series)],
) -> Result<(), DrawingError<'a>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(&root);
    builder.caption(title, ("sans-serif", 18)).margin(10).x_label_area_size(40).y_label_area_size(60);
    if logarithmic {
        let chart = builder.build_cartesian_2d(0.0..seconds, (SHORTEST_S..100.0).log_scale())?;
        draw_lines(chart, lines)?;
    } else {
        draw_lines(builder.build_cartesian_2d(0.0..seconds, 0.0..1.0)?, lines)?;
    }
    root.present()
}

fn draw_lines<'a, Y>(
    mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, Y>>,
    lines: &[(Contender, Series)],
) -> Result<(), DrawingError<'a>>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc("time in s").draw()?;
    for ((contender, series), colour) in lines.iter().zip(COLOURS) {
        let line = LineSeries::new(series.iter().copied(), colour.stroke_width(2));
        chart
            .draw_series(line)?
            .label(contender.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    Ok(())
}
