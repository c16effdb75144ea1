//! The validating admission webhooks of Kubernetes: `AdmissionReview` of `admission.k8s.io/v1`.
//!
//! Judged are the request of a CertificateSigningRequest or of cert-manager's CertificateRequest,
//! and the entries `tls.crt` and `tls.key` of a Secret. The response has status 200 and the `uid`
//! of the review. A review whose `uid` cannot be read gets 403, which `failurePolicy: Fail` turns
//! into a denial. A review in a dry run is judged like any other.
//! Sources: `admission/v1/types.go` and `certificates/v1/types.go` of kubernetes/api,
//! `types_certificaterequest.go` of cert-manager.

use std::time::{Duration, Instant};

use keygate_core::{spki, tls};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::fields::HttpRequest;
use super::requested_keys::{RequestedKeys, decode};
use super::response::HttpAnswer;
use crate::ask::connection::AskConnection;
use crate::ask::denial::UNREADABLE;
use crate::ask::question::{Answer, ClientQuestion, Presented, Unusable};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// Maximum length of a uid, in bytes. Kubernetes sends UUIDs of 36 bytes.
const MAX_UID: usize = 128;

const MALFORMED: Unusable =
    Unusable::Malformed("the body is not an AdmissionReview of admission.k8s.io/v1");
const NO_OBJECT: Unusable = Unusable::Malformed("the review has no object, or not the data of one");
const OTHER_OPERATION: Unusable =
    Unusable::Malformed("the operation is none of CREATE, UPDATE, DELETE; correct rules");
const OTHER_RESOURCE: Unusable = Unusable::Malformed(
    "the resource is none of certificatesigningrequests, certificaterequests and secrets; correct \
     rules",
);
const NOT_ONE_REQUEST: Unusable =
    Unusable::Malformed("request is not the PEM of exactly one CERTIFICATE REQUEST");
const BAD_PRIVATE_KEY: Unusable =
    Unusable::Malformed("tls.key is encrypted, damaged, or of an unknown kind");
const NO_ENTRIES: &str =
    "keygate: the Secret has neither tls.crt nor tls.key, so no key was judged";

/// The response to a review.
pub(super) fn answer(
    connection: &AskConnection,
    request: Result<HttpRequest<'_>, Unusable>,
) -> HttpAnswer {
    let received = Instant::now();
    let config = connection.config();
    let header = &config.policy.header;
    let review = request.and_then(|request| Review::parse(request.body));
    let object = review.as_ref().ok().map(|review| review.request.to_string());
    let object = object.as_deref();
    let asked = review.as_ref().map_err(|it| *it).and_then(|review| review.request.asked());
    let (presented, note) = asked.unwrap_or_else(|it| (Presented::Unusable(it), None));
    let question = ClientQuestion { received, presented, client: None, server_name: None, object };
    let answer = connection.answer(&question);
    match review {
        Ok(review) => {
            let response = ReviewResponse::new(&review.request.uid, &answer, note);
            let body = ReviewBody { api_version: API_VERSION, kind: KIND, response };
            HttpAnswer::in_body(&answer, header, &body)
        }
        Err(_) => HttpAnswer::new(answer, header, None, Duration::ZERO),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    kind: String,
    request: ReviewRequest,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewRequest {
    uid: String,
    resource: Resource,
    operation: String,
    name: Option<String>,
    namespace: Option<String>,
    user_info: UserInfo,
    object: Option<Object>,
    old_object: Option<Object>,
}

#[derive(Deserialize)]
struct Resource {
    group: String,
    resource: String,
}

#[derive(Deserialize)]
struct UserInfo {
    username: Option<String>,
}

/// The parts of an object that have keys, in base64. An update that leaves them as they were is not
/// judged.
#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Object {
    spec: Option<RequestSpec>,
    data: Option<SecretData>,
    /// The API server has moved it to `data`.
    string_data: Option<IgnoredAny>,
}

#[derive(Deserialize, PartialEq)]
struct RequestSpec {
    request: Option<String>,
}

#[derive(Default, Deserialize, PartialEq)]
struct SecretData {
    #[serde(rename = "tls.crt")]
    certificate: Option<String>,
    #[serde(rename = "tls.key")]
    key: Option<String>,
}

impl Review {
    fn parse(body: &[u8]) -> Result<Self, Unusable> {
        let review: Self = serde_json::from_slice(body).map_err(|_| MALFORMED)?;
        let is_known = review.api_version == API_VERSION && review.kind == KIND;
        let has_uid = (1..=MAX_UID).contains(&review.request.uid.len());
        if is_known && has_uid { Ok(review) } else { Err(MALFORMED) }
    }
}

/// The object and its author, for logs.
impl std::fmt::Display for ReviewRequest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [namespace, name, author] =
            [&self.namespace, &self.name, &self.user_info.username].map(Option::as_deref);
        let slash = if namespace.is_some() { "/" } else { "" };
        let [namespace, name, author] = [namespace, name, author].map(Option::unwrap_or_default);
        write!(formatter, "{} {namespace}{slash}{name} by {author}", self.resource.resource)
    }
}

impl ReviewRequest {
    /// The keys that the review asks about, and a note for the author.
    fn asked<'a>(&self) -> Result<(Presented<'a>, Option<&'static str>), Unusable> {
        match self.operation.as_str() {
            "CREATE" | "UPDATE" => {}
            "DELETE" => return Ok((Presented::NoKey, None)),
            _ => return Err(OTHER_OPERATION),
        }
        let object = self.object.as_ref().ok_or(NO_OBJECT)?;
        let is_secret = match (self.resource.group.as_str(), self.resource.resource.as_str()) {
            ("certificates.k8s.io", "certificatesigningrequests")
            | ("cert-manager.io", "certificaterequests") => false,
            ("", "secrets") => true,
            _ => return Err(OTHER_RESOURCE),
        };
        // A denial would keep controllers from removing a finalizer of an object that exists.
        if self.operation == "UPDATE" && self.old_object.as_ref() == Some(object) {
            return Ok((Presented::NoKey, None));
        }
        if !is_secret {
            let request = object.spec.as_ref().and_then(|spec| spec.request.as_deref());
            return Ok((keys_of_request(request)?.presented()?, None));
        }
        if object.string_data.is_some() {
            return Err(NO_OBJECT);
        }
        match keys_of_secret(object.data.as_ref())? {
            Some(keys) => Ok((keys.presented()?, None)),
            None => Ok((Presented::NoKey, Some(NO_ENTRIES))),
        }
    }
}

/// The key of a request: base64 of PEM. Another program could read another one of several sections.
fn keys_of_request<'a>(request: Option<&str>) -> Result<RequestedKeys<'a>, Unusable> {
    let pem = decode(request)?.ok_or(NO_OBJECT)?;
    let has = |text: &[u8]| pem.windows(text.len()).filter(|window| *window == text).count();
    if [has(b"-----BEGIN"), has(b"-----BEGIN CERTIFICATE REQUEST-----")] != [1, 1] {
        return Err(NOT_ONE_REQUEST);
    }
    let request =
        CertificateSigningRequestDer::from_pem_slice(&pem).map_err(|_| NOT_ONE_REQUEST)?;
    let mut keys = RequestedKeys::default();
    keys.add_request(&request)?;
    Ok(keys)
}

/// The keys of a Secret: of each certificate in `tls.crt`, and the public key of each private key in
/// `tls.key`; `None` if it has neither.
fn keys_of_secret<'a>(data: Option<&SecretData>) -> Result<Option<RequestedKeys<'a>>, Unusable> {
    let Some(data) = data else { return Ok(None) };
    let certificate = decode(data.certificate.as_deref())?;
    let key = decode(data.key.as_deref())?.map(Zeroizing::new);
    if certificate.is_none() && key.is_none() {
        return Ok(None);
    }
    let mut keys = RequestedKeys::default();
    if let Some(pem) = certificate {
        for certificate in tls::certificates(&pem).map_err(|_| UNREADABLE)? {
            keys.add_certificate(certificate.to_vec())?;
        }
    }
    if let Some(pem) = key {
        for finding in spki::keys_in(&pem) {
            keys.add_key(&finding.key.map_err(|_| BAD_PRIVATE_KEY)?)?;
        }
    }
    Ok(Some(keys))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewBody<'a> {
    api_version: &'a str,
    kind: &'a str,
    response: ReviewResponse<'a>,
}

#[derive(Serialize)]
struct ReviewResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<[String; 1]>,
}

/// The reason for a denial (`metav1.Status`), for the author of the object.
#[derive(Serialize)]
struct Status {
    code: u16,
    reason: &'static str,
    message: String,
}

impl<'a> ReviewResponse<'a> {
    fn new(uid: &'a str, answer: &Answer, note: Option<&str>) -> Self {
        let finding = answer.finding.as_deref();
        let status = answer.reason.map(|reason| Status {
            code: 403,
            reason: "Forbidden",
            message: format!("keygate: {}", finding.unwrap_or(reason)),
        });
        let warning = finding.filter(|_| answer.is_allowed());
        let warning = warning.map(|finding| format!("keygate: {finding}"));
        let warnings = warning.or_else(|| note.map(str::to_owned)).map(|it| [it]);
        Self { uid, allowed: answer.is_allowed(), status, warnings }
    }
}
