//! Downloads filters, lists and CRLs, and replaces the files that the proxy reads.
//!
//! | step | module |
//! | --- | --- |
//! | A job is made from each `source` of the configuration. | `job` |
//! | The work directory beside the file is locked; an update that was cut short is completed. | `work_directory`, `install` |
//! | The file is requested, unless it is unchanged; a download that was cut short is continued. | `client`, `download` |
//! | It is unpacked, and its companions (checksum, signature, metadata) are requested. | `unpack`, `companion`, `blocklist`, `update` |
//! | The checks of a reload are made. | [`crate::snapshot`] |
//! | The files are renamed over those in use. | `install` |
//! | The outcome is kept for the next run and the metrics. | `outcome`, `state`, `record`, `textfile` |
//!
//! `acme` has the requests to another kind of server: the revocation of a certificate.
//!
//! The old files stay until every check has passed. Nothing here runs in the proxy. Decision:
//! `docs/decisions/fetch.md`.

mod acme;
mod blocklist;
mod client;
mod companion;
mod download;
mod error;
mod install;
mod job;
mod outcome;
mod record;
mod state;
mod textfile;
mod unpack;
mod update;
mod work_directory;

pub use self::acme::revoke;
pub use self::error::{FetchError, SourceError, TransferError, UnpackError};
pub use self::job::{BADKEYS_URL, FetchJob};
pub use self::outcome::FetchedFile;
pub use self::state::FetchCounts;
pub use self::textfile::write_textfile;
