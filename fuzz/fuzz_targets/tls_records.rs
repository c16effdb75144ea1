//! Any bytes as the first ones of a TLS client, in pieces of any size: an error, or a server name
//! that does not depend on the pieces. No such handshake is complete.

#![no_main]

use std::sync::{Arc, LazyLock};

use keygate::fuzzing::handshake;
use libfuzzer_sys::fuzz_target;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;

static CONFIG: LazyLock<Arc<ServerConfig>> = LazyLock::new(|| {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&key).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap())
});

fuzz_target!(|input: &[u8]| {
    let Some((size, bytes)) = input.split_first() else { return };
    let result = |size| handshake(bytes, size, Arc::clone(&CONFIG)).ok();
    let at_once = result(usize::MAX);
    assert_eq!(result(usize::from(*size)), at_once);
    assert!(!at_once.is_some_and(|(_, is_complete)| is_complete), "a handshake without its keys");
});
