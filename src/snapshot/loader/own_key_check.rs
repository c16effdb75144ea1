//! The check of own keys: their metrics, and the services that tolerate compromised ones.

use std::time::SystemTime;

use keygate_core::tls::CertificateRole;

use super::Loader;
use crate::sources::load_errors::none_of;
use crate::sources::{FileSource, LoadError, LoadErrors, Warning};

impl Loader {
    /// Keeps the compromised keys for the warnings, sets their metrics, and logs those that their
    /// service tolerates: keys of the services and of their CAs that are weak, in a filter or on a
    /// list. With such a key an attacker can impersonate the service or issue client certificates.
    /// Exceptions are for clients and do not apply.
    ///
    /// # Errors
    /// Returns the compromised keys of all services that do not tolerate them.
    pub(super) fn check_own_keys(&mut self) -> Result<(), LoadErrors> {
        let (guard, now) = (self.sources.guard_without_exceptions(), SystemTime::now());
        let credentials = || self.sources.credentials.iter();
        self.own_keys = credentials().flat_map(|it| it.compromised_keys(&guard, now)).collect();
        let compromised = &self.own_keys;
        let mut errors = Vec::new();
        for source in credentials() {
            let (name, files) = (source.name(), source.config.files());
            let keys = || compromised.iter().filter(|key| key.owner.name() == name);
            for role in CertificateRole::ALL {
                let count = keys().filter(|key| key.role == role).count();
                self.metrics.set_own_key_compromised(name, role, count);
            }
            for key in keys() {
                if files.policy.allow_compromised_own_key {
                    Warning::own_key(key).log();
                } else {
                    errors.push(LoadError::OwnKey(Box::new(key.clone())));
                }
            }
        }
        none_of(errors)
    }
}
