//! One client that was rejected or flagged, and what was found about its key.

use std::net::IpAddr;

use data_encoding::BASE64;
use keygate_core::guard::{AllowKind, Decision, JudgedAt, Judgement, NameCheck, Verdict};
use keygate_core::spki::{self, Encoding};
use keygate_core::tls::{CertificateSummary, HandshakeResult, is_unsigned};
use keygate_core::unix_time;
use rustls::pki_types::CertificateDer;
use serde::{Serialize, Serializer};

/// Maximum size of the certificates of a client in memory, in bytes. Further ones are left out, the
/// root first. Common chains have 2 to 4 KiB.
const MAX_CHAIN: usize = 16 << 10;
/// The result of a client that is accepted until a date, although its certificate is for servers.
pub const SERVER_AUTH: &str = "server_auth";

/// A client that was rejected or flagged. Times are in seconds since the Unix epoch.
#[derive(Debug, Clone, Serialize)]
pub struct RecentHit {
    /// Name of the service that the client connected to.
    pub service: String,
    /// The verdict: `probable`, `listed` and so on.
    pub verdict: &'static str,
    /// The action: `reject`, `flag` or `header`.
    pub action: &'static str,
    /// `not_allowed` for a client that is rejected because no rule names it, whatever the verdict.
    /// `not_vouched` for a client whose CA may not vouch for it, and whose key was not judged.
    /// [`SERVER_AUTH`] for a client whose certificate is for servers only and is still accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<&'static str>,
    /// When the key was judged last: in a handshake, a resumed session, or on an open connection.
    pub stage: &'static str,
    /// The last IP address of the client; `None` if the host that asked did not send it.
    pub address: Option<IpAddr>,
    /// The client's certificate; `None` for a client without one.
    #[serde(flatten)]
    pub client: Option<CertificateSummary>,
    /// The filter or list that contains the key, or the check that it fails.
    #[serde(flatten)]
    pub source: HitSource,
    /// The CA and the name that it may not vouch for, for `not_vouched`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// SubjectPublicKeyInfo (DER, in JSON as base64) of the key that is in a filter or weak: the
    /// client's own, or the key of the issuer that was found. A source of proofs can be asked about
    /// it elsewhere, and primes of a weak key can be searched for.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "base64")]
    pub spki: Option<Box<[u8]>>,
    /// The certificates of a client whose key was found, as they were judged, leaf first (DER, in
    /// JSON as base64): the evidence for the CA.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "all_base64")]
    pub chain: Vec<Box<[u8]>>,
    /// When an open connection of the client was closed the last time, because it is rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicted: Option<u64>,
    /// When the client was first seen.
    pub first_seen: u64,
    /// When the client was last seen.
    pub last_seen: u64,
    /// Number of times the client was seen.
    pub count: u64,
}

/// The filter or list that contains a key, or the check that it fails, and how the key was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HitSource {
    /// Name of the filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Revision of the filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u32>,
    /// Probability that a key that was never added is a hit, over all lookups for one key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub false_positive_ratio: Option<f64>,
    /// Name of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// Name of the collection of the list that the key was found in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
    /// The check that a weak key fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<&'static str>,
    /// The encoding of the key that was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<&'static str>,
    /// Name of the proof of a confirmed key: the fingerprint of the encoding that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// Subject of the certificate that contains the key, if it is not the client's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_subject: Option<String>,
    /// Fingerprint of the key in that certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_fingerprint: Option<String>,
}

impl HitSource {
    fn new(chain: &[&CertificateDer<'_>], verdict: &Verdict) -> Self {
        // Position 0 is the client's own certificate, which `RecentHit` already shows.
        let issuer = verdict.position().filter(|position| *position > 0);
        let issuer = issuer
            .and_then(|position| chain.get(position))
            .map(|certificate| CertificateSummary::new(certificate));
        let (found_subject, found_fingerprint) =
            issuer.map(|issuer| (issuer.subject, issuer.fingerprint)).unzip();
        let (hit, listing) = (verdict.hit(), verdict.listing());
        Self {
            filter: hit.map(|hit| hit.filter.to_string()),
            revision: hit.map(|hit| hit.revision),
            false_positive_ratio: hit.map(|hit| hit.false_positive_ratio),
            list: listing.map(|listing| listing.list.to_string()),
            finding: listing.and_then(|it| it.finding.as_ref()).map(ToString::to_string),
            check: verdict.weakness().map(|weakness| weakness.check.as_str()),
            encoding: verdict.encoding().map(Encoding::as_str),
            proof: verdict.proof().map(ToString::to_string),
            found_subject,
            found_fingerprint,
        }
    }
}

/// The SubjectPublicKeyInfo of the key in `chain` that is in a filter, confirmed or weak.
fn found_spki(chain: &[&CertificateDer<'_>], verdict: &Verdict) -> Option<Box<[u8]>> {
    let is_in_question =
        verdict.hit().is_some() || verdict.proof().is_some() || verdict.weakness().is_some();
    let certificate = chain.get(verdict.position().filter(|_| is_in_question)?)?;
    spki::of_certificate(certificate).ok().map(Into::into)
}

/// The issued certificates of a client whose key was found, at most [`MAX_CHAIN`] bytes.
pub(super) fn found_chain(chain: &[&CertificateDer<'_>], verdict: &Verdict) -> Vec<Box<[u8]>> {
    let mut left = if verdict.position().is_some() { MAX_CHAIN } else { 0 };
    let fits = |certificate: &&&CertificateDer<'_>| {
        let rest = left.checked_sub(certificate.len());
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    let issued = chain.iter().filter(|certificate| !is_unsigned(certificate));
    issued.take_while(fits).map(|certificate| certificate.to_vec().into()).collect()
}

fn all_base64<S: Serializer>(chain: &[Box<[u8]>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(chain.iter().map(|certificate| BASE64.encode(certificate)))
}

fn base64<S: Serializer>(spki: &Option<Box<[u8]>>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = spki.as_ref().map(|spki| BASE64.encode(spki));
    text.serialize(serializer)
}

impl RecentHit {
    /// A client that is seen now.
    #[must_use]
    pub fn new(
        address: Option<IpAddr>,
        service: &str,
        chain: &[&CertificateDer<'_>],
        judgement: &Judgement,
        judged_at: JudgedAt,
    ) -> Self {
        let (now, verdict) = (unix_time::now(), &judgement.verdict);
        let is_evicted = judged_at == JudgedAt::Reload && judgement.decision == Decision::Reject;
        Self {
            service: service.to_owned(),
            verdict: verdict.as_str(),
            action: judgement.decision.as_str(),
            result: judgement.name_result(),
            stage: judged_at.as_str(),
            address,
            client: chain.first().map(|leaf| CertificateSummary::new(leaf)),
            source: HitSource::new(chain, verdict),
            error: None,
            spki: found_spki(chain, verdict),
            chain: found_chain(chain, verdict),
            evicted: is_evicted.then_some(now),
            first_seen: now,
            last_seen: now,
            count: 1,
        }
    }

    /// A client that is seen now, and whose CA may not vouch for a name of its certificate. `error`
    /// has both, bounded.
    pub(crate) fn not_vouched(
        address: Option<IpAddr>,
        service: &str,
        leaf: &CertificateDer<'_>,
        judged_at: JudgedAt,
        error: &str,
    ) -> Self {
        let (verdict, decision) = (Verdict::Unchecked, Decision::Reject);
        let names = NameCheck::NotChecked;
        let judgement = Judgement { reason: verdict.kind(), verdict, decision, names };
        let hit = Self::new(address, service, &[leaf], &judgement, judged_at);
        let result = Some(HandshakeResult::NotVouched.as_str());
        Self { result, error: Some(error.to_owned()), ..hit }
    }

    /// The client of this hit, whose certificate is for servers only.
    pub(crate) fn with_server_auth(self) -> Self {
        Self { result: Some(SERVER_AUTH), ..self }
    }

    /// The lines of a configuration that admit the client: a rule by name if none names it, or else
    /// a week's exception for the key that was found. Empty without a certificate, for
    /// [`SERVER_AUTH`], and for a client whose CA may not vouch for it: the CA may have forged its
    /// names.
    pub(crate) fn to_admit(&self) -> String {
        let Some(client) = &self.client else { return String::new() };
        let Some(result) = self.result else {
            let fingerprint = self.source.found_fingerprint.as_ref();
            let fingerprint = fingerprint.unwrap_or(&client.fingerprint);
            let until = unix_time::rfc3339(unix_time::now() + 7 * 86_400);
            let until = until.get(..10).unwrap_or_default();
            return format!(
                "[[exceptions]]\nfingerprint = \"{fingerprint}\"\nuntil = {until}\nreason = \"\""
            );
        };
        if [SERVER_AUTH, HandshakeResult::NotVouched.as_str()].contains(&result) {
            return String::new();
        }
        let uri = client.uris.first().filter(|_| client.uris.len() == 1);
        let names = [
            (AllowKind::Uri, uri),
            (AllowKind::Dns, client.dns_names.first()),
            (AllowKind::Email, client.emails.first()),
            (AllowKind::CommonName, client.common_name.as_ref()),
        ];
        let name = names.into_iter().find_map(|(kind, name)| Some((kind, name?.as_str())));
        let (kind, name) = name.unwrap_or((AllowKind::Spki, &client.fingerprint));
        // A string of JSON is one of TOML.
        let quoted = serde_json::to_string(name).unwrap_or_default();
        format!("client_auth.allow: {} = [{quoted}]", kind.as_str())
    }

    /// Fingerprint of the client's key, in hex; empty without a certificate.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        self.client.as_ref().map_or("", |client| &client.fingerprint)
    }
}
