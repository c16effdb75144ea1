//! Groups of the key exchange of TLS.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{CommonState, NamedGroup};

use crate::named::named;

named! {
    /// A group of the key exchange, with its name in the registry of IANA (TLS Supported Groups).
    pub enum KeyExchange {
        /// The curve secp256r1, also called P-256.
        Secp256r1 = "secp256r1",
        /// The curve secp384r1, also called P-384.
        Secp384r1 = "secp384r1",
        /// X25519.
        X25519 = "x25519",
        /// X25519 and ML-KEM-768.
        X25519MlKem768 = "X25519MLKEM768",
    }
}

impl KeyExchange {
    /// The order towards servers. The hello has a share of X25519 as well, so no classical server
    /// needs another round trip.
    pub(super) const HYBRID_FIRST: [Self; 4] =
        [Self::X25519MlKem768, Self::X25519, Self::Secp256r1, Self::Secp384r1];

    /// The group of a connection after its handshake; `None` for a resumed session of TLS 1.2,
    /// which exchanges no keys.
    #[must_use]
    pub fn negotiated(connection: &CommonState) -> Option<Self> {
        let name = connection.negotiated_key_exchange_group()?.name();
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// The group in the ClientHello.
    pub(super) fn name(self) -> NamedGroup {
        self.group().name()
    }

    fn group(self) -> &'static dyn SupportedKxGroup {
        match self {
            Self::Secp256r1 => kx_group::SECP256R1,
            Self::Secp384r1 => kx_group::SECP384R1,
            Self::X25519 => kx_group::X25519,
            Self::X25519MlKem768 => kx_group::X25519MLKEM768,
        }
    }

    /// The algorithms of TLS with these groups, preferred first; without any, with the default
    /// groups of rustls.
    pub(super) fn provider(groups: &[Self]) -> Arc<CryptoProvider> {
        let mut provider = default_provider();
        if !groups.is_empty() {
            provider.kx_groups = groups.iter().map(|group| group.group()).collect();
        }
        Arc::new(provider)
    }
}
