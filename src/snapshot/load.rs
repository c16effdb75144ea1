//! From files to the next snapshot. Every file keeps its last good state: a bad filter does not
//! hold up a new CA, nor the other way round.

mod canary;
mod check;
mod exceptions;
mod filter;
mod list;
mod mark;
mod service;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::exceptions::Exceptions;
pub use self::filter::AcceptError;
use self::filter::FilterSource;
pub use self::list::ListFileError;
use self::list::ListSource;
use self::mark::Marks;
pub use self::service::OwnKey;
use self::service::ServiceSource;
use super::{Refusal, Report, Routes, Service, Snapshot};
use crate::config::{Config, ServiceConfig};
use crate::guard::{CurrentGuard, Decision, Guard, NamedFilter, Policy, RecentKeys};
use crate::metrics::{ControlMetrics, Label, Role};
use crate::pkbf::FileStamp;
use crate::tls::{self, MaterialError};

/// A file that changed less than this ago is looked at again later: its writer may not be done.
pub(super) const SETTLE: Duration = Duration::from_millis(200);

/// Builds snapshots from the files that the configuration names.
#[derive(Debug)]
pub struct Loader {
    filters: Vec<FilterSource>,
    lists: Vec<ListSource>,
    exceptions: Exceptions,
    services: Vec<ServiceSource>,
    routes: Arc<Routes>,
    metrics: ControlMetrics,
    /// What handshakes ask: a connection keeps this, and through it no old filter.
    guard: CurrentGuard,
    recent: RecentKeys,
    marks: Marks,
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
    /// Whether an exception has ended: keys that it covered are to be judged again.
    pub exception_ended: bool,
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
        source: Refusal,
    },
    /// A list cannot be used.
    #[error("list {name:?}: {}: {source}", path.display())]
    List {
        /// The list's name.
        name: String,
        /// Its file.
        path: PathBuf,
        /// Why.
        source: ListFileError,
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
    /// A key of our own is in a filter or on a list.
    #[error(
        "{0}: anybody may have its private half; replace it, or set allow_compromised_own_key = true"
    )]
    OwnKey(OwnKey),
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
    /// What was in use before the last restart cannot be known, or not be remembered for the next.
    #[error(
        "state {}: {source}; make the directory writable, or remove the file to forget which filters were in use",
        path.display()
    )]
    State {
        /// The state file.
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
    /// Loads everything for the first time. Updates are tried on the keys in `recent`.
    ///
    /// # Errors
    /// Any file that cannot be used: there is no good state to fall back to.
    pub fn start(
        config: &Config,
        metrics: ControlMetrics,
        recent: RecentKeys,
    ) -> Result<(Self, Snapshot), LoadError> {
        let now = SystemTime::now();
        let directory = config.state_dir.as_deref();
        let marks = Marks::read(directory).map_err(|source| LoadError::State {
            path: directory.map(mark::file_in).unwrap_or_default(),
            source,
        })?;
        let filters = config.filters.iter().enumerate().map(|(index, filter)| {
            let (metrics, mark) = (metrics.filter(index).clone(), marks.of(&filter.name));
            FilterSource::load(filter.clone(), metrics, mark, now)
        });
        let lists =
            config.lists.iter().enumerate().map(|(index, list)| {
                ListSource::load(list.clone(), metrics.list(index).clone(), now)
            });
        let services = config.services.iter().cloned();
        let mut loader = Self {
            filters: filters.collect::<Result<_, _>>()?,
            lists: lists.collect::<Result<_, _>>()?,
            exceptions: Exceptions::new(&config.exceptions, &metrics),
            services: services
                .map(|service| ServiceSource::load(service, now))
                .collect::<Result<_, _>>()?,
            routes: Arc::new(Routes::new(&config.services)),
            metrics,
            guard: CurrentGuard::from(Guard::default()),
            recent,
            marks,
            generation: 0,
            unbuilt: true,
        };
        loader.exceptions.look(now);
        let snapshot = loader.build()?;
        loader.check_own_keys(&snapshot.guard, now)?;
        Ok((loader, snapshot))
    }

    /// Looks at every file and builds the next snapshot if any changed for good. What cannot be
    /// used is logged, counted and left out; what was in use stays.
    pub fn refresh(&mut self) -> Progress {
        let now = SystemTime::now();
        let exception_ended = self.exceptions.look(now);
        let trial = Trial::of(self);
        let filters = self.filters.iter_mut().enumerate().map(|(index, filter)| {
            filter.refresh(now, |update| trial.new_hits(&self.recent, index, update))
        });
        let lists = self.lists.iter_mut().map(|list| list.refresh(now));
        let services = self.services.iter_mut().map(|service| service.refresh(now));
        // Every source is looked at, whatever the ones before it came to.
        let changes: Vec<Change> = filters.chain(lists).chain(services).collect();
        let pending = changes.contains(&Change::Pending);
        self.unbuilt |= changes.contains(&Change::Replaced);
        if !self.unbuilt {
            return Progress { snapshot: None, pending, exception_ended };
        }
        let snapshot = self
            .build()
            .inspect_err(|error| tracing::error!(%error, "reload failed, snapshot kept"))
            .ok();
        if let Some(snapshot) = &snapshot
            && let Err(error) = self.check_own_keys(&snapshot.guard, now)
        {
            tracing::error!(%error, "a key of our own is compromised");
        }
        Progress { snapshot, pending, exception_ended }
    }

    /// How long it is until the next exception ends.
    #[must_use]
    pub fn next_end(&self) -> Option<Duration> {
        self.exceptions.next_end(SystemTime::now())
    }

    /// Lets the update of a filter through that waits for the operator, if it is the one with this
    /// SHA-256. [`Loader::refresh`] then puts it to use.
    ///
    /// # Errors
    /// There is no such filter, nothing waits, or another update does.
    pub fn accept(&mut self, filter: &str, sha256: &[u8; 32]) -> Result<(), AcceptError> {
        match self.filters.iter_mut().find(|source| source.name() == filter) {
            Some(source) => source.accept(sha256),
            None => Err(AcceptError::Unknown { filter: filter.to_owned() }),
        }
    }

    /// Whether the update that was let through has been put to use since.
    ///
    /// # Errors
    /// Why not.
    pub fn has_accepted(&self, filter: &str, sha256: &[u8; 32]) -> Result<(), AcceptError> {
        match self.filters.iter().find(|source| source.name() == filter) {
            Some(source) => source.has_accepted(sha256),
            None => Err(AcceptError::Unknown { filter: filter.to_owned() }),
        }
    }

    /// Writes down which filters are in use, if the configuration names a state directory: after a
    /// restart, older ones are refused.
    ///
    /// # Errors
    /// The state cannot be written.
    pub fn remember(&mut self) -> Result<(), LoadError> {
        let marks = self.filters.iter().map(|source| (source.name().to_owned(), source.mark()));
        let path = self.marks.file().map(Path::to_owned).unwrap_or_default();
        self.marks.keep(marks).map_err(|source| LoadError::State { path, source })
    }

    /// What is in use and what became of the last change of each file.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            generation: self.generation,
            filters: self.filters.iter().map(FilterSource::report).collect(),
            lists: self.lists.iter().map(ListSource::report).collect(),
            exceptions: self.exceptions.report(),
            services: self.services.iter().map(ServiceSource::report).collect(),
        }
    }

    /// Every file that is named by path.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let filters = self.filters.iter().flat_map(FilterSource::paths);
        let lists = self.lists.iter().map(ListSource::path);
        filters.chain(lists).chain(self.services.iter().flat_map(ServiceSource::paths)).collect()
    }

    /// Judges the keys of our own like those of clients: who finds one can be taken for us, or issue
    /// certificates to anybody.
    ///
    /// # Errors
    /// The first that is a hit, of a service that does not tolerate it.
    fn check_own_keys(&self, guard: &Guard, now: SystemTime) -> Result<(), LoadError> {
        let mut first = Ok(());
        for source in &self.services {
            let found = source.compromised_keys(guard, now);
            for role in Role::ALL {
                let count = found.iter().filter(|key| key.role == *role).count();
                self.metrics.set_own_key_compromised(source.name(), *role, count);
            }
            for key in found {
                if source.tolerates_compromised_keys() {
                    tracing::warn!(problem = %key, "a key of our own is compromised");
                } else if first.is_ok() {
                    first = Err(LoadError::OwnKey(key));
                }
            }
        }
        first
    }

    fn filters(&self) -> Vec<Arc<NamedFilter>> {
        self.filters.iter().map(|source| Arc::clone(source.named())).collect()
    }

    fn build(&mut self) -> Result<Snapshot, LoadError> {
        let lists = self.lists.iter().map(|source| Arc::clone(source.list()));
        let guard = Guard::new(self.filters()).with_lists(lists.collect());
        let guard = Arc::new(guard.with_exceptions(self.exceptions.all()));
        let services = self.services.iter().enumerate();
        let services = services
            .map(|(index, source)| source.build(index, &self.guard).map(Arc::new))
            .collect::<Result<_, _>>()?;
        // Before the snapshot itself: a handshake that is under way meets the newer filter.
        self.guard.replace(Arc::clone(&guard));
        self.unbuilt = false;
        self.generation += 1;
        self.metrics.snapshots.inc();
        for source in &self.services {
            self.metrics.set_certificate_not_after(source.name(), source.not_after() as f64);
            if let Some(next) = source.crl_next_update() {
                self.metrics.set_crl_next_update(source.name(), next as f64);
            }
        }
        Ok(Snapshot {
            generation: self.generation,
            guard,
            services,
            routes: Arc::clone(&self.routes),
        })
    }
}

/// What an update is tried against: the filters in use, and what each service does.
struct Trial {
    filters: Vec<Arc<NamedFilter>>,
    policies: Vec<Policy>,
}

impl Trial {
    fn of(loader: &Loader) -> Self {
        let policies = loader.services.iter().map(ServiceSource::policy);
        Self { filters: loader.filters(), policies: policies.collect() }
    }

    /// How many of the keys in `recent` are admitted as things are, and would be refused with
    /// `update` in place of the filter at `index`.
    fn new_hits(&self, recent: &RecentKeys, index: usize, update: &Arc<NamedFilter>) -> usize {
        let after = self.filters.iter().enumerate();
        let after = after.map(|(at, filter)| if at == index { update } else { filter });
        let after = Guard::new(after.cloned().collect());
        let before = Guard::new(self.filters.clone());
        recent.count(|service, forms| {
            let refuses = |guard: &Guard| {
                self.policies.get(service).is_some_and(|policy| {
                    policy.decide(&guard.judge_forms(forms)) == Decision::Reject
                })
            };
            refuses(&after) && !refuses(&before)
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

/// A regular file of at most `max_size` bytes.
fn read_bounded(path: &Path, max_size: u64) -> io::Result<Vec<u8>> {
    // Looked at before it is opened: opening a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut content = Vec::new();
    File::open(path)?.take(max_size.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > max_size {
        let error = format!("larger than {max_size} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    }
    Ok(content)
}
