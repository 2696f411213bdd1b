//! The page: its sections in their order, its style and its script.

use candelabrum_runlog::duration_in_words;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::Chart;
use super::colour::chip;
use super::curves::{Curves, curves};
use super::load::Loaded;
use super::{events, memory, phases, settings, strategies, summary};

/// The page about these runs, made at a Unix time.
pub(super) fn page(runs: &[Loaded], now: f64) -> String {
    let names: Vec<&str> = runs.iter().map(|run| &*run.name).collect();
    let title = format!("Training report: {}", names.join(", "));
    let Curves { training, evaluation, speed, strategy, others, left_out } = curves(runs);
    let mut drawn = 0;
    let mut draw = |charts: &[Chart]| {
        let first = drawn;
        drawn += charts.len();
        html! { div.charts {
            @for (i, chart) in charts.iter().enumerate() { (chart.draw(first + i)) }
        } }
    };
    let charts = [
        ("Training", draw(&training), training.len()),
        ("Evaluation", draw(&evaluation), evaluation.len()),
        ("Throughput", draw(&speed), speed.len()),
    ];
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            body {
                header {
                    h1 { "Training report" }
                    ul.legend { @for (i, run) in runs.iter().enumerate() { li {
                        (chip(i)) b { (run.name) } " " (run.state.describe()) ", "
                        (duration_in_words(run.run.seconds()))
                    } } }
                }
                main {
                    (summary::section(runs))
                    (settings::section(runs))
                    @for (heading, charts, count) in &charts { @if *count > 0 {
                        section { h2 { (heading) } (charts) }
                    } }
                    @if let Some(section) = phases::section(runs) { (section) }
                    @if let Some(section) = memory::section(runs) { (section) }
                    @if let Some(section) = strategies::section(runs, &strategy, &mut draw) { (section) }
                    (others_section(&others, &left_out, &mut draw))
                    (events::section(runs))
                }
                footer { "Made by candelabrum " (env!("CARGO_PKG_VERSION")) " on " (summary::date(now)) "." }
                div #tip hidden {}
                script { (PreEscaped(include_str!("page.js"))) }
            }
        }
    };
    page.into_string()
}

fn others_section(
    charts: &[Chart],
    left_out: &[String],
    draw: impl FnOnce(&[Chart]) -> Markup,
) -> Markup {
    html! {
        @if !charts.is_empty() {
            section {
                h2 { "Other values" }
                (draw(charts))
                @if !left_out.is_empty() {
                    p.note { "Without a chart, because there are so many: " (left_out.join(", ")) "." }
                }
            }
        }
    }
}
