//! bench_step.svg: a row of panels per network. Each number of threads has a panel, with a bar per
//! contender, grouped by batch size. The last panel of a row shows the memory.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::contender::Contender;
use super::plan::Config;
use super::report::{Report, Row};
use crate::bars::{self, Bar};
use crate::canvas::{Canvas, GREY, LIGHT, okabe_ito, text_width};
use crate::figures::{Spread, thousands};
use crate::network::Network;

const MARGIN: i32 = 24;
const TOP: i32 = 84;
/// The width of the contenders' names, left of the panels.
const NAMES: i32 = 168;
const SPEED_PANEL: i32 = 350;
const MEMORY_PANEL: i32 = 230;
const BETWEEN: i32 = 30;
/// The height of a network's name and the panels' names above their bars.
const HEADING: i32 = 58;
const GROUP_NAME: i32 = 22;
const BAR_STEP: i32 = 20;
const AFTER_GROUP: i32 = 8;
const AFTER_NETWORK: i32 = 26;
const FOOTNOTE: i32 = 20;
const TEXT: i32 = 13;

/// Writes the chart.
pub(super) fn draw(report: &Report<'_>, path: &Path) -> Result<()> {
    let paint = || {
        let layout = Layout::new(report);
        let canvas = Canvas::new(path, (layout.width as u32, layout.height as u32))?;
        layout.paint(&canvas)?;
        canvas.finish()
    };
    paint().with_context(|| format!("cannot draw {}", path.display()))
}

fn colour(contender: Contender) -> RGBColor {
    match contender {
        Contender::Ours => okabe_ito::BLUE,
        Contender::Candle => okabe_ito::ORANGE,
        Contender::PyTorch => okabe_ito::GREEN,
        Contender::PyTorchChannelsLast => okabe_ito::PURPLE,
        Contender::PyTorchCompile => okabe_ito::SKY,
    }
}

/// The content of the chart, and its vertical positions.
struct Layout<'a> {
    report: &'a Report<'a>,
    bands: Vec<Band<'a>>,
    footnotes: Vec<String>,
    footnotes_top: i32,
    width: i32,
    height: i32,
}

/// One network's row of panels.
struct Band<'a> {
    network: Network,
    top: i32,
    groups: Vec<Group<'a>>,
    floor: i32,
}

/// The contenders of one batch size.
struct Group<'a> {
    batch_size: usize,
    top: i32,
    lines: Vec<Line<'a>>,
}

/// One contender: a bar in each panel.
struct Line<'a> {
    contender: Contender,
    middle: i32,
    rows: Vec<&'a Row<'a>>,
}

impl<'a> Layout<'a> {
    fn new(report: &'a Report<'a>) -> Self {
        let mut top = TOP;
        let mut bands = Vec::new();
        for &network in &report.plan.networks {
            let rows = report.rows.iter().filter(|row| row.config.network == network);
            let band = Band::new(report, network, &rows.collect::<Vec<_>>(), top);
            if !band.groups.is_empty() {
                top = band.floor + AFTER_NETWORK;
                bands.push(band);
            }
        }
        let footnotes = footnotes(report);
        let panels = report.plan.threads.len() as i32;
        let width = 2 * MARGIN + NAMES + panels * (SPEED_PANEL + BETWEEN) + MEMORY_PANEL;
        let widest = footnotes.iter().map(|note| text_width(note, TEXT)).max().unwrap_or(0);
        Self {
            report,
            bands,
            footnotes_top: top,
            height: top + FOOTNOTE * footnotes.len() as i32 + MARGIN,
            width: width.max(widest + 2 * MARGIN),
            footnotes,
        }
    }

    fn paint(&self, canvas: &Canvas<'_>) -> Result<()> {
        let plan = self.report.plan;
        let title = "Training throughput (higher is better) and peak memory (lower is better)";
        canvas.text(title, (MARGIN, 26), 19, BLACK, HPos::Left)?;
        let under = format!("{}; medians of {} rounds", self.report.machine.cpu, plan.rounds);
        canvas.text(&under, (MARGIN, 52), TEXT, GREY, HPos::Left)?;
        for band in &self.bands {
            band.paint(canvas, &plan.threads)?;
        }
        for (i, note) in self.footnotes.iter().enumerate() {
            let at = (MARGIN, self.footnotes_top + FOOTNOTE * i as i32 + FOOTNOTE / 2);
            canvas.text(note, at, TEXT, GREY, HPos::Left)?;
        }
        Ok(())
    }
}

fn footnotes(report: &Report<'_>) -> Vec<String> {
    let mut notes = vec![
        "Whiskers: slowest and fastest sample. ×: median of the ratios within a round, to the \
         fastest PyTorch there."
            .to_owned(),
        "Memory: the most that the process held; of several numbers of threads, the highest."
            .to_owned(),
    ];
    let versions = [Some(format!("candle {}", report.machine.candle)), report.pytorch.clone()];
    notes.push(versions.into_iter().flatten().collect::<Vec<_>>().join(", "));
    notes
}

impl<'a> Band<'a> {
    fn new(report: &'a Report<'a>, network: Network, rows: &[&'a Row<'a>], top: i32) -> Self {
        let mut groups = Vec::new();
        let mut y = top + HEADING;
        for &batch_size in &report.plan.batch_sizes {
            let of_group = rows.iter().filter(|row| row.config.batch_size == batch_size);
            let of_group: Vec<&Row<'_>> = of_group.copied().collect();
            if of_group.is_empty() {
                continue;
            }
            let mut group = Group { batch_size, top: y, lines: Vec::new() };
            y += GROUP_NAME;
            for contender in report.plan.contenders_of(network) {
                let own = of_group.iter().filter(|row| row.contender == contender);
                let rows = own.copied().collect();
                group.lines.push(Line { contender, middle: y + BAR_STEP / 2, rows });
                y += BAR_STEP;
            }
            y += AFTER_GROUP;
            groups.push(group);
        }
        Self { network, top, groups, floor: y }
    }

    fn lines(&self) -> impl Iterator<Item = &Line<'a>> {
        self.groups.iter().flat_map(|group| &group.lines)
    }

    fn paint(&self, canvas: &Canvas<'_>, threads: &[usize]) -> Result<()> {
        let text = |text: &str, x: i32, y: i32, size: i32, colour: RGBColor, anchor: HPos| {
            canvas.text(text, (x, y), size, colour, anchor)
        };
        let right = MARGIN + NAMES + threads.len() as i32 * (SPEED_PANEL + BETWEEN) + MEMORY_PANEL;
        canvas.line(vec![(MARGIN, self.top), (right, self.top)], LIGHT.stroke_width(1))?;
        text(self.network.label(), MARGIN, self.top + 18, 16, BLACK, HPos::Left)?;
        let names_end = MARGIN + NAMES - 10;
        for group in &self.groups {
            let name = format!("batch {}", group.batch_size);
            text(&name, MARGIN, group.top + GROUP_NAME / 2, TEXT, GREY, HPos::Left)?;
            for line in &group.lines {
                let label = line.contender.label();
                text(label, names_end, line.middle, TEXT, BLACK, HPos::Right)?;
            }
        }
        let mut left = MARGIN + NAMES;
        for &count in threads {
            let plural = if count == 1 { "" } else { "s" };
            let name = format!("{count} thread{plural}, {} per second", self.network.unit());
            text(&name, left, self.top + 42, TEXT, GREY, HPos::Left)?;
            let bars = self.lines().map(|line| line.speed_bar(count));
            self.panel(canvas, left, SPEED_PANEL, &bars.collect::<Vec<_>>())?;
            left += SPEED_PANEL + BETWEEN;
        }
        text("peak memory, MB", left, self.top + 42, TEXT, GREY, HPos::Left)?;
        let bars = self.lines().map(Line::memory_bar);
        self.panel(canvas, left, MEMORY_PANEL, &bars.collect::<Vec<_>>())
    }

    /// Draws bars to the right of `left`, and the line at which they start.
    fn panel(&self, canvas: &Canvas<'_>, left: i32, width: i32, bars: &[Bar]) -> Result<()> {
        bars::draw(canvas, left, width, bars)?;
        for group in &self.groups {
            let ends = [group.lines.first(), group.lines.last()];
            if let [Some(first), Some(last)] = ends {
                let ends = [first.middle - BAR_STEP / 2, last.middle + BAR_STEP / 2];
                let axis = ends.map(|y| (left, y)).to_vec();
                canvas.line(axis, BLACK.stroke_width(1))?;
            }
        }
        Ok(())
    }
}

impl Line<'_> {
    fn bar(&self, length: f64, whisker: Option<(f64, f64)>, figure: String) -> Bar {
        Bar { middle: self.middle, colour: colour(self.contender), length, whisker, figure }
    }

    /// The median, and for ours its ratio to the best PyTorch contender.
    fn speed_bar(&self, threads: usize) -> Bar {
        let row =
            self.rows.iter().find(|Row { config: Config { threads: n, .. }, .. }| *n == threads);
        let Some(row) = row else { return self.bar(0.0, None, "not reached".into()) };
        let Some(Spread { median, min, max }) = row.examples_per_second else {
            let why = if row.failure.is_some() { "failed" } else { "not reached" };
            return self.bar(0.0, None, why.into());
        };
        let figure = match row.ratio_to_best_pytorch {
            Some(ratio) if self.contender == Contender::Ours => {
                let digits = if ratio < 10.0 { 2 } else { 0 };
                format!("{} ({ratio:.digits$}× PyTorch)", speed_figure(median))
            }
            _ => speed_figure(median),
        };
        self.bar(median, Some((min, max)), figure)
    }

    /// The highest value over all numbers of threads.
    fn memory_bar(&self) -> Bar {
        let peaks = self.rows.iter().filter_map(|row| row.peak_rss_mb);
        match peaks.reduce(f64::max) {
            Some(peak) => self.bar(peak, None, thousands(peak)),
            None => self.bar(0.0, None, "unknown".into()),
        }
    }
}

/// A small speed has a digit after the point.
fn speed_figure(speed: f64) -> String {
    if speed < 20.0 { format!("{speed:.1}") } else { thousands(speed) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::bench_step::fixture::{config, outcome};
    use crate::bench_step::plan::Plan;
    use crate::host::Host;
    use crate::live::Failure;

    #[test]
    fn every_contender_has_its_bar_or_says_that_it_failed() {
        let plan = Plan {
            networks: vec![Network::Cnn],
            batch_sizes: vec![64],
            threads: vec![1, 2],
            contenders: vec![Contender::Ours, Contender::PyTorch, Contender::PyTorchCompile],
            rounds: 1,
            seconds: 1.0,
        };
        let mut compiled = outcome(config(64, 1), Contender::PyTorchCompile, &[], 2.0);
        compiled.failure = Some(Failure { reason: "no compiler".into(), stderr: Vec::new() });
        let outcomes = [
            outcome(config(64, 1), Contender::Ours, &[1234.0], 2.0),
            outcome(config(64, 1), Contender::PyTorch, &[617.0], 2.0),
            compiled,
            outcome(config(64, 2), Contender::Ours, &[2345.0], 2.0),
        ];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chart.svg");
        let machine = Host::look();
        draw(&Report::new(&machine, &plan, &outcomes), &path).unwrap();
        let svg = fs::read_to_string(path).unwrap();
        for text in ["1,234 (2.00× PyTorch)", "2,345", "failed", "not reached", "1 thread,"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }
}
