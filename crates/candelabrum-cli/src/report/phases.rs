//! Where the time of a step goes: stacked bars over the epochs, and a table of shares.

use candelabrum_plot::{Axis, Frame, Grid, Scale, number, percent};
use candelabrum_runlog::{EpochEnd, Run, names};
use maud::{Markup, html};

use super::colour::chip;
use super::load::Loaded;

/// The phases in the order of a step, with what they are called.
const PHASES: [&str; 6] =
    ["forward and rest", "backward", "compress", "exposed communication", "decompress", "update"];

/// The most bars of a picture. More epochs are averaged in groups.
const MOST_BARS: usize = 40;

const FRAME: Frame =
    Frame { width: 640.0, height: 230.0, left: 62.0, right: 626.0, top: 10.0, bottom: 190.0 };

/// The seconds of one step by phase, averaged over some epochs.
#[derive(Clone, Debug, PartialEq)]
struct Bar {
    first: u64,
    last: u64,
    seconds: [f64; 6],
}

/// The section, if any epoch of a run says how long its phases took.
pub(super) fn section(runs: &[Loaded]) -> Option<Markup> {
    let bars: Vec<(usize, Vec<Bar>)> =
        runs.iter().enumerate().map(|(i, run)| (i, bars(&run.run))).collect();
    let with: Vec<&(usize, Vec<Bar>)> = bars.iter().filter(|(_, bars)| !bars.is_empty()).collect();
    if with.is_empty() {
        return None;
    }
    let highest = with.iter().flat_map(|(_, bars)| bars).map(|bar| bar.seconds.iter().sum::<f64>());
    let axis = Axis::around(highest.map(|total| total * 1e3).chain([0.0]), Scale::Linear, 4);
    Some(html! {
        section {
            h2 { "Where the time of a step goes" }
            p { "On rank 0, averaged over the steps of an epoch. Communication counts only where a step \
                waited for it." }
            ul.legend { @for (i, phase) in PHASES.iter().enumerate() {
                li { span class=(format!("box p{i}")) {} (phase) }
            } }
            div.charts { @for (run, bars) in &with {
                figure.chart {
                    figcaption { (chip(*run)) (runs[*run].name) span.aside { " (milliseconds per step)" } }
                    (picture(bars, &axis, &runs[*run].name))
                }
            } }
            (table(runs, &with))
        }
    })
}

fn picture(bars: &[Bar], axis: &Axis, name: &str) -> Markup {
    let slot = (FRAME.right - FRAME.left) / bars.len().max(1) as f64;
    let width = (slot * 0.72).clamp(1.0, 48.0);
    let down = |value: f64| axis.place(value).map(|up| FRAME.place(0.0, up).1);
    // A label needs about 40 units.
    let every = (40.0 / slot).ceil().max(1.0) as usize;
    let labelled = bars.iter().enumerate().step_by(every);
    let epochs_below =
        Axis::of_things(bars.len().max(1), labelled.map(|(i, bar)| (i, bar.first.to_string())));
    html! {
        svg viewBox=(FRAME.view_box()) role="img"
            aria-label=(format!("Where the time of a step goes: {name}")) {
            (FRAME.axes(&epochs_below, axis, "epoch", Grid::Across))
            @for (i, bar) in bars.iter().enumerate() {
                @let middle = FRAME.left + (i as f64 + 0.5) * slot;
                @for (phase, from, to) in stack(bar) {
                    @if let (Some(low), Some(high)) = (down(from * 1e3), down(to * 1e3)) {
                        rect class=(format!("p{phase}")) x=(format!("{:.1}", middle - width / 2.0))
                            y=(format!("{high:.1}")) width=(format!("{width:.1}"))
                            height=(format!("{:.1}", low - high)) {
                            title { (epochs(bar)) ", " (PHASES[phase]) ": " (number((to - from) * 1e3)) " ms" }
                        }
                    }
                }
            }
        }
    }
}

fn epochs(bar: &Bar) -> String {
    let Bar { first, last, .. } = bar;
    if first == last { format!("epoch {first}") } else { format!("epochs {first} to {last}") }
}

/// Phase, beginning and end of each piece of a bar.
fn stack(bar: &Bar) -> Vec<(usize, f64, f64)> {
    let mut sum = 0.0;
    let piece = |(phase, seconds): (usize, &f64)| {
        let from = sum;
        sum += seconds;
        (*seconds > 0.0).then_some((phase, from, sum))
    };
    bar.seconds.iter().enumerate().filter_map(piece).collect()
}

fn table(runs: &[Loaded], with: &[&(usize, Vec<Bar>)]) -> Markup {
    let means: Vec<Bar> = with.iter().map(|(_, bars)| mean(bars)).collect();
    let total = |bar: &Bar| bar.seconds.iter().sum::<f64>();
    html! {
        div.wide { table {
            thead { tr {
                th { "milliseconds per step, and share" }
                @for (run, _) in with { th.run { (chip(*run)) (runs[*run].name) } }
            } }
            tbody {
                @for (phase, name) in PHASES.iter().enumerate() { tr {
                    th { (name) }
                    @for bar in &means { td {
                        (number(bar.seconds[phase] * 1e3)) " "
                        span.aside { (percent(bar.seconds[phase] / total(bar))) }
                    } }
                } }
                tr.total {
                    th { "whole step" }
                    @for bar in &means { td { (number(total(bar) * 1e3)) } }
                }
            }
        } }
    }
}

/// The bars of a run: its epochs, or groups of them.
fn bars(run: &Run) -> Vec<Bar> {
    let mut before = 0;
    let mut bars = Vec::new();
    for end in &run.epochs {
        bars.extend(bar(&end.what, before));
        before = end.what.step;
    }
    let group = bars.len().div_ceil(MOST_BARS).max(1);
    bars.chunks(group).map(mean).collect()
}

/// An epoch's bar, if the epoch has phases and a number of steps.
fn bar(end: &EpochEnd, step_before: u64) -> Option<Bar> {
    let of = |name| end.values.get(name).copied().filter(|v| v.is_finite() && *v >= 0.0);
    let phases = [
        names::BACKWARD_SECONDS,
        names::COMPRESS_SECONDS,
        names::EXPOSED_SECONDS,
        names::DECOMPRESS_SECONDS,
        names::UPDATE_SECONDS,
    ];
    let known = phases.map(of);
    if known.iter().all(Option::is_none) {
        return None;
    }
    let counted = end.step.saturating_sub(step_before) as f64;
    let steps = of(names::STEPS).unwrap_or(counted);
    let all = of(names::TRAIN_SECONDS).unwrap_or(end.seconds);
    let [backward, compress, exposed, decompress, update] = known.map(|v| v.unwrap_or(0.0) / steps);
    let rest = all / steps - (backward + compress + exposed + decompress + update);
    let seconds = [rest.max(0.0), backward, compress, exposed, decompress, update];
    let is_sound = steps > 0.0 && seconds.iter().all(|phase| phase.is_finite());
    is_sound.then_some(Bar { first: end.epoch, last: end.epoch, seconds })
}

/// The mean of some bars. There is at least one.
fn mean(bars: &[Bar]) -> Bar {
    let share = |phase: usize| {
        bars.iter().map(|bar| bar.seconds[phase]).sum::<f64>() / bars.len().max(1) as f64
    };
    let seconds = [0, 1, 2, 3, 4, 5].map(share);
    let [first, last] = [bars.first(), bars.last()];
    let (first, last) = (first.map_or(0, |bar| bar.first), last.map_or(0, |bar| bar.last));
    Bar { first, last, seconds }
}

#[cfg(test)]
mod tests {
    use candelabrum_runlog::{Event, Kind, Values};

    use super::*;

    fn end(epoch: u64, pairs: &[(&str, f64)]) -> EpochEnd {
        let values: Values = pairs.iter().map(|(name, v)| ((*name).to_owned(), *v)).collect();
        EpochEnd { epoch, step: 10 * (epoch + 1), seconds: 5.0, dist_option: None, values }
    }

    #[test]
    fn the_rest_of_a_step_is_its_forward_pass() {
        let phases = [("backward_seconds", 1.0), ("exposed_seconds", 0.5), ("train_seconds", 4.0)];
        let bar = bar(&end(1, &phases), 10).unwrap();
        let expected = [0.25, 0.1, 0.0, 0.05, 0.0, 0.0];
        let is_close = |(a, b): (&f64, f64)| (a - b).abs() < 1e-12;
        assert!(bar.seconds.iter().zip(expected).all(is_close), "{bar:?}");
        let pieces = stack(&bar);
        assert_eq!(pieces.iter().map(|piece| piece.0).collect::<Vec<_>>(), [0, 1, 3]);
        // Phases that are longer than the whole leave no rest.
        assert_eq!(self::bar(&end(0, &[("update_seconds", 9.0)]), 0).unwrap().seconds[0], 0.0);
        assert_eq!(self::bar(&end(0, &[("loss", 1.0)]), 0), None);
        assert_eq!(self::bar(&end(0, &[("update_seconds", 1.0)]), 10), None, "no steps");
        assert_eq!(self::bar(&end(0, &[("update_seconds", f64::NAN)]), 0), None);
    }

    #[test]
    fn many_epochs_become_groups() {
        let mut run = Run::default();
        for epoch in 0..95 {
            let kind = Kind::Epoch(end(epoch, &[("backward_seconds", epoch as f64 / 100.0)]));
            run.event(Event { time: epoch as f64, kind });
        }
        let bars = bars(&run);
        assert_eq!(bars.len(), 32);
        assert_eq!((bars[0].first, bars[0].last, bars[31].last), (0, 2, 94));
        assert!((bars[0].seconds[1] - 0.001).abs() < 1e-12, "{:?}", bars[0]);
        assert_eq!(epochs(&bars[0]), "epochs 0 to 2");
    }
}
