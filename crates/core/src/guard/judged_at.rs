//! The moments of a judgement.

use crate::named::named;

named! {
    /// The moment at which a client's key was judged.
    pub enum JudgedAt {
        /// During a question of another proxy, which has verified the client.
        Asked = "asked",
        /// In a full handshake.
        FullHandshake = "handshake",
        /// On an open connection, after a new snapshot was activated.
        Reload = "live",
        /// Before a CA issues a certificate for the key, or a cluster stores the key.
        Requested = "requested",
        /// After a handshake that resumed a session.
        Resumption = "resumed",
    }
}
