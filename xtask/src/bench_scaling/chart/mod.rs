//! scaling.svg: throughput by workers above, the parts of a step's time below.
//!
//! There is a column per model and a row per backend. This file places the panels. Each kind of
//! panel has its own file.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use self::legend::Key;
use super::report::{Report, Row};
use crate::canvas::{Canvas, GREY};
use crate::line_style::LineStyle;
use crate::split::Part;

mod legend;
mod steps;
mod throughput;

const MARGIN: i32 = 24;
/// The width of a panel, and of a panel without a neighbour.
const PANEL: i32 = 500;
const ALONE: i32 = 720;
const BETWEEN: i32 = 36;
const TOP: i32 = 76;
const HEADING: i32 = 30;
/// The height of a panel's name above it.
const NAME: i32 = 30;
const AFTER_PANEL: i32 = 14;
const AFTER_GROUP: i32 = 18;
const FOOTNOTE: i32 = 20;

/// The place of a panel. Each panel knows its own height.
#[derive(Clone, Copy, Debug)]
struct Frame {
    left: i32,
    right: i32,
    top: i32,
}

/// The content of a panel: one model over one backend.
struct Panel<'a> {
    column: usize,
    row: usize,
    name: String,
    rows: Vec<&'a Row>,
    known_strategies: &'a [String],
    cores: usize,
}

impl Panel<'_> {
    /// The measured numbers of workers, lowest first.
    fn worker_counts(&self) -> Vec<usize> {
        let mut counts: Vec<usize> = self.rows.iter().map(|row| row.point.workers).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// The measured strategies, with their indices in the program's list.
    fn strategies(&self) -> Vec<(usize, &str)> {
        let known = self.known_strategies.iter().map(String::as_str).enumerate();
        known.filter(|(_, name)| self.rows.iter().any(|row| row.point.strategy == *name)).collect()
    }
}

/// Writes the chart.
pub(super) fn draw(report: &Report<'_>, path: &Path) -> Result<()> {
    let paint = || {
        let layout = Layout::new(report);
        let canvas = Canvas::new(path, (layout.width as u32, layout.height as u32))?;
        layout.paint(report, &canvas)?;
        canvas.finish()
    };
    paint().with_context(|| format!("cannot draw {}", path.display()))
}

/// The content of the chart, and its vertical positions.
struct Layout<'a> {
    panels: Vec<Panel<'a>>,
    panel_width: i32,
    width: i32,
    height: i32,
    line_keys: Vec<Key>,
    part_keys: Vec<Key>,
    speeds_top: i32,
    steps_top: i32,
    footnotes: Vec<String>,
    footnotes_top: i32,
}

impl<'a> Layout<'a> {
    fn new(report: &'a Report<'a>) -> Self {
        let (models, backends) = (&report.plan.models, &report.plan.backends);
        let mut panels = Vec::new();
        for (row, backend) in backends.iter().enumerate() {
            for (column, model) in models.iter().enumerate() {
                let fits = |row: &&Row| row.point.model == *model && row.point.backend == *backend;
                panels.push(Panel {
                    column,
                    row,
                    name: format!("{model}, {} backend", backend.name()),
                    rows: report.points.iter().filter(fits).collect(),
                    known_strategies: report.known_strategies,
                    cores: report.machine.cores,
                });
            }
        }
        let columns = models.len() as i32;
        let panel_width = if columns == 1 { ALONE } else { PANEL };
        let width = 2 * MARGIN + columns * panel_width + (columns - 1) * BETWEEN;
        let keys = report.known_strategies.iter().enumerate();
        let drawn =
            keys.filter(|(_, name)| report.points.iter().any(|r| r.point.strategy == **name));
        let mut line_keys: Vec<Key> =
            drawn.map(|(place, name)| Key::Strategy(LineStyle::of(place), name.clone())).collect();
        line_keys.extend(has_ideal(report).then_some(Key::Ideal));
        let part_keys = Part::ALL.map(Key::Part).to_vec();

        let rows = backends.len() as i32;
        let key_height = |keys: &[Key]| legend::places(keys, MARGIN, width - MARGIN).1;
        let speeds_top = TOP + HEADING + key_height(&line_keys);
        let steps_heading =
            speeds_top + rows * (NAME + throughput::HEIGHT + AFTER_PANEL) + AFTER_GROUP;
        let steps_top = steps_heading + HEADING + key_height(&part_keys);
        let step_height = NAME + steps::height(report.plan.strategies.len()) + AFTER_PANEL;
        let footnotes_top = steps_top + rows * step_height;
        let footnotes = footnotes(report);
        let height = footnotes_top + FOOTNOTE * footnotes.len() as i32 + MARGIN / 2;
        Self {
            panels,
            panel_width,
            width,
            height,
            line_keys,
            part_keys,
            speeds_top,
            steps_top,
            footnotes,
            footnotes_top,
        }
    }

    fn paint(&self, report: &Report<'_>, canvas: &Canvas<'_>) -> Result<()> {
        let right = self.width - MARGIN;
        let title = "Data-parallel training: speed and cost by strategy";
        canvas.text(title, (MARGIN, 28), 20, BLACK, HPos::Left)?;
        canvas.text(&subtitle(report), (MARGIN, 54), 13, GREY, HPos::Left)?;

        self.heading(canvas, "Throughput of all ranks together", TOP)?;
        legend::draw(canvas, &self.line_keys, (MARGIN, TOP + HEADING), right)?;
        for panel in &self.panels {
            let height = NAME + throughput::HEIGHT + AFTER_PANEL;
            let frame = self.frame(canvas, panel, &panel.name, self.speeds_top, height)?;
            throughput::draw(canvas, panel, frame)?;
        }

        let key_height = legend::places(&self.part_keys, MARGIN, right).1;
        let heading = self.steps_top - key_height - HEADING;
        self.heading(canvas, "Where the time of a step goes (rank 0)", heading)?;
        legend::draw(canvas, &self.part_keys, (MARGIN, heading + HEADING), right)?;
        for panel in &self.panels {
            let height = NAME + steps::height(report.plan.strategies.len()) + AFTER_PANEL;
            let name = panel.worker_counts().last().map_or_else(
                || panel.name.clone(),
                |&most| {
                    let plural = if most == 1 { "" } else { "s" };
                    let star = if most > panel.cores { "*" } else { "" };
                    format!("{}, {most} worker{plural}{star}", panel.name)
                },
            );
            let frame = self.frame(canvas, panel, &name, self.steps_top, height)?;
            steps::draw(canvas, panel, frame)?;
        }
        for (i, note) in self.footnotes.iter().enumerate() {
            let at = (MARGIN, self.footnotes_top + FOOTNOTE * i as i32 + FOOTNOTE / 2);
            canvas.text(note, at, 13, GREY, HPos::Left)?;
        }
        Ok(())
    }

    fn heading(&self, canvas: &Canvas<'_>, text: &str, top: i32) -> Result<()> {
        canvas.text(text, (MARGIN, top + HEADING / 2), 16, BLACK, HPos::Left)
    }

    /// Writes a panel's name and returns the place below it.
    fn frame(
        &self,
        canvas: &Canvas<'_>,
        panel: &Panel<'_>,
        name: &str,
        top: i32,
        height: i32,
    ) -> Result<Frame> {
        let left = MARGIN + panel.column as i32 * (self.panel_width + BETWEEN);
        let top = top + panel.row as i32 * height;
        canvas.text(name, (left, top + NAME / 2), 14, BLACK, HPos::Left)?;
        if panel.rows.is_empty() {
            canvas.text("not measured", (left, top + NAME + 10), 13, GREY, HPos::Left)?;
        }
        Ok(Frame { left, right: left + self.panel_width, top: top + NAME })
    }
}

/// The circumstances, without a date, so that the same figures make the same file.
fn subtitle(report: &Report<'_>) -> String {
    let (settings, machine) = (report.settings, report.machine);
    format!(
        "{}, {} cores; batch {} and {} compute thread per rank; {} rounds; commit {}",
        machine.cpu,
        machine.cores,
        settings.batch_size,
        settings.threads_per_rank,
        settings.rounds,
        machine.commit
    )
}

/// Whether there is a speed-up from which the ideal line can be drawn.
fn has_ideal(report: &Report<'_>) -> bool {
    report.points.iter().any(|row| row.speed_up.is_some())
}

fn footnotes(report: &Report<'_>) -> Vec<String> {
    let ideal = if has_ideal(report) { ", the ideal is level above them" } else { "" };
    let mut notes = vec![format!(
        "Medians over the rounds; whiskers: slowest and fastest run. Points of one number of \
         workers stand side by side{ideal}."
    )];
    if report.points.iter().any(|row| row.oversubscribed) {
        let cores = report.machine.cores;
        notes.push(format!("* and hollow points: more ranks than this machine's {cores} cores."));
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::bench_scaling::fixture;

    fn drawn(report: &Report<'_>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scaling.svg");
        draw(report, &path).unwrap();
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_chart_names_axes_strategies_parts_and_the_machine() {
        let strategies = ["fp32", "fp16", "sparseTopK"];
        let mut fixture = fixture::of(&strategies, &[1, 2, 4]);
        for strategy in strategies {
            for workers in [1, 2, 4] {
                fixture.add(0, strategy, workers, 100.0 * workers as f64);
            }
        }
        let svg = drawn(&fixture.report());
        let words = [
            "images per second",
            "workers (ranks)",
            "milliseconds per step",
            "sparseTopK",
            "exposed communication",
            "ideal",
            "cnn, local backend, 4 workers*",
            "more ranks than this machine",
            "c0ffee",
            "A CPU &lt;of tests&gt;, 2 cores; batch 64",
        ];
        for word in words {
            assert!(svg.contains(word), "{word} is not in\n{svg}");
        }
    }

    #[test]
    fn a_chart_of_one_sample_can_be_drawn() {
        let mut fixture = fixture::of(&["fp32", "fp16"], &[1, 2]);
        fixture.plan.models.push("mlp".into());
        fixture.add(0, "fp16", 2, 100.0);
        let svg = drawn(&fixture.report());
        assert!(svg.contains("not measured") && !svg.contains("more ranks than"), "{svg}");
        assert!(!svg.contains("ideal"), "there is no baseline to draw it from");
    }
}
