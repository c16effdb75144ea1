//! Source of proofs of the demo: responds like the pwnedkeys API for two keys.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Response, StatusCode};
use keygate_core::proof::{CreateError, create};

use super::http_server;
use super::pki::DemoParty;

/// The responses of the source, by path.
pub(super) struct DemoSource(HashMap<String, String>);

impl DemoSource {
    /// A source that knows the keys of `parties`.
    pub(super) fn new(parties: [&DemoParty; 2]) -> Result<Self, CreateError> {
        let mut proofs = HashMap::new();
        for party in parties {
            for proof in create(&party.private_key())? {
                proofs.insert(format!("/{}", proof.fingerprint), proof.json);
            }
        }
        Ok(Self(proofs))
    }

    /// Starts the source on a separate thread, which runs until the process exits.
    pub(super) fn start(self) -> io::Result<SocketAddr> {
        http_server::start("keygate-demo-source", move |request| {
            let proof = self.0.get(request.uri().path());
            let body = proof.map_or("this key is not known\n", String::as_str);
            let mut response = Response::new(Full::new(Bytes::from(body.to_owned())));
            if proof.is_none() {
                *response.status_mut() = StatusCode::NOT_FOUND;
            }
            response
        })
    }
}
