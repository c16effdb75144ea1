//! The cost of [`Guard::judge`] in a handshake, from the client's leaf certificate to the verdict.
//!
//! The keys are P-256 and RSA-2048, as in most client certificates. The filters have k = 20 and
//! half of their bits set, the minimum size for a false-positive rate of 10⁻⁶. A filter of 2^20
//! bits (128 KiB, 36 thousand keys) is a company's own list. One of 2^27 (16 MiB, 4.6 million keys)
//! is larger than the second-level cache. One of 2^33 (1 GiB, 298 million keys) is larger than any
//! cache.
//!
//! * `miss` is a client with a good key. All encodings of the key are looked up. Each lookup ends
//!   at the first clear bit, after two bits on average.
//! * `miss-with-answers` is the same client, and a source of proofs has confirmed and cleared
//!   10,000 keys each.
//! * `miss-with-all` is the same client, and all checks are on: a list of 10,000 fingerprints and
//!   moduli, a badkeys blocklist of 4 million records, as large as the published one, and the
//!   checks of weak keys, whose results are known.
//! * `new-key` is the first judgement of an RSA key by a worker, with all checks of weak keys, and
//!   with one of them. `shared-primes` has a product of 77 KiB, as badkeys has for 2048 bits.
//!   `wiener-long-exponent` is that check for exponents as large as the modulus, which no TLS library
//!   accepts and a file of keys may have.
//! * `ed25519` is warm only: most numbers are no point, and a judgement computes with the point.
//! * `hit` is a client that is rejected. All 20 bits of its key are set.
//! * `warm` judges one client repeatedly. It is a lower bound.
//! * `cold` judges a new client after other work, as the proxy does. The work evicts the filter and
//!   the code from the first- and second-level caches; reading 8 MiB stands for it. The leaf is
//!   cached, because the proxy has just verified a signature with it.
//! * `cold-code` is `cold` with a filter of 32 bytes. `cold-filter` is `cold` after a judgement by
//!   that filter, which brings the code into the caches. They show the parts of `cold`, which
//!   overlap.
//!
//! A cold judgement is timed by itself, and its time includes reading the clock. Subtract
//! `cold/nothing`, which is the time of the clock. A sample is the mean of some dozens of
//! judgements. Because an interrupt distorts a sample, use the median of the samples and not the
//! mean that criterion prints.
//!
//! `names` is the judgement with rules by name: none, one of each kind, and 10,000 of each kind.
//! The client has a SPIFFE ID and two DNS names. The guard has no filter.
//!
//! `path` is the verification of a client's chain, a leaf below a root, without the judgement: by one
//! CA that may vouch for every name, by one with an entry in `client_auth.cas`, and by ten. The leaf has
//! the names of the client of `names`.
//!
//! `random access` is one dependent access to an unpredictable place in 1 GiB. It is the unit for
//! the cost of a judgement with a large filter.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark may fail loudly, and criterion's macros write undocumented functions"
)]

use std::hint::black_box;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, Criterion, SamplingMode, criterion_group, criterion_main,
};
use keygate_core::badkeys::{Blocklist, Findings, RECORD_SIZE};
use keygate_core::guard::{
    AllowKind, AllowRules, Answers, Decision, ExactList, FingerprintList, Guard, Judgement,
    KeyStrength, NameBounds, NameKinds, NamedBlocklist, NamedFilter, Policy, Verdict, WeakCheck,
    WeakChecks,
};
use keygate_core::pkbf::{Filter, Header};
use keygate_core::spki::{self, Fingerprint, PublicKey};
use keygate_core::tls::{BoundCas, ClientVerifier, TrustAnchors};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ED25519, PKCS_RSA_SHA256, RsaKeySize, SanType,
};
use rustls::pki_types::{CertificateDer, UnixTime};

const HASH_COUNT: u8 = 20;
const HASH_LENGTHS: [u8; 3] = [20, 27, 33];
/// Bytes read between two judgements, several times the second-level cache of a core.
const OTHER_WORK: usize = 8 << 20;
const CACHE_LINE: usize = 64;

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(100)
        .nresamples(10_000)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1200));
    targets = path, names, judge, random_access
}
criterion_main!(benches);

fn judge(criterion: &mut Criterion) {
    let clients = [
        Client::new("p256", &KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()),
        Client::new(
            "rsa-2048",
            &KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap(),
        ),
    ];
    let mut group = criterion.benchmark_group("judge");
    group.sampling_mode(SamplingMode::Flat);
    let other_work = vec![1; OTHER_WORK];
    group.bench_function("cold/nothing", |bencher| {
        bencher.iter_batched_ref(
            || read_through(&other_work),
            |_| Verdict::Clean,
            BatchSize::PerIteration,
        );
    });
    let tiny = Guard::new(vec![named(Filter::parse(&random_file(8)).unwrap())]);
    for client in &clients {
        let mut leaves = (0..).map(|number| client.leaf(number));
        cold(&mut group, &format!("cold-code/{}/miss", client.name), &tiny, || {
            read_through(&other_work);
            leaves.next().unwrap()
        });
    }
    let lists = lists();
    let ed25519 = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let ed25519 = CertificateParams::default().self_signed(&ed25519).unwrap().der().clone();
    new_keys(&mut group);
    long_exponents(&mut group);
    for hash_length in HASH_LENGTHS {
        let listed = listed_count(hash_length);
        let filter = filter(hash_length, &clients);
        let guard = Guard::new(vec![Arc::clone(&filter)]);
        let with_answers = Guard::new(vec![Arc::clone(&filter)]).with_answers(answers().into());
        let with_all = with_all_checks(filter, lists.clone());
        for (case, guard) in [("miss", &guard), ("miss-with-all", &with_all)] {
            warm(&mut group, &format!("ed25519/{case}/2^{hash_length}"), guard, &ed25519);
        }
        for client in &clients {
            let misses = listed..u64::MAX;
            let mut leaves = misses.clone().map(|number| client.leaf(number));
            let name = format!("cold-filter/{}/miss/2^{hash_length}", client.name);
            cold(&mut group, &name, &guard, || {
                read_through(&other_work);
                let other = leaves.next().unwrap();
                black_box(tiny.judge(&other, SystemTime::now()));
                leaves.next().unwrap()
            });
            for (case, guard, numbers) in [
                ("miss", &guard, misses.clone()),
                ("miss-with-answers", &with_answers, misses),
                ("hit", &guard, 0..listed),
            ] {
                let name = format!("{}/{case}/2^{hash_length}", client.name);
                warm(&mut group, &name, guard, &client.leaf(numbers.start));
                let mut leaves = numbers.cycle().map(|number| client.leaf(number));
                cold(&mut group, &format!("cold/{name}"), guard, || {
                    read_through(&other_work);
                    leaves.next().unwrap()
                });
            }
            let known = clean_leaves(&with_all, client, listed);
            let name = format!("{}/miss-with-all/2^{hash_length}", client.name);
            warm(&mut group, &name, &with_all, &known[0]);
            let mut leaves = known.iter().cycle();
            cold(&mut group, &format!("cold/{name}"), &with_all, || {
                read_through(&other_work);
                leaves.next().unwrap().clone()
            });
        }
    }
    group.finish();
}

/// Clients that `guard` has found clean. Most numbers are no modulus of a good RSA key.
fn clean_leaves(guard: &Guard, client: &Client, first: u64) -> Vec<CertificateDer<'static>> {
    let is_clean =
        |leaf: &CertificateDer<'static>| guard.judge(leaf, SystemTime::now()) == Verdict::Clean;
    let leaves: Vec<_> =
        (first..).map(|number| client.leaf(number)).filter(is_clean).take(1024).collect();
    assert!(leaves.iter().all(is_clean)); // the results of all are kept now
    leaves
}

/// The first judgement of each of some RSA keys by a new thread, which has no result.
fn new_keys(group: &mut BenchmarkGroup<'_, WallTime>) {
    let filter = named(Filter::parse(&random_file(20)).unwrap());
    let one = WeakCheck::ALL.map(|check| (check.as_str(), [check].into_iter().collect()));
    for (bits, size) in [(2048, RsaKeySize::_2048), (4096, RsaKeySize::_4096)] {
        let leaves = [(); 16].map(|()| {
            let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, size).unwrap();
            CertificateParams::default().self_signed(&key).unwrap().der().clone()
        });
        // 77 KiB of digits, the last one odd.
        let product = format!("rsa-primes:{bits}:{}", "7".repeat(2 * (77 << 10)));
        let product = Arc::new(FingerprintList::parse("products", &product).unwrap());
        for (name, checks) in [("all", WeakChecks::ALL)].into_iter().chain(one) {
            let guard = Guard::new(vec![Arc::clone(&filter)]);
            let guard = guard.with_weak_checks(checks).with_lists([Arc::clone(&product)]);
            let judge_all = || {
                let now = SystemTime::now();
                let begin = Instant::now();
                for leaf in &leaves {
                    let verdict = guard.judge(leaf, now);
                    assert_eq!(verdict, Verdict::Clean);
                }
                begin.elapsed() / 16
            };
            group.bench_function(format!("new-key/{name}/rsa-{bits}"), |bencher| {
                bencher.iter_custom(|count| {
                    let judge =
                        || std::thread::scope(|scope| scope.spawn(judge_all).join().unwrap());
                    (0..count).map(|_| judge()).sum()
                });
            });
        }
    }
}

fn long_exponents(group: &mut BenchmarkGroup<'_, WallTime>) {
    let wiener = [WeakCheck::Wiener].into_iter().collect();
    for bits in [2048, 4096, 8192] {
        let keys = [(); 16].map(|()| {
            let [modulus, mut exponent] = [(); 2].map(|()| random_number(bits));
            exponent[0] >>= 1; // less than the modulus
            rsa_spki(&modulus, &exponent)
        });
        group.bench_function(format!("new-key/wiener-long-exponent/rsa-{bits}"), |bencher| {
            let check_all = || {
                let begin = Instant::now();
                for spki in &keys {
                    let key = PublicKey::parse(spki);
                    let strength = KeyStrength::new(&key, wiener, || Fingerprint::of(spki));
                    assert_eq!(strength, KeyStrength::default());
                }
                begin.elapsed() / 16
            };
            bencher.iter_custom(|count| {
                let check = || std::thread::scope(|scope| scope.spawn(check_all).join().unwrap());
                (0..count).map(|_| check()).sum()
            });
        });
    }
}

/// An odd number with this many bits.
fn random_number(bits: usize) -> Vec<u8> {
    let mut number = vec![0; bits / 8];
    fastrand::fill(&mut number);
    number[0] |= 0x80;
    *number.last_mut().unwrap() |= 1;
    number
}

/// The SubjectPublicKeyInfo of an RSA key with this modulus and this public exponent.
fn rsa_spki(modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
    let element = |tag: u8, content: &[u8]| {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x82], &length[..], content].concat()
    };
    let integer = |number: &[u8]| element(2, &[&[0], number].concat());
    let key = element(0x30, &[integer(modulus), integer(exponent)].concat());
    // rsaEncryption, and NULL.
    let algorithm = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\0";
    element(0x30, &[&algorithm[..], &element(3, &[&[0], &key[..]].concat())].concat())
}

fn warm(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    guard: &Guard,
    leaf: &CertificateDer<'_>,
) {
    let now = SystemTime::now();
    group.bench_function(format!("warm/{name}"), |bencher| {
        bencher.iter(|| guard.judge(black_box(leaf), now));
    });
}

/// Times judgements only. `setup` does the other work and returns the next client's leaf.
fn cold(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    guard: &Guard,
    mut setup: impl FnMut() -> CertificateDer<'static>,
) {
    let now = SystemTime::now();
    group.bench_function(name, |bencher| {
        bencher.iter_batched_ref(
            &mut setup,
            |leaf| guard.judge(leaf, now),
            BatchSize::PerIteration,
        );
    });
}

/// Judges a client that is named by its SPIFFE ID, with no rules, few and many.
fn names(criterion: &mut Criterion) {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let leaf = with_names().self_signed(&key).unwrap().der().clone();
    let guard = Guard::new(Vec::new());
    let mut group = criterion.benchmark_group("names");
    for (case, others) in [("none", None), ("one", Some(1)), ("10000", Some(10_000))] {
        let allow = others.map(|others| Arc::new(rules(others)));
        let policy = Policy { allow, on_unchecked: Decision::Admit, ..Policy::default() };
        let now = SystemTime::now();
        group.bench_function(case, |bencher| {
            bencher.iter(|| {
                let judgement = Judgement::new(&guard, &policy, black_box([&leaf]), now);
                assert_eq!(judgement.decision, Decision::Admit);
            });
        });
    }
}

fn with_names() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.subject_alt_names = vec![
        SanType::URI("spiffe://example.org/ns/shop/sa/orders".try_into().unwrap()),
        SanType::DnsName("orders.shop.example.org".try_into().unwrap()),
        SanType::DnsName("orders.shop.svc".try_into().unwrap()),
    ];
    parameters
}

/// Verifies a client by CAs with and without bounds.
fn path(criterion: &mut Criterion) {
    let cas: Vec<_> = (0..10).map(|number| ca(&format!("CA {number}"))).collect();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let leaf = with_names().signed_by(&key, &cas[0].1).unwrap().der().clone();
    let mut group = criterion.benchmark_group("path");
    for (case, count, is_bound) in
        [("unbound", 1, false), ("bound", 1, true), ("ten-bound", 10, true)]
    {
        let roots: Vec<_> = cas.iter().take(count).map(|(root, _)| root.clone()).collect();
        let mut verifier = ClientVerifier::new(Arc::new(TrustAnchors::new(roots.clone()).unwrap()));
        if is_bound {
            let mut bound = BoundCas::new(NameKinds::default());
            for (number, root) in roots.iter().enumerate() {
                let trust_domain = if number == 0 { "example.org" } else { "example.net" };
                let mut bounds = NameBounds::default();
                bounds.add(AllowKind::Uri, trust_domain).unwrap();
                bounds.add(AllowKind::Dns, &format!("**.shop.{trust_domain}")).unwrap();
                bounds.add(AllowKind::Dns, "*.shop.svc").unwrap();
                bound.bind(slice::from_ref(root), &Arc::new(bounds));
            }
            verifier = verifier.with_bound_cas(bound);
        }
        group.bench_function(case, |bencher| {
            bencher.iter(|| verifier.verify(black_box(&leaf), &[], UnixTime::now()).unwrap());
        });
    }
}

/// A root, and what signs its certificates.
fn ca(name: &str) -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let root = parameters.self_signed(&key).unwrap().der().clone();
    (root, Issuer::new(parameters, key))
}

/// A rule for the client of [`names`], and `others` of each kind.
fn rules(others: u32) -> AllowRules {
    let mut rules = AllowRules::default();
    rules.add(AllowKind::Uri, "spiffe://example.org/ns/*/sa/orders").unwrap();
    for number in 0..others {
        for (kind, rule) in [
            (AllowKind::CommonName, format!("client {number}")),
            (AllowKind::Dns, format!("host{number}.example.org")),
            (AllowKind::Dns, format!("*.ns{number}.example.org")),
            (AllowKind::Email, format!("client{number}@example.org")),
            (AllowKind::OrganizationalUnit, format!("unit {number}")),
            (AllowKind::Uri, format!("spiffe://example.org/ns/{number}/sa/*")),
            (AllowKind::Uri, format!("spiffe://example.org/ns/*/sa/{number}")),
        ] {
            rules.add(kind, &rule).unwrap();
        }
    }
    rules
}

/// Follows a chain through the 2^24 cache lines of 1 GiB; each line contains the number of the
/// next.
fn random_access(criterion: &mut Criterion) {
    const LINES: usize = 1 << 24;
    const WORDS: usize = CACHE_LINE / size_of::<usize>();
    // A linear congruential generator modulo 2^24 visits every line (Hull and Dobell, 1962).
    let next =
        |line: usize| (line.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x9e37_79b9)) % LINES;
    let mut memory = vec![0; LINES * WORDS];
    for line in 0..LINES {
        memory[line * WORDS] = next(line);
    }
    let mut line = 0;
    criterion.bench_function("random access", |bencher| {
        bencher.iter(|| {
            line = memory[line * WORDS];
            line
        });
    });
}

/// Clients with keys of one type, by number.
struct Client {
    name: &'static str,
    /// A valid leaf. The leaves of the clients differ from it in 8 bytes of the key.
    leaf: Vec<u8>,
    /// Offset of these bytes in the leaf.
    key: usize,
}

impl Client {
    fn new(name: &'static str, key: &KeyPair) -> Self {
        /// An offset after the first byte of a P-256 point or an RSA modulus, within the next 16.
        const KEY_IN_SPKI: usize = 40;
        let leaf = CertificateParams::default().self_signed(key).unwrap().der().to_vec();
        let spki = spki::of_certificate(&leaf).unwrap();
        let start = leaf.windows(spki.len()).position(|window| window == spki).unwrap();
        Self { name, key: start + KEY_IN_SPKI, leaf }
    }

    /// The leaf of client `number`. Its point or modulus is not valid, which a judgement does not
    /// check.
    fn leaf(&self, number: u64) -> CertificateDer<'static> {
        let mut leaf = self.leaf.clone();
        leaf[self.key..][..8].copy_from_slice(&number.to_be_bytes());
        leaf.into()
    }
}

/// Number of clients of each type in a filter. It is large enough that no client recurs while it is
/// cached, and small enough to leave half of the bits clear.
fn listed_count(hash_length: u8) -> u64 {
    (1 << (hash_length - 11)).min(16_384)
}

/// Answers about 20,000 keys that are in no filter here.
fn answers() -> Answers {
    const COUNT: u64 = 10_000;
    let mut answers = Answers::new(["bench".into()]);
    let until = SystemTime::now() + Duration::from_secs(86_400);
    for key in 0..COUNT {
        answers.confirm(&key.to_be_bytes());
        answers.clear(Fingerprint::of(&(COUNT + key).to_be_bytes()), until);
    }
    answers
}

/// A guard with everything that a configuration can switch on, but a source of proofs.
fn with_all_checks(filter: Arc<NamedFilter>, lists: [ExactList; 2]) -> Guard {
    Guard::new(vec![filter]).with_lists(lists).with_weak_checks(WeakChecks::ALL)
}

/// Exact lists with none of the clients.
fn lists() -> [ExactList; 2] {
    const RECORDS: usize = 4_000_000;
    let digests = (0..5000_u64).map(|key| Fingerprint::of(&key.to_be_bytes()));
    let lines: String = digests.map(|it| format!("{it}\nrsa-modulus:{it}\n")).collect();
    let fingerprints = FingerprintList::parse("march", &lines).unwrap();
    let random = random_file(29); // 64 MiB
    let mut records = random[..RECORDS * RECORD_SIZE].as_chunks::<RECORD_SIZE>().0.to_vec();
    records.sort_unstable();
    let named = NamedBlocklist {
        name: "badkeys".into(),
        blocklist: Blocklist::parse(records.into_flattened()).unwrap(),
        sha256: [0; 32],
        findings: Findings::default(),
        date: None,
        is_deprecated: false,
    };
    [Arc::new(fingerprints).into(), Arc::new(named).into()]
}

/// A filter with random bits, and the first clients of each kind.
fn filter(hash_length: u8, clients: &[Client]) -> Arc<NamedFilter> {
    let file = random_file(hash_length);
    let mut filter = Filter::parse(&file).unwrap();
    for client in clients {
        for number in 0..listed_count(hash_length) {
            filter.insert(spki::of_certificate(&client.leaf(number)).unwrap());
        }
    }
    read_through(&file); // evicts the clients of a large filter from the last-level cache
    let filter = named(filter);
    let guard = Guard::new(vec![Arc::clone(&filter)]);
    for client in clients {
        let [hit, miss] = [0, listed_count(hash_length)].map(|number| client.leaf(number));
        assert!(guard.judge(&hit, SystemTime::now()).hit().is_some());
        assert_eq!(guard.judge(&miss, SystemTime::now()), Verdict::Clean);
    }
    filter
}

fn named(filter: Filter) -> Arc<NamedFilter> {
    Arc::new(NamedFilter { name: "bench".into(), filter, sha256: [0; 32] })
}

/// A filter file with random bits, half of them set.
fn random_file(hash_length: u8) -> Vec<u8> {
    let bits = 1_u64 << hash_length;
    let entries = bits * 693 / 1000 / u64::from(HASH_COUNT); // ln 2 · m / k
    let header = Header {
        revision: 1,
        updated_at: 1_700_000_000,
        entry_count: entries.try_into().unwrap(),
        hash_count: HASH_COUNT,
        hash_length,
    };
    let size = usize::try_from(header.data_size()).unwrap();
    let mut file = Vec::with_capacity(header.to_bytes().len() + size);
    file.extend(header.to_bytes());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..size / 8 {
        random ^= random << 13; // Marsaglia, "Xorshift RNGs", 2003
        random ^= random >> 7;
        random ^= random << 17;
        file.extend_from_slice(&random.to_be_bytes());
    }
    file
}

/// Reads one byte of each cache line.
fn read_through(memory: &[u8]) -> u64 {
    black_box(memory.iter().step_by(CACHE_LINE).map(|byte| u64::from(*byte)).sum())
}
