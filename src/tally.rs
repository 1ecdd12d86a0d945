//! Metrics that every request changes. Each worker counts for itself: a counter that all of them wrote would move between their processors'
//! caches with every request, and the histogram of prometheus-client has a lock. Reading adds up.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::histogram::exponential_buckets;
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::array;
use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

/// A value for each worker. Threads beyond the number of processors share them.
#[derive(Debug)]
struct PerWorker<T>(Box<[CacheLine<T>]>);

/// A value that no other shares a cache line with.
#[derive(Default, Debug)]
#[repr(align(64))]
struct CacheLine<T>(T);

impl<T> PerWorker<T> {
    /// The value of this thread.
    fn own(&self) -> &T {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = THREADS.fetch_add(1, Relaxed);
        }
        let CacheLine(own) = &self.0[NUMBER.with(|number| number % self.0.len())];
        own
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|CacheLine(value)| value)
    }
}

impl<T: Default> Default for PerWorker<T> {
    fn default() -> Self {
        static PROCESSORS: LazyLock<usize> =
            LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));
        Self((0..*PROCESSORS).map(|_| CacheLine::default()).collect())
    }
}

/// A counter; clones are the same one.
#[derive(Clone, Default, Debug)]
pub struct WorkerCounter(Arc<PerWorker<AtomicU64>>);

impl WorkerCounter {
    /// Adds to it.
    pub fn inc_by(&self, more: u64) {
        self.0.own().fetch_add(more, Relaxed);
    }

    /// The sum.
    pub fn get(&self) -> u64 {
        self.0.all().map(|count| count.load(Relaxed)).sum()
    }
}

impl EncodeMetric for WorkerCounter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_counter::<NoLabelSet, _, u64>(&self.get(), None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for WorkerCounter {
    const TYPE: MetricType = MetricType::Counter;
}

/// Number of bounds of a histogram. One more bucket is for all longer durations.
const BOUNDS: usize = 20;

/// A histogram of durations in seconds; clones are the same one. Each bound is twice the one before.
#[derive(Clone, Debug)]
pub struct WorkerHistogram {
    bounds: Arc<[f64]>,
    buckets: Arc<PerWorker<Buckets>>,
}

#[derive(Debug)]
struct Buckets {
    counts: [AtomicU64; BOUNDS + 1],
    sum_nanos: AtomicU64,
}

impl Default for Buckets {
    fn default() -> Self {
        Self {
            counts: array::from_fn(|_| AtomicU64::new(0)),
            sum_nanos: AtomicU64::new(0),
        }
    }
}

impl WorkerHistogram {
    /// A histogram whose smallest bound is this number of seconds.
    pub fn new(first_bound: f64) -> Self {
        Self {
            bounds: exponential_buckets(first_bound, 2.0, BOUNDS as u16).collect(),
            buckets: Arc::default(),
        }
    }

    /// Adds a duration.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        let own = self.buckets.own();
        own.counts[bucket].fetch_add(1, Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        own.sum_nanos.fetch_add(nanos, Relaxed);
    }
}

impl EncodeMetric for WorkerHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut buckets: Vec<(f64, u64)> = bounds.map(|bound| (bound, 0)).collect();
        let mut sum_seconds = 0.0;
        for own in self.buckets.all() {
            for ((_, sum), count) in buckets.iter_mut().zip(&own.counts) {
                *sum += count.load(Relaxed);
            }
            sum_seconds += own.sum_nanos.load(Relaxed) as f64 / 1e9;
        }
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(sum_seconds, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for WorkerHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode_registry;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::{Metric, Registry};

    fn text(metric: impl Metric) -> String {
        let mut registry = Registry::default();
        registry.register("name", "help", metric);
        let mut text = String::new();
        encode_registry(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn metrics_of_threads_read_like_those_of_the_library() {
        // Exact in binary, so the order of additions does not change the sum.
        let durations = [0, 250_000_000, 500_000_000, 750_000_000, 64_000_000_000];
        let counter = WorkerCounter::default();
        let histogram = WorkerHistogram::new(0.25);
        let expected_counter = Counter::<u64>::default();
        let expected_histogram = Histogram::new(exponential_buckets(0.25, 2.0, BOUNDS as u16));
        thread::scope(|scope| {
            for number in 0..9 {
                let counter = &counter;
                let histogram = &histogram;
                scope.spawn(move || {
                    counter.inc_by(number);
                    for nanos in durations {
                        histogram.observe(Duration::from_nanos(nanos));
                    }
                });
                expected_counter.inc_by(number);
                for nanos in durations {
                    expected_histogram.observe(nanos as f64 / 1e9);
                }
            }
        });
        assert_eq!(counter.get(), 36);
        assert_eq!(text(counter), text(expected_counter));
        assert_eq!(text(histogram), text(expected_histogram));
    }
}
