//! The moments of a judgement.

/// The moment at which a client's key was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JudgedAt {
    /// During a question of another proxy, which has verified the client.
    Asked,
    /// In a full handshake.
    FullHandshake,
    /// On an open connection, after a new snapshot was activated.
    Reload,
    /// After a handshake that resumed a session.
    Resumption,
}

impl JudgedAt {
    /// Every moment, in the order of declaration.
    pub const ALL: [Self; 4] = [Self::Asked, Self::FullHandshake, Self::Reload, Self::Resumption];

    /// The value of the label `stage` in metrics and of the field `stage` in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::FullHandshake => "handshake",
            Self::Reload => "live",
            Self::Resumption => "resumed",
        }
    }
}
