//! A histogram: how many numbers are up to each of some bounds.

/// Bounds for run times and waits: from a millisecond to half an hour.
pub(super) const SECONDS_BOUNDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 900.0, 1800.0,
];

/// Bounds for numbers of tasks.
pub(super) const TASK_COUNT_BOUNDS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

/// A histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramCounts {
    bounds: &'static [f64],
    /// One more than bounds: the last is for what is above them all.
    counts: Vec<u64>,
    sum: f64,
}

impl HistogramCounts {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Returns a histogram that was counted elsewhere: one count for each bound, and one above them all.
    pub(super) fn from_counts(bounds: &'static [f64], counts: &[u64], sum: f64) -> Self {
        debug_assert_eq!(bounds.len() + 1, counts.len());
        Self { bounds, counts: counts.to_vec(), sum }
    }

    pub(super) fn observe(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }

    /// Takes in what another one with the same bounds has seen.
    pub(super) fn merge(&mut self, other: &Self) {
        debug_assert_eq!(self.bounds, other.bounds);
        self.counts.iter_mut().zip(&other.counts).for_each(|(to, from)| *to += from);
        self.sum += other.sum;
    }

    /// The upper bounds of the buckets, without the last, which has none.
    pub fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// How many numbers each bucket has, the last included.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Bounds, infinity being the last, and how many numbers are up to each.
    pub fn cumulative_counts(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        }))
    }

    /// All numbers added up.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// How many numbers there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_bucket_includes_its_upper_bound() {
        let mut buckets = HistogramCounts::new(TASK_COUNT_BOUNDS);
        [1.0, 2.0, 2.5, 9999.0].into_iter().for_each(|size| buckets.observe(size));
        assert_eq!(buckets.counts()[..3], [1, 1, 1]);
        assert_eq!(buckets.cumulative_counts().last(), Some((f64::INFINITY, 4)));
        let mut twice = buckets.clone();
        twice.merge(&buckets);
        assert_eq!((twice.count(), twice.sum()), (8, 2.0 * 10_004.5));
    }
}
