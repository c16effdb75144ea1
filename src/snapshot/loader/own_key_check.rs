//! The check of own keys: their metrics, and the services that tolerate compromised ones.

use std::time::SystemTime;

use keygate_core::tls::CertificateRole;

use super::Loader;
use crate::sources::load_errors::none_of;
use crate::sources::{LoadError, LoadErrors, OwnKey, Source, Warning};

impl Loader {
    /// The keys of the services and of their CAs that are weak, in a filter or on a list.
    ///
    /// With such a key an attacker can impersonate the service or issue client certificates.
    /// Exceptions are for clients and do not apply.
    fn compromised_own_keys(&self) -> Vec<OwnKey> {
        let guard = self.sources.guard_without_exceptions();
        let now = SystemTime::now();
        let services = self.sources.services.iter();
        let services = services.flat_map(|source| source.compromised_keys(&guard, now));
        let authorizers = self.sources.authorizers.iter();
        let authorizers = authorizers.flat_map(|source| source.compromised_keys(&guard, now));
        services.chain(authorizers).collect()
    }

    /// Keeps the compromised keys for the warnings, sets their metrics, and logs those that their
    /// service tolerates.
    ///
    /// # Errors
    /// Returns the compromised keys of all services that do not tolerate them.
    pub(super) fn check_own_keys(&mut self) -> Result<(), LoadErrors> {
        self.own_keys = self.compromised_own_keys();
        let compromised = &self.own_keys;
        let mut errors = Vec::new();
        let services = self.sources.services.iter();
        let services = services.map(|it| (it.name(), it.tolerates_compromised_keys()));
        let authorizers = self.sources.authorizers.iter();
        let authorizers = authorizers.map(|it| (it.name(), it.tolerates_compromised_keys()));
        for (name, tolerates) in services.chain(authorizers) {
            let keys = || compromised.iter().filter(|key| key.owner.name() == name);
            for role in CertificateRole::ALL {
                let count = keys().filter(|key| key.role == role).count();
                self.metrics.set_own_key_compromised(name, role, count);
            }
            for key in keys() {
                if tolerates {
                    Warning::own_key(key).log();
                } else {
                    errors.push(LoadError::OwnKey(Box::new(key.clone())));
                }
            }
        }
        none_of(errors)
    }
}
