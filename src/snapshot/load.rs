//! From files to the next snapshot. Every file keeps its last good state: a bad filter does not
//! hold up a new CA, nor the other way round.

mod filter;
mod service;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::filter::FilterSource;
use self::service::ServiceSource;
use super::{Report, Routes, Service, Snapshot};
use crate::config::{Config, ServiceConfig};
use crate::guard::Guard;
use crate::metrics::ControlMetrics;
use crate::pkbf::{FileStamp, FilterError};
use crate::tls::{self, MaterialError};

/// A file that changed less than this ago is looked at again later: its writer may not be done.
pub(super) const SETTLE: Duration = Duration::from_millis(200);

/// Builds snapshots from the files that the configuration names.
#[derive(Debug)]
pub struct Loader {
    filters: Vec<FilterSource>,
    services: Vec<ServiceSource>,
    routes: Arc<Routes>,
    metrics: ControlMetrics,
    generation: u64,
    /// Whether a source has changed since the last snapshot was built.
    unbuilt: bool,
}

/// What a look at all files came to.
#[derive(Debug)]
pub struct Progress {
    /// The next snapshot, if anything changed for good.
    pub snapshot: Option<Snapshot>,
    /// Whether a file is being written to: look again soon.
    pub pending: bool,
}

/// Why there is nothing to start with.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A filter cannot be used.
    #[error("filter {name:?}: {}: {source}", path.display())]
    Filter {
        /// The filter's name.
        name: String,
        /// Its file.
        path: PathBuf,
        /// Why.
        source: FilterError,
    },
    /// A certificate, key or trust anchor cannot be used.
    #[error("service {service:?}: {what} {}: {source}", path.display())]
    Material {
        /// The service's name.
        service: String,
        /// The configuration key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: MaterialError,
    },
    /// A file cannot be read.
    #[error("service {service:?}: {what} {}: {source}", path.display())]
    Read {
        /// The service's name.
        service: String,
        /// The configuration key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// rustls refuses what was loaded.
    #[error("service {service:?}: TLS cannot be configured: {source}")]
    Tls {
        /// The service's name.
        service: String,
        /// Why.
        source: rustls::Error,
    },
}

impl Loader {
    /// Loads everything for the first time.
    ///
    /// # Errors
    /// Any file that cannot be used: there is no good state to fall back to.
    pub fn start(config: &Config, metrics: ControlMetrics) -> Result<(Self, Snapshot), LoadError> {
        let now = SystemTime::now();
        let filters = config.filters.iter().enumerate().map(|(index, filter)| {
            FilterSource::load(filter.clone(), metrics.filter(index).clone(), now)
        });
        let services = config.services.iter().cloned();
        let mut loader = Self {
            filters: filters.collect::<Result<_, _>>()?,
            services: services
                .map(|service| ServiceSource::load(service, now))
                .collect::<Result<_, _>>()?,
            routes: Arc::new(Routes::new(&config.services)),
            metrics,
            generation: 0,
            unbuilt: true,
        };
        let snapshot = loader.build()?;
        Ok((loader, snapshot))
    }

    /// Looks at every file and builds the next snapshot if any changed for good. What cannot be
    /// used is logged, counted and left out; what was in use stays.
    pub fn refresh(&mut self) -> Progress {
        let now = SystemTime::now();
        let filters = self.filters.iter_mut().map(|filter| filter.refresh(now));
        let services = self.services.iter_mut().map(|service| service.refresh(now));
        // Every source is looked at, whatever the ones before it came to.
        let changes: Vec<Change> = filters.chain(services).collect();
        let pending = changes.contains(&Change::Pending);
        self.unbuilt |= changes.contains(&Change::Replaced);
        if !self.unbuilt {
            return Progress { snapshot: None, pending };
        }
        let snapshot = self
            .build()
            .inspect_err(|error| tracing::error!(%error, "reload failed, snapshot kept"))
            .ok();
        Progress { snapshot, pending }
    }

    /// What is in use and what became of the last change of each file.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            generation: self.generation,
            filters: self.filters.iter().map(FilterSource::report).collect(),
            services: self.services.iter().map(ServiceSource::report).collect(),
        }
    }

    /// Every file that is named by path.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let filters = self.filters.iter().map(|filter| filter.path().to_owned());
        filters.chain(self.services.iter().flat_map(ServiceSource::paths)).collect()
    }

    fn build(&mut self) -> Result<Snapshot, LoadError> {
        let guard = Arc::new(Guard::new(self.filters.iter().map(FilterSource::named).collect()));
        let services = self.services.iter().enumerate();
        let services = services
            .map(|(index, source)| source.build(index, &guard).map(Arc::new))
            .collect::<Result<_, _>>()?;
        self.unbuilt = false;
        self.generation += 1;
        self.metrics.snapshots.inc();
        for source in &self.services {
            self.metrics.set_certificate_not_after(source.name(), source.not_after() as f64);
        }
        Ok(Snapshot {
            generation: self.generation,
            guard,
            services,
            routes: Arc::clone(&self.routes),
        })
    }
}

/// What a look at one source came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It is being written to.
    Pending,
    /// A new state is in use.
    Replaced,
    /// The state in use is as it was.
    Same,
}

/// What was seen of a file when it was last examined; while it stays so, there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    There(FileStamp),
    Unreadable(io::ErrorKind),
}

impl Seen {
    fn of(path: &Path) -> Self {
        match FileStamp::of(path) {
            Ok(stamp) => Self::There(stamp),
            Err(error) => Self::Unreadable(error.kind()),
        }
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        match self {
            Self::There(stamp) => stamp.changed_before(now, SETTLE),
            Self::Unreadable(_) => true,
        }
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
