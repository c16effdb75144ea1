//! `series!` declares series once: handle, name, labels, buckets and help. It makes a struct of
//! handles, and a struct of the registered series with all values of their labels.

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::labels::{Family, Label};

/// The prefix of all names.
const NAMESPACE: &str = "keygate";

/// The description of a series.
#[derive(Debug)]
pub(super) struct Series<'a> {
    /// Name without the prefix.
    pub(super) name: &'a str,
    pub(super) labels: &'a [&'a str],
    /// Upper bounds of the buckets of a histogram.
    pub(super) buckets: &'a [f64],
    pub(super) help: &'a str,
}

/// A handle of a series, or handles for all values of its last labels.
pub(super) trait Handle: Sized {
    /// The series with all values of its labels.
    type Vec: Collector + Clone + 'static;

    /// The series; an error if its name or its labels are invalid.
    fn collector(series: &Series<'_>) -> Result<Self::Vec, prometheus::Error>;

    /// The handle for these values of the first labels; at zero if it is new.
    fn resolve(vec: &Self::Vec, values: &[&str]) -> Self;

    /// Removes the gauge with these values. Other series stay.
    fn remove_gauge(_: &Self::Vec, _: &[&str]) {}
}

/// Series of which the gauges can be removed.
pub(super) trait RemoveGauges {
    /// Removes the gauges whose only label has this value.
    fn remove_gauges(&self, value: &str);
}

/// Registers a series.
pub(super) fn register<H: Handle>(
    registry: &Registry,
    series: &Series<'_>,
) -> Result<H::Vec, prometheus::Error> {
    let vec = H::collector(series)?;
    registry.register(Box::new(vec.clone()))?;
    Ok(vec)
}

fn opts(series: &Series<'_>) -> Opts {
    Opts::new(series.name, series.help).namespace(NAMESPACE)
}

fn histogram_opts(series: &Series<'_>) -> HistogramOpts {
    HistogramOpts::from(opts(series)).buckets(series.buckets.to_vec())
}

/// Sets a gauge to a number of things.
pub(super) fn set_count(gauge: &IntGauge, count: impl TryInto<i64>) {
    gauge.set(count.try_into().unwrap_or(i64::MAX));
}

/// Makes the counters with these values for all values of the last label.
pub(super) fn at_zero(counters: &IntCounterVec, values: &[&str], last: &[impl Label]) {
    for label in last {
        let _ = counters.with_label_values(&[values, &[label.as_str()]].concat());
    }
}

/// Implements [`Handle`] for a metric, and for its vector, whose labels are resolved at each use.
macro_rules! handles {
    ($($handle:ty, $vec:ty, $opts:ident $(, $remove:ident)?;)+) => { $(
        impl Handle for $handle {
            type Vec = $vec;

            fn collector(series: &Series<'_>) -> Result<Self::Vec, prometheus::Error> {
                <$vec>::new($opts(series), series.labels)
            }

            fn resolve(vec: &Self::Vec, values: &[&str]) -> Self {
                vec.with_label_values(values)
            }

            $(fn remove_gauge(vec: &Self::Vec, values: &[&str]) {
                let _ = vec.$remove(values); // fails only if there is none
            })?
        }

        impl Handle for $vec {
            type Vec = Self;

            fn collector(series: &Series<'_>) -> Result<Self, prometheus::Error> {
                <$handle>::collector(series)
            }

            fn resolve(vec: &Self, _: &[&str]) -> Self {
                vec.clone()
            }
        }
    )+ };
}

handles! {
    Gauge, GaugeVec, opts, remove_label_values;
    Histogram, HistogramVec, histogram_opts;
    IntCounter, IntCounterVec, opts;
    IntGauge, IntGaugeVec, opts, remove_label_values;
}

/// The last label is `L`.
impl<L: Label, H: Handle> Handle for Family<L, H> {
    type Vec = H::Vec;

    fn collector(series: &Series<'_>) -> Result<Self::Vec, prometheus::Error> {
        H::collector(series)
    }

    fn resolve(vec: &Self::Vec, values: &[&str]) -> Self {
        Self::new(|last| H::resolve(vec, &[values, &[last]].concat()))
    }
}

/// A label is `false` or `true`.
impl<H: Handle> Handle for [H; 2] {
    type Vec = H::Vec;

    fn collector(series: &Series<'_>) -> Result<Self::Vec, prometheus::Error> {
        H::collector(series)
    }

    fn resolve(vec: &Self::Vec, values: &[&str]) -> Self {
        ["false", "true"].map(|value| H::resolve(vec, &[values, &[value]].concat()))
    }
}

/// Declares `struct HANDLES, SERIES`, each field as `field: Handle = NAME[LABELS] in BUCKETS HELP`.
/// `with` adds fields to the handles that are no series.
macro_rules! series {
    ($(#[$meta:meta])* $vis:vis struct $handles:ident, $all:ident {
        $($field_vis:vis $field:ident: $handle:ty
            = $name:literal[$($label:literal),*] $(in $buckets:ident)? $help:literal,)+
    } $(with {
        $($(#[$other_meta:meta])* $other_vis:vis $other:ident: $other_type:ty,)+
    })?) => {
        $(#[$meta])*
        #[derive(Debug, Clone)]
        $vis struct $handles {
            $(#[doc = $help] $field_vis $field: $handle,)+
            $($($(#[$other_meta])* $other_vis $other: $other_type,)+)?
        }

        /// The series with all values of their labels.
        #[derive(Debug, Clone)]
        pub(super) struct $all {
            $($field: <$handle as $crate::metrics::series::Handle>::Vec,)+
        }

        impl $all {
            pub(super) fn register(
                registry: &prometheus::Registry,
            ) -> Result<Self, prometheus::Error> {
                use $crate::metrics::series::{Series, register};
                Ok(Self { $(
                    $field: register::<$handle>(registry, &Series {
                        name: $name,
                        labels: &[$($label),*],
                        buckets: [$($buckets,)? &[]][0],
                        help: $help,
                    })?,
                )+ })
            }

            /// The handles for these values of the first labels; at zero if they are new.
            pub(super) fn handles(
                &self,
                values: &[&str],
                $($($other: $other_type,)+)?
            ) -> $handles {
                use $crate::metrics::series::Handle;
                $handles {
                    $($field: Handle::resolve(&self.$field, values),)+
                    $($($other,)+)?
                }
            }
        }

        impl $crate::metrics::series::RemoveGauges for $all {
            fn remove_gauges(&self, value: &str) {
                use $crate::metrics::series::Handle;
                $(<$handle>::remove_gauge(&self.$field, &[value]);)+
            }
        }
    };
}
pub(super) use series;
