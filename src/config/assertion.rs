//! The model of assertions: signed statements about clients for the services behind the proxy.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use hyper::header::HeaderName;

use super::input::Input;
use super::keys::table;
use super::texts::{ResourceName, StatusHeader, Until};
use super::units::Positive;

/// Maximum time for which an assertion is valid.
const MAX_LIFE: Duration = Duration::from_secs(300);
/// Maximum number of signing keys.
const MAX_KEYS: usize = 8;

table! {
    /// The assertions for a service.
    #[derive(Clone, PartialEq, Eq)]
    pub struct AssertionConfig "A header with a [signed statement](assertion.md) about the client, for services with `protocol = \"http\"` and for [authorizers](assertion.md#authorizers). A service or authorizer with a table of its own has all keys from it. Off unless the table is there.", check {
        pub issuer: String as ResourceName => AtOnce
            "The claim `iss`, such as the address of the set of public keys.",
        /// The keys that sign.
        pub signing_keys: Vec<SigningKeyConfig>,
        pub header: HeaderName as StatusHeader = "Keygate-Assertion" => AtOnce
            "Field that carries the assertion. A client's own copy is removed in every spelling. It differs from `policy.header`, and the same names are rejected.",
        pub life: Duration as Positive = "60s" => AtOnce
            "Time for which an assertion is valid, `2s` to `5m`. A connection uses one for half of it.",
    }
}

table! {
    /// A key that signs assertions.
    #[derive(Clone, PartialEq, Eq)]
    pub struct SigningKeyConfig "An array of tables, 1 to 8: the private keys. The key with the latest `from` that has passed signs. If several have the same time, the last one in the list signs. All are published ([rotation](assertion.md#rotation))." {
        pub file: PathBuf => AtOnce
            "PEM: a private key of the curve P-256 (ES256) or of Ed25519 (EdDSA).",
        pub from: Option<SystemTime> as Option<Until> => AtOnce
            "When the key begins to sign; a date means the end of that day in UTC. Without `from` it signs until another key begins.",
    }
}

impl AssertionConfig {
    fn check(&mut self, input: &Input<'_>) {
        if !(Duration::from_secs(2)..=MAX_LIFE).contains(&self.life) {
            input.report_at("life", "not between 2s and 5m; give a time between them");
        }
        let count = self.signing_keys.len();
        if !(1..=MAX_KEYS).contains(&count) {
            let problem =
                format!("{count} keys instead of 1 to {MAX_KEYS}; name the key that signs");
            input.report_at("signing_keys", problem);
        }
    }
}
