//! Where the memory of a step is: what it was for, and what each layer kept for the backward pass.

use candelabrum_plot::bytes;
use candelabrum_runlog::{Memory, SAVED};
use maud::{Markup, html};

use super::colour::chip;
use super::load::Loaded;

/// The section, if a run has measured it.
pub(super) fn section(runs: &[Loaded]) -> Option<Markup> {
    let measured = runs.iter().enumerate();
    let measured: Vec<_> =
        measured.filter_map(|(i, run)| Some((i, &run.name, run.run.memory.as_ref()?))).collect();
    if measured.is_empty() {
        return None;
    }
    Some(html! {
        section {
            h2 { "Where the memory of a step is" }
            @for (run, name, memory) in measured {
                h3 { (chip(run)) (name) span.aside {
                    " (rank 0, step " (memory.step) ", " (memory.place) ")"
                } }
                (table(memory))
            }
        }
    })
}

fn table(memory: &Memory) -> Markup {
    html! {
        div.wide { table { tbody {
            @for part in &memory.parts {
                tr { th { (part.name) } td { (bytes(part.bytes as f64)) } }
                @if part.name == SAVED {
                    @for (layers, count, sum) in memory.similar_layers() {
                        tr { th.aside {
                            "\u{2003}"
                            @if layers.is_empty() { "after the last layer" } @else { (layers) }
                            @if count > 1 { " × " (count) }
                        } td.aside { (bytes(sum as f64)) } }
                    }
                }
            }
            @for (name, sum) in memory.totals() {
                tr { th { (name) } td { (bytes(sum as f64)) } }
            }
            @if memory.ranks.len() > 1 {
                tr { th { "peak of the process of each rank" } td {
                    (memory.ranks.iter().map(|sum| bytes(*sum as f64)).collect::<Vec<_>>().join(", "))
                } }
            }
        } } }
    }
}
