//! An axis: the range of values, and the round numbers at its ticks. The page of a report has the same axes
//! (`report/axis.js`).

/// The sizes of values that have a place. The difference of two values, and the step of ticks between
/// them, must be numbers, too.
const LARGEST: f64 = 1e300;
const SMALLEST: f64 = 1e-290;

/// A range of values with its ticks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChartAxis {
    /// The value at the left or lower end.
    pub(super) low: f64,
    /// The value at the other end.
    pub(super) high: f64,
    /// Whether values lie by their logarithms. Values that are not positive have no place then.
    pub(super) is_logarithmic: bool,
    /// The values of the ticks.
    pub(super) ticks: Vec<f64>,
}

impl ChartAxis {
    /// An axis from a tick below all values to a tick above them. Only finite values count. A
    /// logarithmic axis without a positive value becomes a linear one.
    pub(super) fn around(
        values: impl IntoIterator<Item = f64>,
        is_logarithmic: bool,
        ticks: usize,
    ) -> Self {
        let smallest = if is_logarithmic { SMALLEST } else { -LARGEST };
        let fits = |value: &f64| value.is_finite() && (!is_logarithmic || *value > 0.0);
        let values = values.into_iter().filter(fits).map(|value| value.clamp(smallest, LARGEST));
        let range = values.fold(None, |range: Option<(f64, f64)>, value| {
            let (low, high) = range.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        });
        match range {
            Some((low, high)) if is_logarithmic => Self::logarithmic(low, high, ticks),
            Some((low, high)) => Self::linear(low, high, ticks),
            None => Self::linear(0.0, 1.0, ticks),
        }
    }

    fn linear(low: f64, high: f64, ticks: usize) -> Self {
        let [low, high] = if differ(low, high) { [low, high] } else { with_margins(low) };
        let step = round_step((high - low) / ticks.max(1) as f64);
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        let ticks = multiples(low, high, step);
        let (low, high) = (tidy(low, step), tidy(high, step));
        Self { low, high, is_logarithmic: false, ticks }
    }

    fn logarithmic(low: f64, high: f64, ticks: usize) -> Self {
        let decades = high.log10() - low.log10();
        if decades < 1.0 {
            // Round numbers of the linear axis, at their logarithmic places.
            let mut axis = Self::linear(low, high, ticks);
            axis.ticks.retain(|tick| *tick > 0.0);
            if axis.low <= 0.0 {
                axis.low = low;
            }
            return Self { is_logarithmic: true, ..axis };
        }
        let every = (decades / ticks.max(1) as f64).ceil();
        let first = low.log10().floor();
        let count = ((high.log10() - first) / every).ceil() as usize;
        let power = |i| 10_f64.powi((first + every * i as f64) as i32);
        let mut ticks: Vec<f64> = (0..=count).map(power).collect();
        if decades < 2.5 {
            ticks.extend((0..=count).flat_map(|i| [2.0 * power(i), 5.0 * power(i)]));
            ticks.sort_by(f64::total_cmp);
        }
        // A range of few decades need not grow to the next power: 1 to 20 would become 1 to 100.
        let (low, high) = if decades < 3.0 { (low, high) } else { (power(0), power(count)) };
        ticks.retain(|tick| (low..=high).contains(tick));
        Self { low, high, is_logarithmic: true, ticks }
    }

    /// Where a value lies: 0 at the low end, 1 at the high end. `None` for NaN, infinity, and what a
    /// logarithmic axis does not have.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let form = |value: f64| if self.is_logarithmic { value.ln() } else { value };
        let position = (form(value) - form(self.low)) / (form(self.high) - form(self.low));
        (value.is_finite() && position.is_finite()).then_some(position)
    }
}

/// Whether two values are far enough apart for an axis.
fn differ(low: f64, high: f64) -> bool {
    high - low > SMALLEST.max(1e-12 * low.abs().max(high.abs()))
}

/// A range around one value.
fn with_margins(value: f64) -> [f64; 2] {
    let margin = if value.abs() > SMALLEST { value.abs() / 10.0 } else { 1.0 };
    [value - margin, value + margin]
}

/// The next of 1, 2, 5, 10, 20, .. from this size on.
fn round_step(size: f64) -> f64 {
    let power = 10_f64.powf(size.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|factor| factor * power);
    // The sum of rounding errors must not double a step.
    steps.into_iter().find(|step| *step >= size * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// The multiples of a step in a range.
fn multiples(low: f64, high: f64, step: f64) -> Vec<f64> {
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    // No range has more than some ticks, whatever its numbers are.
    let count = (last - first).clamp(0.0, 50.0) as usize;
    (0..=count).map(|i| (first + i as f64) * step).map(|tick| tidy(tick, step)).collect()
}

/// The multiple without the error of its multiplication: 0.3 and not 0.30000000000000004.
fn tidy(tick: f64, step: f64) -> f64 {
    let decimals = (-step.log10().floor()).clamp(0.0, 15.0) as usize;
    if !(1e-12..1e15).contains(&step) {
        tick
    } else {
        format!("{tick:.decimals$}").parse().unwrap_or(tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::number;

    fn linear(values: &[f64], ticks: usize) -> (f64, f64, Vec<f64>) {
        let axis = ChartAxis::around(values.iter().copied(), false, ticks);
        (axis.low, axis.high, axis.ticks)
    }

    #[test]
    fn ticks_are_round_and_surround_the_values() {
        let (low, high, ticks) = linear(&[0.13, f64::NAN, 2.17, f64::INFINITY], 5);
        assert_eq!((low, high), (0.0, 2.5));
        assert_eq!(ticks, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
        assert_eq!(linear(&[0.9712, 0.9874], 4).2, [0.97, 0.975, 0.98, 0.985, 0.99]);
        assert_eq!(linear(&[3.0, 3.0], 3).2, [2.6, 2.8, 3.0, 3.2, 3.4]);
        assert_eq!(linear(&[0.0], 4).2, [-1.0, -0.5, 0.0, 0.5, 1.0]);
        assert_eq!(linear(&[], 4).2, [0.0, 0.5, 1.0]);
    }

    #[test]
    fn a_logarithmic_axis_has_powers_of_ten() {
        let axis = |values: &[f64]| {
            let axis = ChartAxis::around(values.iter().copied(), true, 6);
            assert!(axis.is_logarithmic);
            axis
        };
        assert_eq!(axis(&[0.002, 9.0]).ticks, [0.001, 0.01, 0.1, 1.0, 10.0]);
        assert_eq!(axis(&[0.05, 4.0, -1.0]).ticks, [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]);
        assert_eq!(axis(&[1e-30, 1e30]).ticks.len(), 7);
        let narrow = axis(&[0.5, 2.1]);
        assert!(narrow.low > 0.0 && narrow.ticks.len() >= 3, "{narrow:?}");
        assert!(!ChartAxis::around([-1.0, 0.0], true, 6).is_logarithmic);
        let half = axis(&[1.0, 1e4]).place(100.0).unwrap();
        assert!((half - 0.5).abs() < 1e-12);
        assert_eq!(axis(&[1.0, 1e4]).place(0.0), None);
    }

    #[test]
    fn no_number_breaks_an_axis() {
        let odd =
            [0.0, -0.0, 5e-324, 1e-300, 1.0, 1.0 + f64::EPSILON, 1e16, 1e300, f64::MAX, f64::MIN];
        for low in odd {
            for high in odd.into_iter().chain([f64::NAN, f64::INFINITY]) {
                for is_logarithmic in [false, true] {
                    let axis = ChartAxis::around([low, high], is_logarithmic, 5);
                    assert!(axis.ticks.len() < 60, "{axis:?}");
                    assert!(axis.place(low).is_none_or(f64::is_finite));
                    let labels = axis.ticks.iter().map(|tick| number(*tick));
                    assert!(labels.into_iter().all(|label| label.len() <= 12), "{axis:?}");
                }
            }
        }
    }
}
