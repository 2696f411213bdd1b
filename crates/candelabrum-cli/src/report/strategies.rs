//! What each strategy of a run sent, and what it kept back.

use candelabrum_plot::{bytes, mean, number};
use candelabrum_runlog::{EpochEnd, Run, names};
use maud::{Markup, html};

use super::chart::Chart;
use super::colour::chip;
use super::load::Loaded;

/// The epochs of one strategy.
#[derive(Debug, PartialEq)]
struct Figures {
    name: String,
    epochs: usize,
    sent: Option<f64>,
    received: Option<f64>,
    /// At the last epoch.
    residual: Option<f64>,
}

/// The section, if any epoch of a run says what was sent.
pub(super) fn section(
    runs: &[Loaded],
    charts: &[Chart],
    draw: impl FnOnce(&[Chart]) -> Markup,
) -> Option<Markup> {
    let rows: Vec<(usize, Figures)> = runs
        .iter()
        .enumerate()
        .flat_map(|(i, run)| figures(&run.run).into_iter().map(move |row| (i, row)))
        .collect();
    let says = |row: &Figures| row.sent.or(row.received).or(row.residual).is_some();
    if !rows.iter().any(|(_, row)| says(row)) {
        return None;
    }
    let shown = |value: Option<f64>, text: fn(f64) -> String| value.map(text).unwrap_or_default();
    Some(html! {
        section {
            h2 { "What the strategies send" }
            p { "Payload on rank 0. The norm is that of the values that error feedback keeps for later \
                steps, at the end of the last epoch." }
            div.wide { table {
                thead { tr {
                    th { "run" } th { "strategy" } th.number { "epochs" } th.number { "sent per step" }
                    th.number { "received per step" } th.number { "norm not sent" }
                } }
                tbody { @for (run, row) in &rows { tr {
                    th.run { (chip(*run)) (runs[*run].name) }
                    td.text { (row.name) }
                    td { (row.epochs) }
                    td { (shown(row.sent, bytes)) }
                    td { (shown(row.received, bytes)) }
                    td { (shown(row.residual, number)) }
                } } }
            } }
            (draw(charts))
        }
    })
}

/// By strategy, in the order in which the run used them.
fn figures(run: &Run) -> Vec<Figures> {
    let mut all: Vec<(String, Vec<&EpochEnd>)> = Vec::new();
    for end in &run.epochs {
        let name = end.what.dist_option.clone().unwrap_or_else(|| "not named".to_owned());
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, ends)) => ends.push(&end.what),
            None => all.push((name, vec![&end.what])),
        }
    }
    let of = |(name, ends): (String, Vec<&EpochEnd>)| {
        let mean = |value: &str| mean(ends.iter().filter_map(|end| end.values.get(value).copied()));
        let residuals = ends.iter().rev().filter_map(|end| end.values.get(names::RESIDUAL_NORM));
        let residual = residuals.copied().find(|value| value.is_finite());
        let (sent, received) =
            (mean(names::BYTES_SENT_PER_STEP), mean(names::BYTES_RECEIVED_PER_STEP));
        Figures { name, epochs: ends.len(), sent, received, residual }
    };
    all.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use candelabrum_runlog::{Event, Kind};

    use super::*;

    #[test]
    fn epochs_are_collected_by_strategy() {
        let mut run = Run::default();
        for (epoch, (name, sent)) in
            [("fp32", 100.0), ("sparseTopK", 10.0), ("fp32", f64::NAN), ("fp32", 300.0)]
                .into_iter()
                .enumerate()
        {
            let values = [("bytes_sent_per_step".to_owned(), sent)].into();
            let (epoch, dist_option) = (epoch as u64, Some(name.to_owned()));
            let end = EpochEnd { epoch, step: epoch + 1, seconds: 1.0, dist_option, values };
            run.event(Event { time: 0.0, kind: Kind::Epoch(end) });
        }
        let figures = figures(&run);
        assert_eq!(figures.len(), 2);
        assert_eq!(
            (&*figures[0].name, figures[0].epochs, figures[0].sent),
            ("fp32", 3, Some(200.0))
        );
        assert_eq!((&*figures[1].name, figures[1].residual), ("sparseTopK", None));
    }
}
