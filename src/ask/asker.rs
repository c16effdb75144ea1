//! The peer that asks: its identity and its permission.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::SystemTime;

use keygate_core::guard::{Decision, Guard, Policy};
use keygate_core::tls::{ClientIdentity, HandshakeResult};
use keygate_wire::permit::AskerKey;
use tokio::net::UnixStream;

use crate::snapshot::Authorizer;

/// The peer of a connection to an authorizer.
#[derive(Debug)]
pub(crate) enum AskingPeer {
    /// A peer over TCP without TLS.
    Tcp(SocketAddr),
    /// A peer over TLS, whose certificate was verified if one was asked for.
    Tls(Box<ClientIdentity>),
    /// The user id of the process (`SO_PEERCRED`); `None` if the kernel has none.
    Unix(Option<u32>),
}

impl AskingPeer {
    /// The process at the other end of a Unix socket.
    pub(super) fn from_unix(stream: &UnixStream) -> Self {
        Self::Unix(stream.peer_cred().ok().map(|credentials| credentials.uid()))
    }

    /// The asker that the peer belongs to.
    pub(super) fn key(&self) -> AskerKey {
        match self {
            Self::Tcp(peer) => AskerKey::from_address(peer.ip()),
            Self::Tls(identity) => AskerKey::from_address(identity.peer().ip()),
            Self::Unix(uid) => AskerKey::User(*uid),
        }
    }

    /// Checks that `authorizer` permits this peer to ask at `now`.
    ///
    /// # Errors
    /// Returns the first rule that rejects the peer.
    pub(super) fn check(
        &self,
        authorizer: &Authorizer,
        guard: &Guard,
        now: SystemTime,
    ) -> Result<(), AskerRejection> {
        let askers = &authorizer.config.askers;
        let address = match self {
            // A reload may have added TLS to the address.
            Self::Tcp(_) if authorizer.tls.is_some() => return Err(AskerRejection::NoTls),
            Self::Tcp(peer) => peer.ip(),
            Self::Tls(identity) => {
                if let Some(verifier) =
                    authorizer.tls.as_ref().and_then(|tls| tls.verifier.as_ref())
                {
                    let verified = identity.verify_again(verifier, now);
                    verified.map_err(|error| AskerRejection::from_tls(&io::Error::other(error)))?;
                    let judgement = identity.judge(guard, &Policy::default(), now);
                    if judgement.decision == Decision::Reject {
                        return Err(AskerRejection::Key);
                    }
                }
                identity.peer().ip()
            }
            Self::Unix(uid) => {
                let is_permitted =
                    uid.map_or(askers.uids.is_empty(), |uid| askers.permits_uid(uid));
                return is_permitted.then_some(()).ok_or(AskerRejection::User);
            }
        };
        askers.permits_address(address).then_some(()).ok_or(AskerRejection::Address)
    }
}

/// The rule that rejects a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AskerRejection {
    /// The networks of `askers.from`.
    Address,
    /// The CA of `tls.client_ca`, or another part of the handshake.
    Handshake(HandshakeResult),
    /// The judgement of its key.
    Key,
    NoTls,
    /// The authorizer is gone.
    Removed,
    /// The users of `askers.uids`.
    User,
}

impl AskerRejection {
    /// The rejection of a peer whose handshake or verification has failed.
    pub(super) fn from_tls(error: &io::Error) -> Self {
        let result = HandshakeResult::from_error(error);
        // Askers have no revocation lists: a proved compromise has the alert of a revocation.
        if matches!(result, HandshakeResult::Compromised | HandshakeResult::Revoked) {
            return Self::Key;
        }
        Self::Handshake(result)
    }

    /// The reason in words. The number of reasons is fixed, because each has its own line in the
    /// log.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Address => "its address is not in askers.from",
            Self::Handshake(result) => match result {
                HandshakeResult::Expired => "its certificate has expired or is not valid yet",
                HandshakeResult::NoCertificate => "it has no certificate",
                HandshakeResult::BadSignature => "it did not prove possession of its key",
                HandshakeResult::UnknownIssuer => "its certificate is not of tls.client_ca",
                HandshakeResult::ClientGone
                | HandshakeResult::Compromised
                | HandshakeResult::NotAllowed
                | HandshakeResult::NotTls
                | HandshakeResult::NotVouched
                | HandshakeResult::Ok
                | HandshakeResult::PlainHttp
                | HandshakeResult::Revoked
                | HandshakeResult::ServiceRejected
                | HandshakeResult::Timeout
                | HandshakeResult::UnknownName
                | HandshakeResult::Unsuitable
                | HandshakeResult::Unsupported => "the TLS handshake failed",
            },
            Self::Key => "its key is compromised or cannot be checked",
            Self::NoTls => "the authorizer requires TLS since a reload",
            Self::Removed => "the authorizer has been removed, or has another address or protocol",
            Self::User => "its user id is not in askers.uids",
        }
    }
}

impl fmt::Display for AskingPeer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(peer) => peer.ip().to_canonical().fmt(formatter),
            Self::Tls(identity) => identity.peer().ip().to_canonical().fmt(formatter),
            Self::Unix(Some(uid)) => write!(formatter, "uid {uid}"),
            Self::Unix(None) => formatter.write_str("unix"),
        }
    }
}
