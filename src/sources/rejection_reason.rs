//! The class of a rejected filter update, as metrics, logs and the status name it.

use crate::metrics::labels;

labels! {
    /// The class of a rejected filter update.
    RejectionReason {
        /// A canary key is missing, or random keys are hits.
        Canary = "canary",
        /// The file does not match its checksum file.
        Checksum = "checksum",
        /// The header's modification time is in the future.
        Future = "future",
        /// The file cannot be read.
        Io = "io",
        /// The file does not start with the marker of the format.
        Marker = "marker",
        /// More of the recent clients would be rejected than `max_new_hits` allows.
        NewHits = "new_hits",
        /// The header's numbers do not explain the bits that are set.
        Plausibility = "plausibility",
        /// A parameter in the header is out of range.
        Range = "range",
        /// The filter is older than the one in use.
        Rollback = "rollback",
        /// The filter has half of the entries of the one in use, or fewer.
        Shrunk = "shrunk",
        /// The signature is missing, or is not valid for the file and a key of `minisign_key`.
        Signature = "signature",
        /// The length differs from the header's, or exceeds `max_size`.
        Size = "size",
    }
}
