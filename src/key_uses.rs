//! Recent clients with their key exchange and the algorithm of their key: how far the migration to
//! post-quantum algorithms is.
//!
//! Each worker records the clients that it admits in bounded memory of its own. While that memory
//! is read, its worker records nothing and does not wait.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use keygate_core::pkbf::KeyHash;
use keygate_core::spki::{self, Fingerprint};
use keygate_core::tls::{CertificateSummary, KeyExchange};
use keygate_core::unix_time;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use crate::metrics::{KeyAlgorithm, Label};

/// Number of clients in a generation, some 1.5 MiB. A worker has two generations and drops the older
/// one when the newer one is full.
const GENERATION: usize = 4096;

/// The recent clients of all workers.
#[derive(Debug, Clone, Default)]
pub struct KeyUses(Arc<Mutex<Vec<KeyUseShard>>>);

/// The recent clients of one worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyUseShard(Arc<Mutex<[HashMap<ClientOfService, KeyUse>; 2]>>);

/// Id of the service, and the key of the client.
type ClientOfService = (usize, KeyHash);

/// A client of a service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeyUse {
    /// Name of the service.
    pub service: String,
    /// Subject of the certificate, or another name of it.
    pub subject: String,
    /// Fingerprint of the client's key.
    pub fingerprint: String,
    /// Algorithm of the client's key.
    pub key_algorithm: Cow<'static, str>,
    /// Group of the last key exchange; `null` if every connection resumed a session of TLS 1.2.
    pub key_exchange: Option<Cow<'static, str>>,
    /// The last address of the client.
    pub address: IpAddr,
    /// When the client connected last, in seconds since the Unix epoch.
    pub last_seen: u64,
}

impl KeyUses {
    /// The memory of a further worker.
    pub(crate) fn shard(&self) -> KeyUseShard {
        let shard = KeyUseShard::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(shard.clone());
        shard
    }

    /// The clients of each service, last seen first.
    #[must_use]
    pub fn all(&self) -> Vec<KeyUse> {
        let mut newest: HashMap<ClientOfService, KeyUse> = HashMap::new();
        for shard in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let generations = shard.0.lock().unwrap_or_else(PoisonError::into_inner);
            for (client, seen) in generations.iter().flatten() {
                let known = newest.entry(*client).or_insert_with(|| seen.clone());
                if seen.last_seen > known.last_seen {
                    known.clone_from(seen);
                }
            }
        }
        let mut clients: Vec<_> = newest.into_values().collect();
        clients.sort_unstable_by(|one, other| {
            (other.last_seen, &one.fingerprint).cmp(&(one.last_seen, &other.fingerprint))
        });
        clients
    }
}

impl KeyUseShard {
    /// Records a client of the service with this id and name. A known client costs a hash of its key
    /// and a look-up.
    pub(crate) fn record(
        &self,
        (id, service): (usize, &str),
        leaf: &CertificateDer<'_>,
        algorithm: KeyAlgorithm,
        key_exchange: Option<KeyExchange>,
        address: IpAddr,
    ) {
        let Ok(spki) = spki::of_certificate(leaf) else { return };
        let Ok(mut generations) = self.0.try_lock() else { return }; // being read
        let [current, previous] = &mut *generations;
        let client = (id, KeyHash::from_spki(spki));
        if current.len() >= GENERATION && !current.contains_key(&client) {
            *previous = std::mem::take(current);
        }
        let seen = current.entry(client).or_insert_with(|| {
            previous.remove(&client).unwrap_or_else(|| KeyUse {
                service: service.to_owned(),
                subject: CertificateSummary::new(leaf).name().to_owned(),
                fingerprint: Fingerprint::of(spki).to_string(),
                key_algorithm: algorithm.as_str().into(),
                key_exchange: None,
                address,
                last_seen: 0,
            })
        });
        if let Some(group) = key_exchange {
            seen.key_exchange = Some(group.as_str().into());
        }
        (seen.address, seen.last_seen) = (address, unix_time::now());
    }
}
