//! A verifier with a cache decides as one without, in handshakes over memory.

use std::path::Path;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{PrivateKeyDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::*;
use crate::tls::{
    ClientVerifier, CrlIssuers, CrlLoader, CrlMarks, Crls, Handshake, TrustAnchors, VerifiedPath,
};
use crate::tls::{ExpiredCrl, RevocationDepth};

/// A time at which every certificate without dates of its own is valid.
const NOW: u64 = 1_790_000_000;
const DAY: u64 = 86_400;

#[derive(Debug)]
struct Clock(u64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0)))
    }
}

/// A CA or a client with its certificate.
struct Party {
    issuer: Issuer<'static, KeyPair>,
    key: Vec<u8>,
    certificate: CertificateDer<'static>,
}

fn parameters(name: &str, days: Range<i64>) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.not_before = day(days.start).into();
    parameters.not_after = day(days.end).into();
    parameters
}

/// The time so many days after [`NOW`].
fn day(days: i64) -> SystemTime {
    let seconds = NOW.checked_add_signed(days * DAY.cast_signed()).unwrap();
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn ca(name: &str, days: Range<i64>) -> CertificateParams {
    let mut parameters = parameters(name, days);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters
}

impl Party {
    fn new(parameters: CertificateParams, key: KeyPair, issuer: Option<&Self>) -> Self {
        let certificate = match issuer {
            None => parameters.self_signed(&key),
            Some(issuer) => parameters.signed_by(&key, &issuer.issuer),
        };
        let certificate = certificate.unwrap().der().clone();
        let der = key.serialize_der();
        Self { issuer: Issuer::new(parameters, key), key: der, certificate }
    }

    fn root(name: &str) -> Self {
        Self::new(ca(name, -900..900), KeyPair::generate().unwrap(), None)
    }

    fn certify(&self, parameters: CertificateParams) -> Self {
        Self::new(parameters, KeyPair::generate().unwrap(), Some(self))
    }

    fn key(&self) -> KeyPair {
        KeyPair::try_from(self.key.clone()).unwrap()
    }

    /// A list of this CA that expires `days` after [`NOW`].
    fn crl(&self, revoked: &[u64], days: i64) -> Arc<Crls> {
        let revoked = revoked.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: day(-1).into(),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: day(-1).into(),
            next_update: day(days).into(),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).unwrap();
        let (issuers, marks) = (CrlIssuers::new(&self.anchors()), CrlMarks::new());
        let mut loader = CrlLoader::new(&issuers, ExpiredCrl::Reject, &marks, NOW);
        loader.add(Path::new("clients.crl"), list.der());
        Arc::new(loader.finish().crls)
    }

    fn anchors(&self) -> Arc<TrustAnchors> {
        Arc::new(TrustAnchors::new(vec![self.certificate.clone()]).unwrap())
    }

    fn verifier(&self) -> ClientVerifier {
        ClientVerifier::new(self.anchors()).with_chain_cache()
    }
}

/// The result of a full handshake with a client that holds the key of `client` and presents the
/// certificates `chain`.
fn connect(
    verifier: &Arc<ClientVerifier>,
    client: &Party,
    chain: &[&Party],
    now: u64,
) -> Result<(Arc<[CertificateDer<'static>]>, VerifiedPath), rustls::Error> {
    let provider = Arc::new(default_provider());
    let server_key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let server = server.self_signed(&server_key).unwrap().der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(server.clone()).unwrap();
    let clock = Arc::new(Clock(now));
    let mut config = ServerConfig::builder_with_details(provider.clone(), clock.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.clone())
        .with_single_cert(vec![server], server_key.serialize_der().try_into().unwrap())
        .unwrap();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    let chain = chain.iter().map(|party| party.certificate.clone()).collect();
    let key = PrivateKeyDer::try_from(client.key.clone()).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let credentials = SingleCertAndKey::from(CertifiedKey::new(chain, key));
    let mut client_config = ClientConfig::builder_with_details(provider, clock)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(credentials));
    client_config.resumption = Resumption::disabled();
    let mut client =
        ClientConnection::new(Arc::new(client_config), "localhost".try_into().unwrap()).unwrap();
    let mut server = ServerConnection::new(Arc::new(config)).unwrap();
    let mut handshake = Handshake::default();
    while server.is_handshaking() {
        let mut records = Vec::new();
        client.write_tls(&mut records).unwrap();
        server.read_tls(&mut records.as_slice()).unwrap();
        handshake.step(|| server.process_new_packets())?;
        let mut records = Vec::new();
        server.write_tls(&mut records).unwrap();
        client.read_tls(&mut records.as_slice()).unwrap();
        client.process_new_packets().unwrap();
    }
    let verified = handshake.verified.as_ref().unwrap();
    Ok((verified.presented.clone(), verified.path.clone()))
}

/// Connects with a warm cache and without one, and returns the equal results.
fn connect_twice(
    verifier: &Arc<ClientVerifier>,
    client: &Party,
    chain: &[&Party],
    now: u64,
) -> Result<Vec<u32>, String> {
    let positions = |path: VerifiedPath| path.route().places.to_vec();
    let warm = connect(verifier, client, chain, now);
    let warm = warm.map(|(_, path)| positions(path)).map_err(|error| error.to_string());
    let certificates: Vec<_> = chain.iter().map(|party| party.certificate.clone()).collect();
    let (leaf, intermediates) = certificates.split_first().unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
    let cold = verifier.verify(leaf, intermediates, now);
    let cold = cold.map(positions).map_err(|error| error.to_string());
    assert_eq!(warm, cold);
    warm
}

#[test]
fn only_a_client_that_holds_its_key_adds_its_chain() {
    let root = Party::root("root");
    let [client, other] = ["client", "other"].map(|it| root.certify(parameters(it, -9..9)));
    let verifier = Arc::new(root.verifier());
    let chains = verifier.chains.as_ref().unwrap();
    connect(&verifier, &other, &[&client], NOW).unwrap_err();
    assert_eq!(chains.len(), 0);
    let (first, _) = connect(&verifier, &client, &[&client], NOW).unwrap();
    assert_eq!(chains.len(), 1);
    let (second, _) = connect(&verifier, &client, &[&client], NOW).unwrap();
    assert!(Arc::ptr_eq(&first, &second), "the second chain comes from the cache");
    // The chain in the cache is no proof of possession.
    connect(&verifier, &other, &[&client], NOW).unwrap_err();
}

#[test]
fn dates_count_as_without_a_cache_also_if_the_clock_goes_back() {
    let root = Party::root("root");
    // Two certificates of one intermediate CA: the first begins to be valid later.
    let key = || KeyPair::generate().unwrap();
    let later = Party::new(ca("ca", 2..500), key(), Some(&root));
    let earlier = Party::new(ca("ca", -9..5), later.key(), Some(&root));
    let client = later.certify(parameters("client", -3..8));
    let chain = [&client, &later, &earlier];
    let verifier = Arc::new(root.verifier());
    let days = [0, 0, 1, 3, 3, 6, 6, 9, 0, 3].map(|day| NOW + day * DAY);
    let results = days.map(|now| connect_twice(&verifier, &client, &chain, now));
    assert_eq!(results[0].as_deref(), Ok(&[0, 2, PathRoute::FILE][..]));
    assert_eq!(
        results[3].as_deref(),
        Ok(&[0, 1, PathRoute::FILE][..]),
        "the first path that is valid"
    );
    assert!(results[7].as_ref().unwrap_err().contains("expired"), "{:?}", results[7]);
    assert_eq!(results[8], results[0]);
    // The first and the last second of a validity, and those around it.
    let seconds = [NOW - 3 * DAY, NOW + 8 * DAY].map(|it| [it - 1, it, it + 1]);
    for now in seconds.as_flattened() {
        let _ = connect_twice(&verifier, &client, &chain, NOW);
        let _ = connect_twice(&verifier, &client, &chain, *now);
    }
    let earliest = connect_twice(&verifier, &client, &chain, NOW - 4 * DAY);
    assert!(earliest.unwrap_err().contains("not valid yet"));
}

#[test]
fn an_expired_revocation_list_rejects_a_cached_client() {
    let root = Party::root("root");
    let client = root.certify(parameters("client", -9..90));
    let (crl, expired) = (root.crl(&[], 1), ExpiredCrl::Reject);
    let verifier = Arc::new(root.verifier().with_crls(crl, expired, RevocationDepth::Path));
    for now in [NOW, NOW, NOW + DAY - 1] {
        connect_twice(&verifier, &client, &[&client], now).unwrap();
    }
    for now in [NOW + DAY, NOW + DAY + 1] {
        let error = connect_twice(&verifier, &client, &[&client], now).unwrap_err();
        assert!(error.to_lowercase().contains("expired"), "{error}");
    }
}

#[test]
fn other_lists_and_other_trust_anchors_make_a_new_verifier_with_an_empty_cache() {
    let [root, other] = ["root", "other"].map(Party::root);
    let mut client = parameters("client", -9..9);
    client.serial_number = Some(SerialNumber::from(7));
    let client = root.certify(client);
    let cached = || {
        let verifier = Arc::new(root.verifier());
        connect(&verifier, &client, &[&client], NOW).unwrap();
        assert_eq!(verifier.chains.as_ref().unwrap().len(), 1);
        verifier
    };
    // A list that revokes the client, also if it is added to a verifier that has a warm cache.
    let _warm = cached();
    let crl = root.crl(&[7], 9);
    let new = root.verifier();
    let warm = Arc::try_unwrap(cached()).unwrap();
    for verifier in [new, warm] {
        let verifier = verifier.with_crls(crl.clone(), ExpiredCrl::Reject, RevocationDepth::Path);
        let error = connect_twice(&Arc::new(verifier), &client, &[&client], NOW).unwrap_err();
        assert!(error.to_lowercase().contains("revoked"), "{error}");
    }
    // A trust anchor that is removed, and one that is replaced by another key with the same name.
    for anchor in [&other, &Party::root("root")] {
        let verifier = Arc::new(anchor.verifier());
        connect_twice(&verifier, &client, &[&client], NOW).unwrap_err();
    }
}

#[test]
fn the_same_leaf_with_other_intermediates_is_another_chain() {
    let root = Party::root("root");
    let intermediate = root.certify(ca("ca", -9..9));
    let client = intermediate.certify(parameters("client", -9..9));
    let unrelated = Party::root("unrelated");
    let verifier = Arc::new(root.verifier());
    for _ in 0..2 {
        let path = connect_twice(&verifier, &client, &[&client, &intermediate], NOW);
        assert_eq!(path.as_deref(), Ok(&[0, 1, PathRoute::FILE][..]));
        let path = connect_twice(&verifier, &client, &[&client, &unrelated, &intermediate], NOW);
        assert_eq!(path.as_deref(), Ok(&[0, 2, PathRoute::FILE][..]));
        connect_twice(&verifier, &client, &[&client], NOW).unwrap_err();
        connect_twice(&verifier, &client, &[&client, &unrelated], NOW).unwrap_err();
    }
    assert_eq!(verifier.chains.as_ref().unwrap().len(), 1, "one chain for each leaf");
}

#[test]
fn connections_of_one_client_share_the_copy_of_its_certificates() {
    let root = Party::root("root");
    let client = root.certify(parameters("client", -9..9));
    let verifier = Arc::new(root.verifier());
    let leaf = std::slice::from_ref(&client.certificate);
    let unknown = verifier.copy_of(leaf);
    assert_eq!((&*unknown, Arc::strong_count(&unknown)), (leaf, 1));
    connect(&verifier, &client, &[&client], NOW).unwrap();
    let [first, second] = [(); 2].map(|()| verifier.copy_of(leaf));
    assert!(Arc::ptr_eq(&first, &second) && *first == *leaf);
    let longer = [client.certificate.clone(), root.certificate.clone()];
    assert_eq!(*verifier.copy_of(&longer), longer, "other intermediates are another copy");
    assert!(verifier.copy_of(&[]).is_empty());
}

/// A chain whose leaf is unique, of about `size` bytes.
fn chain(number: u64, size: usize) -> VerifiedChain {
    let mut leaf = number.to_be_bytes().to_vec();
    leaf.resize(size, 0);
    let route = PathRoute { places: smallvec::smallvec![0, PathRoute::FILE] };
    let presented = Arc::from([CertificateDer::from(leaf)]);
    VerifiedChain { presented, route, not_after: Duration::MAX, times: 0..10 }
}

#[test]
fn the_cache_is_bounded_and_keeps_the_chains_in_use() {
    let mut chains = Chains::default();
    let used = chain(0, 1000);
    chains.insert(1, used.clone());
    for number in 1..10_000 {
        chains.insert(1, chain(number, 1000));
        assert!(chains.young.bytes + chains.old.bytes <= MAX_BYTES);
        let found = chains.find(1, &used.presented[0], [&[], &[]], 5).expect("the chain in use");
        if found.is_old {
            chains.insert(1, found.chain);
        }
    }
    let kept = chains.young.by_verifier[&1].len() + chains.old.by_verifier[&1].len();
    assert!((MAX_BYTES / 4000..MAX_BYTES / 1000).contains(&kept), "{kept}");
    let sizes = chains.young.by_verifier[&1].values().map(VerifiedChain::size);
    assert_eq!(sizes.sum::<usize>(), chains.young.bytes);
    chains.insert(1, chain(1 << 40, MAX_CHAIN));
    assert!(chains.find(1, &chain(1 << 40, MAX_CHAIN).presented[0], [&[], &[]], 5).is_none());
}

#[test]
fn the_verifiers_of_a_thread_share_the_memory_and_no_chain() {
    let [first, second] = [ChainCache::default(), ChainCache::default()];
    let has = |cache: &ChainCache, number| {
        cache.find(&chain(number, 1000).presented[0], &[], &[], 5).is_some()
    };
    first.insert(chain(0, 1000));
    assert!(has(&first, 0) && !has(&second, 0));
    for number in 1..10_000 {
        second.insert(chain(number, 1000));
    }
    assert!(has(&second, 9999) && !has(&first, 0));
    let bytes = CHAINS.with_borrow(|chains| chains.young.bytes + chains.old.bytes);
    assert!((MAX_BYTES / 4..=MAX_BYTES).contains(&bytes), "{bytes}");
    assert_eq!(first.len(), 0);
}

#[test]
fn only_a_client_that_holds_its_key_keeps_its_chain_in_use() {
    let root = Party::root("root");
    let [client, other] = ["client", "other"].map(|it| root.certify(parameters(it, -9..9)));
    let verifier = Arc::new(root.verifier());
    let chains = verifier.chains.as_ref().unwrap();
    connect(&verifier, &client, &[&client], NOW).unwrap();
    let is_old = || chains.find(&client.certificate, &[], &[], NOW).map(|found| found.is_old);
    // Chains of others make the client's chain an old one.
    let mut others = (1..100).map(|number| chains.insert(chain(number, 15 << 10)));
    assert!(others.any(|()| is_old() == Some(true)));
    let count = chains.len();
    for _ in 0..3 {
        // A copy of the certificate, without its key.
        connect(&verifier, &other, &[&client], NOW).unwrap_err();
        assert_eq!((is_old(), chains.len()), (Some(true), count));
    }
    connect(&verifier, &client, &[&client], NOW).unwrap();
    assert_eq!(is_old(), Some(false));
}

#[test]
fn a_certificate_is_revoked_by_a_list_of_the_key_that_signed_it_only() {
    let [issuer, twin] = [0, 1].map(|_| Party::root("ca"));
    let mut client = parameters("client", -1..1);
    client.serial_number = Some(SerialNumber::from(7));
    let client = issuer.certify(client).certificate;
    assert!(issuer.crl(&[7], 9).revoke(&client));
    assert!(!twin.crl(&[7], 9).revoke(&client));
}
