//! The class of a rejected filter update, as metrics, logs and the status name it.

use crate::metrics::Label;

/// The class of a rejected filter update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionReason {
    /// A canary key is missing, or random keys are hits.
    Canary,
    /// The file does not match its checksum file.
    Checksum,
    /// The header's modification time is in the future.
    Future,
    /// The file cannot be read.
    Io,
    /// The file does not start with the marker of the format.
    Marker,
    /// More of the recent clients would be rejected than `max_new_hits` allows.
    NewHits,
    /// The header's numbers do not explain the bits that are set.
    Plausibility,
    /// A parameter in the header is out of range.
    Range,
    /// The filter is older than the one in use.
    Rollback,
    /// The filter has half of the entries of the one in use, or fewer.
    Shrunk,
    /// The signature is missing, or is not valid for the file and a key of `minisign_key`.
    Signature,
    /// The length differs from the header's, or exceeds `max_size`.
    Size,
}

impl Label for RejectionReason {
    const ALL: &'static [Self] = &[
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

    fn index(self) -> usize {
        self as usize
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Canary => "canary",
            Self::Checksum => "checksum",
            Self::Future => "future",
            Self::Io => "io",
            Self::Marker => "marker",
            Self::NewHits => "new_hits",
            Self::Plausibility => "plausibility",
            Self::Range => "range",
            Self::Rollback => "rollback",
            Self::Shrunk => "shrunk",
            Self::Signature => "signature",
            Self::Size => "size",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_at_its_index() {
        let all = RejectionReason::ALL;
        assert!(all.iter().enumerate().all(|(index, reason)| reason.index() == index));
    }
}
