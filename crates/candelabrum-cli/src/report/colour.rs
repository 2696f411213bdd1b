//! The colour of a run on the page.

use maud::{Markup, html};

/// The number of colours. Further runs have the same colours with dashed lines.
const COLOURS: usize = 8;

/// The classes by which the style sheet gives a run its colour and its dashes.
pub(super) fn classes(run: usize) -> String {
    format!("c{} d{}", run % COLOURS, (run / COLOURS).min(3))
}

/// A small line in a run's colour.
pub(super) fn chip(run: usize) -> Markup {
    html! {
        svg.chip viewBox="0 0 18 8" aria-hidden="true" {
            path.(classes(run)) d="M1 4H17" {}
        }
    }
}
