//! Lists that are not as they should be, and do not prevent a start.

use std::fmt;
use std::path::PathBuf;

use super::CrlVersion;
use crate::tls::ExpiredCrl;
use crate::unix_time::dated;

/// A list that is not as it should be, and does not prevent a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrlWarning {
    /// The list has expired.
    Expired {
        /// The file.
        path: PathBuf,
        /// Distinguished name of the issuer.
        issuer: String,
        /// `nextUpdate`, in seconds since the Unix epoch.
        next_update: u64,
        /// How the list is treated.
        expired: ExpiredCrl,
    },
    /// A newer list of the same issuer is used instead.
    Superseded {
        /// The file.
        path: PathBuf,
        /// Position in the file, counted from 1.
        position: usize,
        /// Distinguished name of the issuer.
        issuer: String,
        /// The version of the list.
        version: CrlVersion,
        /// The version of the list in use.
        newest: CrlVersion,
    },
    /// The issuer is no CA of the service.
    Unused {
        /// The file.
        path: PathBuf,
        /// Position in the file, counted from 1.
        position: usize,
        /// Distinguished name of the issuer.
        issuer: String,
        /// Whether a list of a CA with this name was in use before.
        was_ca: bool,
    },
}

impl fmt::Display for CrlWarning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired { path, issuer, next_update, expired } => write!(
                formatter,
                "{}: the list of {issuer} has expired at {}{}",
                path.display(),
                dated(*next_update),
                match expired {
                    ExpiredCrl::Accept => " and is used, because expired_crl = \"accept\"",
                    ExpiredCrl::Reject => ", so that its clients are rejected; fetch the next one",
                }
            ),
            Self::Superseded { path, position, issuer, version, newest } => write!(
                formatter,
                "{}: the list at position {position}, of {issuer} ({version}), is superseded ({newest}); remove it",
                path.display()
            ),
            Self::Unused { path, position, issuer, was_ca: true } => write!(
                formatter,
                "{}: the list at position {position} is not used, because an update of the CAs removed {issuer}, and CAs and pins that it issued are rejected; restore the file with the CA, or remove these certificates, then the list",
                path.display()
            ),
            Self::Unused { path, position, issuer, was_ca: false } => write!(
                formatter,
                "{}: the list at position {position} is not used, because {issuer} is no CA of this service, and CAs and pins that it issued are rejected; remove the list, or add the CA to client_auth.trust_anchors or, if it is an intermediate, to client_auth.intermediates",
                path.display()
            ),
        }
    }
}
