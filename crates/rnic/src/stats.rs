//! Order statistics of measured samples.
use std::time::Duration;

/// Quantiles of one set of durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Summary {
    /// How many samples there were.
    pub(crate) count: usize,
    /// The shortest, in nanoseconds.
    pub(crate) min: u64,
    /// The median, in nanoseconds.
    pub p50: u64,
    /// The 99th percentile, in nanoseconds.
    pub p99: u64,
    /// The longest, in nanoseconds.
    pub(crate) max: u64,
}

impl Summary {
    /// Sorts the samples (nanoseconds) and takes the quantiles by nearest rank. `None` without samples.
    pub(crate) fn of(samples: &mut [u64]) -> Option<Self> {
        samples.sort_unstable();
        Some(Self {
            count: samples.len(),
            min: *samples.first()?,
            p50: quantile(samples, 0.50)?,
            p99: quantile(samples, 0.99)?,
            max: *samples.last()?,
        })
    }
}

/// The nearest-rank quantile of sorted samples: the smallest sample that at least `q` of all do not exceed.
fn quantile(sorted: &[u64], q: f64) -> Option<u64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// The median; the mean of the middle two for an even count. `None` without samples.
pub(crate) fn median(samples: &mut [f64]) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    let middle = samples.len() / 2;
    let upper = *samples.get(middle)?;
    if samples.len() % 2 == 1 { Some(upper) } else { Some((samples[middle - 1] + upper) / 2.0) }
}

/// Decimal gigabits a second.
pub(crate) fn gbit_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e9 / time.as_secs_f64().max(1e-9)
}

/// Nanoseconds as microseconds.
pub(crate) fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let mut samples: Vec<u64> = (1..=100).rev().collect();
        let summary = Summary::of(&mut samples).unwrap();
        assert_eq!(summary, Summary { count: 100, min: 1, p50: 50, p99: 99, max: 100 });
        assert_eq!(Summary::of(&mut [7]).unwrap(), Summary { count: 1, min: 7, p50: 7, p99: 7, max: 7 });
        assert_eq!(Summary::of(&mut []), None);
    }

    #[test]
    fn the_99th_of_few_is_the_longest() {
        let mut samples = vec![1, 2, 3];
        assert_eq!(Summary::of(&mut samples).unwrap().p99, 3);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn rates_are_decimal() {
        assert!((gbit_per_s(125_000_000, Duration::from_secs(1)) - 1.0).abs() < 1e-9);
    }
}
