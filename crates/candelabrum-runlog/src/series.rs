//! A value over the steps of a run, and what a curve of it needs: smoothing, and fewer points.

/// A value at a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesPoint {
    /// The number of steps done.
    pub step: u64,
    /// Unix time in seconds.
    pub time: f64,
    /// The value. It may be NaN or infinite.
    pub value: f64,
}

/// The points of one value.
///
/// **Invariant** Each point has a larger step than the one before: a point of an earlier or equal step
/// removes what it repeats.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    points: Vec<SeriesPoint>,
}

impl Series {
    /// The points, in the order of their steps.
    pub fn points(&self) -> &[SeriesPoint] {
        &self.points
    }

    /// Adds a point. Points of the same or of later steps are removed. Returns their number.
    pub fn push(&mut self, point: SeriesPoint) -> usize {
        let removed = match self.points.last() {
            Some(last) if last.step >= point.step => self.cut(point.step.checked_sub(1)),
            _ => 0,
        };
        self.points.push(point);
        removed
    }

    /// Removes all points after this step, or all points. Returns their number.
    pub(crate) fn cut(&mut self, last: Option<u64>) -> usize {
        let kept = last.map_or(0, |last| self.points.partition_point(|point| point.step <= last));
        let removed = self.points.len() - kept;
        self.points.truncate(kept);
        removed
    }

    /// The last value that is a number.
    pub fn last_finite(&self) -> Option<SeriesPoint> {
        self.points.iter().rev().find(|point| point.value.is_finite()).copied()
    }

    /// The point with the smallest value, or with the largest one. Of equal ones, the first.
    pub fn best(&self, largest: bool) -> Option<SeriesPoint> {
        let sign = if largest { -1.0 } else { 1.0 };
        let finite = self.points.iter().filter(|point| point.value.is_finite());
        finite.min_by(|a, b| (sign * a.value).total_cmp(&(sign * b.value))).copied()
    }

    /// The number of values that are NaN or infinite.
    pub fn not_finite(&self) -> usize {
        self.points.iter().filter(|point| !point.value.is_finite()).count()
    }

    /// The exponential moving average of the values over about `span` points. With a span of 1 or less
    /// the values are unchanged. It is corrected for its beginning, as in Adam. A value that is NaN or
    /// infinite stays a gap and changes no other value.
    pub fn smoothed(&self, span: f64) -> Vec<SeriesPoint> {
        let keep = 1.0 - 1.0 / span.max(1.0);
        let (mut sum, mut weight) = (0.0, 0.0);
        let smooth = |point: &SeriesPoint| {
            if !point.value.is_finite() {
                return SeriesPoint { value: f64::NAN, ..*point };
            }
            (sum, weight) = (keep * sum + (1.0 - keep) * point.value, keep * weight + 1.0 - keep);
            SeriesPoint { value: sum / weight, ..*point }
        };
        self.points.iter().map(smooth).collect()
    }

    /// At most `most` (at least 4) of the points: the smallest and the largest value of each stretch, as a
    /// gap a value that is no finite number, and the last point.
    pub fn decimated(points: &[SeriesPoint], most: usize) -> Vec<SeriesPoint> {
        if points.len() <= most {
            return points.to_vec();
        }
        let length = points.len().div_ceil((most.saturating_sub(1) / 3).max(1));
        let mut kept = Vec::with_capacity(most);
        for stretch in points.chunks(length) {
            let numbers = || (0..stretch.len()).filter(|i| stretch[*i].value.is_finite());
            let order = |a: &usize, b: &usize| stretch[*a].value.total_cmp(&stretch[*b].value);
            let gap = stretch.iter().position(|point| !point.value.is_finite());
            let mut chosen = Vec::new();
            chosen.extend(numbers().min_by(order));
            chosen.extend(numbers().max_by(order));
            chosen.extend(gap);
            chosen.sort_unstable();
            chosen.dedup();
            kept.extend(chosen.into_iter().map(|i| stretch[i]));
        }
        let last = points.last().filter(|last| kept.last().is_none_or(|k| k.step != last.step));
        kept.extend(last);
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        let mut series = Series::default();
        for (i, &value) in values.iter().enumerate() {
            series.push(SeriesPoint { step: i as u64 + 1, time: i as f64, value });
        }
        series
    }

    fn steps(points: &[SeriesPoint]) -> Vec<u64> {
        points.iter().map(|point| point.step).collect()
    }

    #[test]
    fn a_step_that_comes_again_replaces_itself_and_all_later_ones() {
        let mut series = series(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(series.push(SeriesPoint { step: 3, time: 9.0, value: 7.0 }), 2);
        assert_eq!(steps(series.points()), [1, 2, 3]);
        assert_eq!(series.points()[2].value, 7.0);
        assert_eq!(series.push(SeriesPoint { step: 0, time: 9.0, value: 8.0 }), 3);
        assert_eq!(steps(series.points()), [0]);
    }

    #[test]
    fn the_best_and_the_last_are_numbers() {
        let series = series(&[f64::NAN, 3.0, 1.0, 5.0, 1.0, f64::NEG_INFINITY]);
        assert_eq!(series.best(false).unwrap().step, 3);
        assert_eq!(series.best(true).unwrap().step, 4);
        assert_eq!(series.last_finite().unwrap().step, 5);
        assert_eq!(series.not_finite(), 2);
        assert_eq!(self::series(&[f64::NAN]).best(true), None);
    }

    #[test]
    fn smoothing_keeps_constants_and_gaps() {
        let values = |span, values: &[f64]| -> Vec<f64> {
            series(values).smoothed(span).iter().map(|point| point.value).collect()
        };
        assert_eq!(values(1.0, &[3.0, 5.0, 4.0]), [3.0, 5.0, 4.0]);
        assert!(values(10.0, &[2.0; 20]).iter().all(|value| (value - 2.0).abs() < 1e-12));
        let gap = values(2.0, &[1.0, f64::INFINITY, 2.0]);
        assert!(gap[0] == 1.0 && gap[1].is_nan());
        // Weights 1/4 and 1/2 of the values, divided by their sum.
        assert!((gap[2] - (0.25 + 0.5 * 2.0) / 0.75).abs() < 1e-12, "{gap:?}");
    }

    #[test]
    fn fewer_points_keep_every_peak_and_gap() {
        let mut values: Vec<f64> = (0..10_000).map(|i| f64::from(i % 7)).collect();
        (values[1234], values[5678], values[8765]) = (99.0, -99.0, f64::NAN);
        let series = series(&values);
        let kept = Series::decimated(series.points(), 300);
        assert!(kept.len() <= 300 && kept.len() > 190, "{}", kept.len());
        assert!(steps(&kept).is_sorted());
        for step in [1235, 5679, 8766, 10_000] {
            assert!(steps(&kept).contains(&step), "{step}");
        }
        assert_eq!(steps(&Series::decimated(&kept, 300)), steps(&kept), "few enough points stay");
        assert!(Series::decimated(series.points(), 0).len() <= 4);
    }
}
