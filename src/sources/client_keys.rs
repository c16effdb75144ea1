//! Configuration keys that errors about the files of clients name.

/// The configuration keys that name the files with the CAs of clients.
pub(super) const TRUST_ANCHORS: &str = "client_auth.trust_anchors";
pub(super) const CAS: &str = "client_auth.cas";
/// The configuration key that names the files with CRLs.
pub(super) const CRLS: &str = "client_auth.crls";
