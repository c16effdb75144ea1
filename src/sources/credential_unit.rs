//! The units of files of a service, and the class of a rejected one, as metrics, logs and the
//! status name them.

use keygate_core::tls::TlsFileError;

use super::error::LoadError;
use crate::metrics::labels;

labels! {
    /// The files of a service or authorizer that are replaced together, whatever its other files
    /// are.
    CredentialUnit {
        /// The CAs of the peers that ask an authorizer.
        AskerCa = "asker_ca",
        /// The CAs of clients: trust anchors and intermediates.
        ClientCa = "client_ca",
        /// The revocation lists. The lists of each CA are replaced by themselves.
        Crls = "crls",
        /// The own certificate and its private key.
        Server = "server",
        /// The CAs of the upstream, the client certificate for it and its private key.
        Upstream = "upstream",
    }
    /// The class of a rejected certificate, key or CA.
    CredentialRejectionReason {
        /// A file has no usable certificate or key.
        Content = "content",
        /// A file cannot be read.
        Io = "io",
        /// The private key does not belong to the certificate.
        Key = "key",
        /// It would reject more recent clients than `max_new_hits` allows.
        NewHits = "new_hits",
    }
}

impl CredentialUnit {
    /// The units that are read together.
    pub(super) const OF_CLIENTS: [Self; 2] = [Self::ClientCa, Self::Crls];
}

impl CredentialRejectionReason {
    /// The class of `error`.
    pub(super) fn of(error: &LoadError) -> Self {
        if let LoadError::Credentials { source: TlsFileError::KeyMismatch, .. } = error {
            Self::Key
        } else if let LoadError::Read { .. } = error {
            Self::Io
        } else if let LoadError::Waits { .. } = error {
            Self::NewHits
        } else {
            Self::Content
        }
    }
}
