//! The part of the state that a reload can change, as one immutable value that is swapped.
//!
//! The data path loads the [`Snapshot`] in use and never waits. A reload takes these steps:
//!
//! | step | where |
//! | --- | --- |
//! | A file event, the poll or a [`watch::Command`] starts a refresh. | [`watch`] |
//! | Changed files that have settled are read; each keeps its last good value. | [`crate::sources`] |
//! | Filter updates are checked. | `src/sources/check/` |
//! | A new configuration is staged and applied as a whole. | `src/sources.rs` |
//! | The next snapshot is built if anything changed. | [`Loader`] |
//! | The snapshot is swapped in, and open connections are judged again. | [`watch::FileWatcher::run`] |
//!
//! Nothing here serves traffic.

mod current;
mod loader;
mod report;
mod routes;
pub mod watch;

pub use current::{AskerTls, Authorizer, Current, Service, Snapshot};
pub use loader::{Loader, RefreshedSnapshot};
pub use report::{Rejection, Report};
pub use routes::Routes;
