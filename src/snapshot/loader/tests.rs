use std::fs::write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose,
};

use super::*;
use crate::config::Config;
use crate::metrics::ControlMetrics;
use crate::sources::credential_source::former;
use crate::sources::{FileSource, JudgementContext};
use keygate_core::pkbf::{Filter, Parameters};

const CONFIGURATION: &str = r#"
    filters = [{ name = "lost", path = "lost.pkbf" }]
    [[services]]
    name = "test"
    listen = "127.0.0.1:0"
    tls = { certificate = "server.pem", private_key = "server.key" }
    client_auth = { trust_anchors = "ca.pem", crls = ["clients.crl"] }
    upstream = { servers = ["http://127.0.0.1:1"] }
"#;

/// A loader of a service whose list expires in `lasts`.
fn loader(directory: &Path, lasts: Duration) -> Loader {
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca = parameters.self_signed(&key).unwrap();
    write(directory.join("ca.pem"), ca.pem()).unwrap();
    write(directory.join("server.pem"), ca.pem()).unwrap();
    write(directory.join("server.key"), key.serialize_pem()).unwrap();
    let now = SystemTime::now();
    let list = CertificateRevocationListParams {
        this_update: now.into(),
        next_update: (now + lasts).into(),
        crl_number: 1_u64.into(),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&Issuer::new(parameters, key)).unwrap();
    write(directory.join("clients.crl"), list.pem().unwrap()).unwrap();
    let filter = Filter::new(Parameters::new(3, 12).unwrap()).unwrap();
    let (header, bits) = filter.to_parts();
    write(directory.join("lost.pkbf"), [&header[..], bits].concat()).unwrap();
    let config = Config::parse(&directory.join("keygate.toml"), CONFIGURATION).unwrap();
    let metrics = ControlMetrics::new().unwrap();
    Loader::start(&config, None, metrics, JudgementContext::default()).unwrap().0
}

#[test]
fn a_clock_that_was_ahead_does_not_suppress_the_expiry_of_a_list() {
    const HOUR: Duration = Duration::from_secs(3600);
    let directory = tempfile::tempdir().unwrap();
    let mut loader = loader(directory.path(), HOUR);
    let (config, now) = (loader.configuration.in_use(), SystemTime::now());
    let dry_run = loader.sources.dry_run(config, &loader.service_ids, &loader.judgement, now);
    let source = &mut loader.sources.credentials[0];
    let is_replaced = |source: &mut CredentialSource, now| {
        source.refresh(now, &dry_run).contains(&ValueChange::Replaced)
    };
    assert!(is_replaced(source, now + 1000 * HOUR));
    assert!(!is_replaced(source, now));
    assert!(source.time_to_crl_check(now).is_some_and(|left| left <= HOUR));
    assert!(is_replaced(source, now + 2 * HOUR));
    assert!(!is_replaced(source, now + 2 * HOUR));
}

#[test]
fn an_authorizer_takes_nothing_over_from_a_service_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let loader = loader(directory.path(), Duration::from_secs(3600));
    let text = r#"
        filters = [{ name = "lost", path = "lost.pkbf" }]
        [[authorizers]]
        name = "test"
        listen = "unix:ask.sock"
        protocol = "spop"
    "#;
    let config = Config::parse(&directory.path().join("keygate.toml"), text).unwrap();
    let authorizer = &CredentialTable::all(&config)[0];
    let (in_use, service) = (&loader.sources.credentials, &loader.sources.credentials[0]);
    assert!(former(in_use, service.id, authorizer, &[]).is_none());
    assert!(former(in_use, service.id, &service.config, &[]).is_some());
}
