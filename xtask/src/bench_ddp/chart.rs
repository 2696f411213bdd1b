//! ddp.svg: a bar per contender, with one worker above several.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::contender::{Contender, Layout};
use super::report::{Report, Row};
use crate::bars::{self, Bar};
use crate::canvas::{Canvas, GREY, LIGHT, okabe_ito};
use crate::figures::{Spread, thousands};

const WIDTH: i32 = 860;
const MARGIN: i32 = 24;
const TOP: i32 = 84;
/// The width of the contenders' names, left of the bars.
const NAMES: i32 = 300;
const GROUP_NAME: i32 = 30;
const BAR_STEP: i32 = 24;
const AFTER_GROUP: i32 = 14;
const FOOTNOTE: i32 = 20;
const TEXT: i32 = 13;

/// Writes the chart.
pub(super) fn draw(report: &Report<'_>, path: &Path) -> Result<()> {
    let paint = || {
        let (rows, notes) = (report.rows.len() as i32, footnotes(report));
        let bottom = TOP + 2 * (GROUP_NAME + AFTER_GROUP) + rows * BAR_STEP;
        let height = bottom + FOOTNOTE * notes.len() as i32 + MARGIN;
        let canvas = Canvas::new(path, (WIDTH as u32, height as u32))?;
        paint_bars(&canvas, report)?;
        for (i, note) in notes.iter().enumerate() {
            let at = (MARGIN, bottom + FOOTNOTE * i as i32 + FOOTNOTE / 2);
            canvas.text(note, at, TEXT, GREY, HPos::Left)?;
        }
        canvas.finish()
    };
    paint().with_context(|| format!("cannot draw {}", path.display()))
}

fn paint_bars(canvas: &Canvas<'_>, report: &Report<'_>) -> Result<()> {
    let plan = report.plan;
    let title =
        format!("Data-parallel training of the {} (higher is better)", plan.network.label());
    canvas.text(&title, (MARGIN, 26), 19, BLACK, HPos::Left)?;
    let under = format!(
        "{}, {} cores; {} per second of all workers, batch {} and one thread each; medians of {} rounds",
        report.machine.cpu,
        report.machine.cores,
        plan.network.unit(),
        plan.batch_size,
        plan.rounds
    );
    canvas.text(&under, (MARGIN, 52), TEXT, GREY, HPos::Left)?;
    let (left, mut y) = (MARGIN + NAMES, TOP);
    let mut drawn = Vec::new();
    for several in [false, true] {
        let rows = report.rows.iter().filter(|row| (row.workers > 1) == several);
        let name = if several { format!("{} workers", plan.workers) } else { "1 worker".into() };
        canvas.line(vec![(MARGIN, y), (WIDTH - MARGIN, y)], LIGHT.stroke_width(1))?;
        canvas.text(&name, (MARGIN, y + GROUP_NAME / 2), 15, BLACK, HPos::Left)?;
        y += GROUP_NAME;
        let top = y;
        for row in rows {
            let middle = y + BAR_STEP / 2;
            let label = row.contender.label();
            canvas.text(&label, (left - 10, middle), TEXT, BLACK, HPos::Right)?;
            drawn.push(bar(row, middle));
            y += BAR_STEP;
        }
        canvas.line(vec![(left, top), (left, y)], BLACK.stroke_width(1))?;
        y += AFTER_GROUP;
    }
    bars::draw(canvas, left, WIDTH - MARGIN - left, &drawn)
}

fn bar(row: &Row<'_>, middle: i32) -> Bar {
    let colour = match row.contender {
        Contender::OursAlone | Contender::OursLocal => okabe_ito::BLUE,
        Contender::OursMpi => okabe_ito::SKY,
        Contender::TorchAlone(Layout::Default) | Contender::Ddp(Layout::Default, _) => {
            okabe_ito::GREEN
        }
        Contender::TorchAlone(Layout::ChannelsLast) | Contender::Ddp(Layout::ChannelsLast, _) => {
            okabe_ito::PURPLE
        }
    };
    let Some(Spread { median, min, max }) = row.examples_per_second else {
        let why = if row.failure.is_some() { "failed" } else { "not reached" };
        return Bar { middle, colour, length: 0.0, whisker: None, figure: why.into() };
    };
    let ratio = row.times_one_worker.filter(|_| row.workers > 1);
    let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2}×)"));
    let figure = thousands(median) + &ratio;
    Bar { middle, colour, length: median, whisker: Some((min, max)), figure }
}

fn footnotes(report: &Report<'_>) -> Vec<String> {
    let mut notes = vec![
        "Whiskers: slowest and fastest sample. ×: to one worker of the same library, median of the \
         ratios within a round."
            .to_owned(),
    ];
    let ours = report.rows.iter().find(|row| row.contender == Contender::OursLocal);
    if let Some(ratio) = ours.and_then(|row| row.times_best_ddp) {
        notes.push(format!("Candelabrum to the best DDP: {ratio:.2}×."));
    }
    notes.extend(report.pytorch.clone());
    notes
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::contender::Buckets;
    use super::*;
    use crate::bench_ddp::fixture::{outcome, plan};
    use crate::host::Host;

    #[test]
    fn every_contender_has_its_bar() {
        let (machine, plan) = (Host::look(), plan());
        let outcomes = [
            outcome(Contender::OursAlone, &[100.0], 2.0),
            outcome(Contender::OursLocal, &[95.0], 2.0),
            outcome(Contender::Ddp(Layout::Default, Buckets::Views), &[38.0], 2.0),
            outcome(Contender::OursMpi, &[], 2.0),
        ];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chart.svg");
        draw(&Report::new(&machine, &plan, &outcomes), &path).unwrap();
        let svg = fs::read_to_string(path).unwrap();
        for text in
            ["12,160 (1.90×)", "bucket views", "not reached", "best DDP: 2.50×", "2 workers"]
        {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }
}
