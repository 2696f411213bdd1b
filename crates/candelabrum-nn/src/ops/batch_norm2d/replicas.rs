//! The exchange of batch statistics between the replicas of a model.
//!
//! Each replica sends its count `n`, mean `m` and variance `v` by channel. Two parts are combined
//! as in Chan, Golub and LeVeque (Updating formulae and a pairwise algorithm for computing sample
//! variances, 1979). The order is that of the replicas, so all replicas compute the same bits:
//!
//! ```text
//! n = na + nb    d = mb - ma    m = ma + d nb / n    v = (va na + vb nb) / n + d^2 na nb / n^2
//! ```

use candle_core::{Result, bail};

use super::config::NAME;
use crate::StatisticsExchange;
use crate::kernels::float::Float;
use crate::kernels::moments::Moments;

/// The number of values per channel, and their moments by channel, over all replicas, computed from
/// this replica's shift, rest and variance by channel.
pub(super) fn all_moments<T: Float>(
    exchange: &dyn StatisticsExchange,
    count: usize,
    own: &[f64],
) -> Result<(f64, Vec<Moments<T>>)> {
    let mut message = vec![count as f64];
    message.extend_from_slice(own);
    let gathered = all_gather(exchange, &message)?;
    let parts: Vec<&[f64]> = gathered.chunks_exact(message.len()).collect();
    let total: f64 = parts.iter().map(|part| part[0]).sum();
    if total < 2.0 {
        bail!(
            "{NAME}: more than one value per channel is needed in training, all replicas' batches together have {total}"
        );
    }
    let channels = (1..message.len()).step_by(3);
    let moments = channels.map(|at| {
        let filled = parts.iter().filter(|part| part[0] > 0.0);
        let parts = filled.map(|part| ReplicaPart {
            count: part[0],
            shift: part[at],
            rest: part[at + 1],
            variance: part[at + 2],
        });
        parts.reduce(ReplicaPart::and).map_or_else(no_moments, ReplicaPart::moments)
    });
    Ok((total, moments.collect()))
}

/// The number of values per channel and the total of each of `sums` over all replicas.
pub(super) fn all_sums(
    exchange: &dyn StatisticsExchange,
    count: usize,
    sums: &[f64],
) -> Result<(f64, Vec<f64>)> {
    let mut message = vec![count as f64];
    message.extend_from_slice(sums);
    let gathered = all_gather(exchange, &message)?;
    let (totals, others) = gathered.split_at(message.len());
    let mut totals = totals.to_vec();
    for other in others.chunks_exact(message.len()) {
        totals.iter_mut().zip(other).for_each(|(total, other)| *total += other);
    }
    let sums = totals.split_off(1);
    Ok((totals[0], sums))
}

fn all_gather(exchange: &dyn StatisticsExchange, message: &[f64]) -> Result<Vec<f64>> {
    let gathered = exchange.all_gather(message)?;
    if gathered.is_empty() || !gathered.len().is_multiple_of(message.len()) {
        let (got, sent) = (gathered.len(), message.len());
        bail!("{NAME}: {exchange:?} gave {got} numbers where every replica sent {sent}");
    }
    Ok(gathered)
}

/// [`Moments`] of some of the values. The mean is `shift + rest` and may differ much from `shift`.
#[derive(Clone, Copy, Debug)]
struct ReplicaPart {
    count: f64,
    shift: f64,
    rest: f64,
    variance: f64,
}

impl ReplicaPart {
    /// Combines both parts. Means are compared as differences from `self.shift`, because a large
    /// mean would take the digits of a small difference.
    fn and(self, other: Self) -> Self {
        let count = self.count + other.count;
        let (share, rest_share) = (other.count / count, self.count / count);
        let difference = (other.shift - self.shift) + (other.rest - self.rest);
        let rest = self.rest + difference * share;
        let within = self.variance * rest_share + other.variance * share;
        let variance = within + difference * difference * share * rest_share;
        Self { count, shift: self.shift, rest, variance }.normal()
    }

    /// The same part with as much of the mean in `shift` as fits.
    fn normal(self) -> Self {
        let shift = self.shift + self.rest;
        Self { shift, rest: (self.shift - shift) + self.rest, ..self }
    }

    fn moments<T: Float>(self) -> Moments<T> {
        let shift = T::narrow(self.shift);
        let rest = (self.shift - shift.widen()) + self.rest;
        Moments { shift, rest, variance: self.variance }
    }
}

/// The moments of a channel without values: the mean does not exist and is not used.
fn no_moments<T: Float>() -> Moments<T> {
    Moments { shift: T::zero(), rest: 0.0, variance: 0.0 }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::kernels::moments::moments;

    /// The last replica, which has the values of the other replicas.
    #[derive(Debug, Default)]
    struct Last(Mutex<Vec<f64>>);

    impl StatisticsExchange for Last {
        fn all_gather(&self, values: &[f64]) -> Result<Vec<f64>> {
            let mut sent = self.0.lock().expect("nobody panics");
            sent.extend_from_slice(values);
            Ok(sent.clone())
        }
    }

    fn message<T: Float>(xs: &[T]) -> [f64; 3] {
        let Moments { shift, rest, variance } = moments(xs.chunks(7), xs.len());
        [shift.widen(), rest, variance]
    }

    #[test]
    fn parts_of_any_size_make_the_whole() {
        // If the mean is large compared with the deviation, subtracting squares loses digits.
        for offset in [0.0, -3.0, 1e9] {
            let deviations: Vec<f64> = (0..60).map(|i| f64::from(i * 7 % 13) / 8.0).collect();
            let xs: Vec<f64> = deviations.iter().map(|x| x + offset).collect();
            let mean = deviations.iter().sum::<f64>() / 60.0;
            let variance = deviations.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 60.0;

            let exchange = Last::default();
            let mut found = None;
            for range in [0..0, 0..17, 17..18, 18..18, 18..60] {
                found = all_moments::<f64>(&exchange, range.len(), &message(&xs[range])).ok();
            }
            let Some((count, found)) = found else { panic!("no moments") };
            assert_eq!(count, 60.0);
            let found_mean = (found[0].shift - offset) + found[0].rest;
            assert!((found_mean - mean).abs() < 1e-12, "{found:?}, {mean}");
            assert!((found[0].variance / variance - 1.0).abs() < 1e-12, "{found:?}, {variance}");
        }
    }

    #[test]
    fn one_replica_alone_keeps_its_bits() -> Result<()> {
        let xs = [0.1_f32, 0.7, 1e4, -3.3];
        let own = moments(xs.chunks(4), 4);
        for empty_before in [false, true] {
            let exchange = Last::default();
            if empty_before {
                assert!(all_moments::<f32>(&exchange, 0, &[f64::NAN; 3]).is_err());
            }
            let (count, found) = all_moments::<f32>(&exchange, 4, &message(&xs))?;
            assert_eq!(count, 4.0);
            assert_eq!(found[0].shift.to_bits(), own.shift.to_bits());
            assert_eq!(found[0].rest.to_bits(), own.rest.to_bits());
            assert_eq!(found[0].variance.to_bits(), own.variance.to_bits());
        }
        Ok(())
    }

    #[test]
    fn an_answer_of_another_length_is_refused() {
        #[derive(Debug)]
        struct Short;
        impl StatisticsExchange for Short {
            fn all_gather(&self, values: &[f64]) -> Result<Vec<f64>> {
                Ok(values[1..].to_vec())
            }
        }
        let error = all_sums(&Short, 4, &[1.0, 2.0]).expect_err("two numbers are not three");
        assert!(error.to_string().contains("Short gave 2 numbers"), "{error}");
    }
}
