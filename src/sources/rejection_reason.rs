//! The class of a rejected update, as metrics, logs and the status name it.

use crate::metrics::labels;

labels! {
    /// The class of a rejected update.
    RejectionReason {
        /// A canary key is missing, or random keys are hits.
        Canary = "canary",
        /// The file does not match its checksum file, or the SHA-256 in its metadata.
        Checksum = "checksum",
        /// A list, a certificate or a key is not of the format.
        Content = "content",
        /// The file has no revocation list in PEM or DER.
        Encoding = "encoding",
        /// `nextUpdate` has passed.
        Expired = "expired",
        /// The date of the update is in the future.
        Future = "future",
        /// A file cannot be read.
        Io = "io",
        /// The issuer is no CA of the service, must not sign lists, or has no list any more.
        Issuer = "issuer",
        /// The private key does not belong to the certificate.
        Key = "key",
        /// The file does not start with the marker of the format.
        Marker = "marker",
        /// More of the recent clients would be rejected than `max_new_hits` allows.
        NewHits = "new_hits",
        /// The header's numbers do not explain the bits that are set.
        Plausibility = "plausibility",
        /// A parameter in the header is out of range.
        Range = "range",
        /// The update is older than what is in use, or has no date in place of a list with one.
        Rollback = "rollback",
        /// The update has half of the entries in use or fewer, or fewer than `min_records`.
        Shrunk = "shrunk",
        /// A signature is missing, or is not valid.
        Signature = "signature",
        /// The length differs from the header's, or exceeds `max_size`.
        Size = "size",
        /// The revocation list is of a kind that is not supported.
        Unsupported = "unsupported",
    }
}

impl RejectionReason {
    /// The classes of a certificate, key or CA.
    pub const OF_CREDENTIALS: &[Self] = &[Self::Content, Self::Io, Self::Key, Self::NewHits];

    /// The classes of a file with revocation lists.
    pub const OF_CRLS: &[Self] = &[
        Self::Encoding,
        Self::Expired,
        Self::Future,
        Self::Io,
        Self::Issuer,
        Self::NewHits,
        Self::Rollback,
        Self::Signature,
        Self::Unsupported,
    ];

    /// The classes of a filter.
    pub const OF_FILTERS: &[Self] = &[
        Self::Canary,
        Self::Checksum,
        Self::Future,
        Self::Io,
        Self::Marker,
        Self::NewHits,
        Self::Plausibility,
        Self::Range,
        Self::Rollback,
        Self::Shrunk,
        Self::Signature,
        Self::Size,
    ];

    /// The classes of a list.
    pub const OF_LISTS: &[Self] = &[
        Self::Canary,
        Self::Checksum,
        Self::Content,
        Self::Io,
        Self::NewHits,
        Self::Rollback,
        Self::Shrunk,
        Self::Signature,
        Self::Size,
    ];
}
