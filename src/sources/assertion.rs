//! Assertions: statements about clients that a service can verify, and the keys that sign them.
//!
//! An assertion is a compact JWS (RFC 7515) with a type of its own (RFC 8725, section 3.11). It is
//! bound to the client's certificate (RFC 8705, section 3.1).

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::SystemTime;

use data_encoding::BASE64URL_NOPAD;
use hyper::header::HeaderValue;
use keygate_core::guard::Judgement;
use keygate_core::jws::SigningKey;
use keygate_core::spki::{self, Fingerprint};
use keygate_core::tls::{self, CertificateSummary};
use keygate_core::unix_time;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tracing::error;

use super::credential_files::{CredentialFiles, SIGNING_KEYS};
use super::credential_unit::CredentialUnit;
use super::load_error::CredentialError;
use super::load_errors::LoadErrors;
use super::private_key::{self, ExposedKeyFile};
use super::service_file::ServiceFile;
use super::unit_files::UnitFiles;
use crate::config::{AssertionConfig, PolicyConfig};
use crate::saved_state::saved_credentials::sha256;

/// Maximum size of a file with a signing key, in bytes.
const MAX_FILE: u64 = 16 << 10;
/// The time for which a key is published before it signs, 10 min. Verifiers that keep a set for a
/// shorter time, as Envoy, PyJWT and Spring do, know each key before it signs.
const PUBLISHED_BEFORE: u64 = 600;
/// The time for which a key is published after its last signature: the maximum life of an assertion.
const PUBLISHED_AFTER: u64 = 300;

/// The keys that sign the assertions of a service or an authorizer.
#[derive(Debug, Clone, Default)]
pub(crate) struct SigningKeys {
    /// The key that begins first is the first one.
    keys: Arc<[DatedKey]>,
    /// The files with unsafe permissions.
    exposed: Vec<ExposedKeyFile>,
}

#[derive(Debug)]
struct DatedKey {
    key: SigningKey,
    /// The fingerprint of the key, which is its `kid`.
    id: String,
    /// When it begins to sign, in seconds since the Unix epoch.
    from: u64,
    file: PathBuf,
}

impl UnitFiles for SigningKeys {
    const UNIT: CredentialUnit = CredentialUnit::SigningKeys;

    fn paths(files: CredentialFiles<'_>) -> Vec<PathBuf> {
        files.policy.signing_keys().iter().map(|key| key.file.clone()).collect()
    }

    /// Reads the keys. `before` are the keys in use; none at a start.
    ///
    /// # Errors
    /// Returns an error if a key cannot sign, has not been published for long enough, or has signed
    /// too recently to be removed; or if no key signs yet.
    fn read(
        files: CredentialFiles<'_>,
        before: &Self,
        now: SystemTime,
    ) -> Result<Self, LoadErrors> {
        let (now, mut exposed, mut keys) = (unix_time::seconds(now), Vec::new(), Vec::new());
        for configured in files.policy.signing_keys() {
            let file = ServiceFile { files, key: SIGNING_KEYS, path: &configured.file };
            let read = private_key::read(file.path, MAX_FILE).map_err(|it| file.error(it))?;
            exposed.extend(read.exposed);
            let key = tls::key_der(&read.content).map_err(|it| file.error(it))?;
            let key = SigningKey::new(key.secret_der()).ok();
            let key = key.filter(|it| ["ES256", "EdDSA"].contains(&it.algorithm));
            let key = key.ok_or_else(|| file.error(CredentialError::SigningKey(UNSUITABLE)))?;
            let id = Fingerprint::of(&key.spki).to_string();
            if keys.iter().any(|known: &DatedKey| known.id == id) {
                return Err(file.error(CredentialError::SigningKey(TWICE)).into());
            }
            let from = configured.from.map_or(0, unix_time::seconds);
            let mut known = before.keys.iter().filter(|known| known.id == id);
            let is_published = known.any(|known| known.from <= from.max(now));
            if !before.keys.is_empty() && !is_published && from < now + PUBLISHED_BEFORE {
                return Err(file.error(CredentialError::SigningKey(UNPUBLISHED)).into());
            }
            keys.push(DatedKey { key, id, from, file: configured.file.clone() });
        }
        keys.sort_by_key(|key| key.from);
        let rejected = |key: &DatedKey, problem| {
            let file = ServiceFile { files, key: SIGNING_KEYS, path: &key.file };
            LoadErrors::from(file.error(CredentialError::SigningKey(problem)))
        };
        if let Some(first) = keys.first().filter(|first| first.from > now) {
            return Err(rejected(first, NO_SIGNER));
        }
        // The end of the key before depends on the time at which this one took over.
        let signed = before.keys.iter().rfind(|key| key.from <= now);
        if let Some((signer, signed)) = keys.iter_mut().rfind(|key| key.from <= now).zip(signed) {
            signer.from = if signer.id == signed.id { signer.from.max(signed.from) } else { now };
        }
        let ends = before.keys.iter().skip(1).map(|next| next.from + PUBLISHED_AFTER);
        for (key, end) in before.keys.iter().zip(ends.chain([u64::MAX])) {
            let is_needed = key.from <= now && now < end && !files.policy.signing_keys().is_empty();
            if is_needed && !keys.iter().any(|kept| kept.id == key.id) {
                return Err(rejected(key, STILL_NEEDED));
            }
        }
        Ok(Self { keys: keys.into(), exposed })
    }

    fn exposed(&self) -> &[ExposedKeyFile] {
        &self.exposed
    }
}

impl SigningKeys {
    /// Each key in a certificate, because the keys of a service are judged in certificates.
    pub(super) fn certificates(&self) -> impl Iterator<Item = CertificateDer<'static>> {
        self.keys.iter().filter_map(|it| tls::certificate_of_key(&it.key.spki).ok())
    }

    /// The assertions with this policy for the service or authorizer `audience`.
    pub(crate) fn assertions(&self, policy: &PolicyConfig, audience: &str) -> Option<Assertions> {
        let (config, audience) = (policy.assertion.clone()?, audience.to_owned());
        Some(Assertions { keys: Arc::clone(&self.keys), config, audience, failure: Once::new() })
    }
}

const UNSUITABLE: &str =
    "not a private key of the curve P-256 or of Ed25519; make one with `openssl genpkey`";
const TWICE: &str = "the key is in another file too; remove one of them";
const NO_SIGNER: &str = "no key signs yet; remove `from` of the present key";
const UNPUBLISHED: &str = "verifiers do not know the key yet; give it a `from` that is at least 10 minutes from now, and let the present key sign until then";
const STILL_NEEDED: &str = "the key that was in the file has signed within the last 5 minutes; keep it until 5 minutes after the next key has begun";

/// The set of these public keys (RFC 7517, section 5), each key once. `nbf` is the time at which a
/// key begins to sign.
pub(crate) fn key_set<'a>(keys: impl IntoIterator<Item = &'a SigningKeys>) -> String {
    let mut set: Vec<Value> = Vec::new();
    for DatedKey { key, id, from, .. } in keys.into_iter().flat_map(|it| &*it.keys) {
        if !set.iter().any(|known| known["kid"] == **id) {
            let mut jwk = key.jwk.clone();
            let facts = json!({ "alg": key.algorithm, "kid": id, "nbf": from, "use": "sig" });
            if let (Value::Object(jwk), Value::Object(facts)) = (&mut jwk, facts) {
                jwk.extend(facts);
            }
            set.push(jwk);
        }
    }
    json!({ "keys": set }).to_string()
}

/// Makes the assertions about the clients of a service or an authorizer.
#[derive(Debug)]
pub(crate) struct Assertions {
    keys: Arc<[DatedKey]>,
    pub(crate) config: AssertionConfig,
    audience: String,
    /// Logs the first signature that fails.
    failure: Once,
}

impl Assertions {
    /// An assertion from `now` on about a client that is served: one signature, which takes some
    /// 20 µs with ES256. `None` if the cryptographic library cannot sign. A connection uses it in
    /// the first half of its life, and never in a second before `now`: the clock may be set back.
    pub(crate) fn sign(
        &self,
        now: u64,
        leaf: &CertificateDer<'_>,
        summary: &CertificateSummary,
        judgement: &Judgement,
    ) -> Option<(HeaderValue, Range<u64>)> {
        // The clock may have been set back.
        let DatedKey { key, id, .. } =
            self.keys.iter().rfind(|key| key.from <= now).or_else(|| self.keys.first())?;
        let header = json!({ "alg": key.algorithm, "kid": id, "typ": "keygate-assertion+jwt" });
        let (verdict, life) = (&judgement.verdict, self.config.life.as_secs());
        let (hit, listing) = (verdict.hit(), verdict.listing());
        let finding = listing.and_then(|it| it.finding.as_deref());
        let mut ids = summary.uris.iter().filter(|uri| uri.starts_with("spiffe://"));
        // A certificate with two SPIFFE IDs is no SVID.
        let id = ids.next().filter(|_| ids.next().is_none());
        // A name that is cut could be the name of two clients.
        let subject = Some(id.unwrap_or(&summary.subject)).filter(|name| !name.ends_with('…'));
        let end = spki::not_after(leaf).map_or(now, |it| it.as_secs());
        let mut claims = json!({
            "iss": self.config.issuer,
            "aud": self.audience,
            "iat": now,
            "nbf": now,
            "exp": end.min(now + life),
            "sub": subject,
            "cnf": { "x5t#S256": BASE64URL_NOPAD.encode(&sha256(leaf)) },
            "action": judgement.decision.as_str(),
            "verdict": verdict.as_str(),
            "fingerprint": summary.fingerprint,
            "finding": finding.or(verdict.weakness().map(|it| it.check.as_str())),
            "list": listing.map(|it| &*it.list),
            "filter": hit.map(|it| &*it.filter),
            "version": hit.map(|it| it.revision),
        });
        if let Some(claims) = claims.as_object_mut() {
            claims.retain(|_, claim| !claim.is_null());
        }
        let parts = key.sign(&header, &claims).inspect_err(|error| {
            self.failure.call_once(|| error!(%error, audience = self.audience, "cannot sign"));
        });
        Some((HeaderValue::try_from(parts.ok()?.join(".")).ok()?, now..now + life / 2))
    }
}
