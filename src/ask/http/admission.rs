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
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::fields::HttpRequest;
use super::requested_keys::{self, TOO_MANY, decode, of_key, of_request};
use super::response::HttpAnswer;
use crate::ask::connection::AskConnection;
use crate::ask::denial::UNREADABLE;
use crate::ask::question::{Answer, ClientQuestion, MAX_CERTIFICATES, Presented, Unusable};

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

/// The response to a review.
pub(super) fn answer(
    connection: &AskConnection,
    request: Result<HttpRequest<'_>, Unusable>,
) -> HttpAnswer {
    let received = Instant::now();
    let config = connection.config();
    let header = &config.policy.header;
    let review = request.and_then(|request| Review::parse(request.body));
    let object = review.as_ref().ok().map(ReviewRequest::name);
    let object = object.as_deref();
    let presented = review.as_ref().map_err(|it| *it).and_then(ReviewRequest::presented);
    let presented = presented.unwrap_or_else(Presented::Unusable);
    let question = ClientQuestion { received, presented, client: None, server_name: None, object };
    let answer = connection.answer(&question);
    match review {
        Ok(review) => HttpAnswer::in_body(&answer, header, &response(&review.uid, &answer)),
        Err(_) => HttpAnswer::new(answer, header, None, Duration::ZERO),
    }
}

/// The review with its response: the reason for a denial (`metav1.Status`), or a warning, for the
/// author of the object.
fn response(uid: &str, answer: &Answer) -> Value {
    let message = answer.reason.as_ref().map(|reason| format!("keygate: {reason}"));
    let response = match (answer.is_allowed(), message) {
        (true, None) => json!({ "uid": uid, "allowed": true }),
        (true, Some(warning)) => json!({ "uid": uid, "allowed": true, "warnings": [warning] }),
        (false, message) => {
            let status = json!({ "code": 403, "reason": "Forbidden", "message": message });
            json!({ "uid": uid, "allowed": false, "status": status })
        }
    };
    json!({ "apiVersion": API_VERSION, "kind": KIND, "response": response })
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
    resource: ReviewedResource,
    operation: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    user_info: UserInfo,
    object: Option<Object>,
    old_object: Option<Object>,
}

#[derive(Deserialize)]
struct ReviewedResource {
    group: String,
    resource: String,
}

#[derive(Deserialize)]
struct UserInfo {
    #[serde(default)]
    username: String,
}

/// The parts of an object that have keys, in base64. An update that leaves them as they were is not
/// judged.
#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Object {
    spec: Option<RequestSpec>,
    data: Option<SecretData>,
    string_data: Option<IgnoredAny>,
}

#[derive(Deserialize, PartialEq)]
struct RequestSpec {
    request: Option<String>,
}

#[derive(Deserialize, PartialEq)]
struct SecretData {
    #[serde(rename = "tls.crt")]
    certificate: Option<String>,
    #[serde(rename = "tls.key")]
    key: Option<String>,
}

impl Review {
    fn parse(body: &[u8]) -> Result<ReviewRequest, Unusable> {
        let review: Self = serde_json::from_slice(body).map_err(|_| MALFORMED)?;
        let is_known = review.api_version == API_VERSION && review.kind == KIND;
        let has_uid = (1..=MAX_UID).contains(&review.request.uid.len());
        if is_known && has_uid { Ok(review.request) } else { Err(MALFORMED) }
    }
}

impl ReviewRequest {
    /// The object and its author, for logs.
    fn name(&self) -> String {
        let Self { resource, namespace, name, user_info, .. } = self;
        format!("{} {namespace}/{name} by {}", resource.resource, user_info.username)
    }

    /// The keys that the review asks about.
    fn presented<'a>(&self) -> Result<Presented<'a>, Unusable> {
        match self.operation.as_str() {
            "CREATE" | "UPDATE" => {}
            "DELETE" => return Ok(Presented::NoKey),
            _ => return Err(OTHER_OPERATION),
        }
        let object = self.object.as_ref().ok_or(NO_OBJECT)?;
        let keys = match (self.resource.group.as_str(), self.resource.resource.as_str()) {
            ("certificates.k8s.io", "certificatesigningrequests")
            | ("cert-manager.io", "certificaterequests") => Object::key_of_request,
            ("", "secrets") => Object::keys_of_secret,
            _ => return Err(OTHER_RESOURCE),
        };
        // A denial would keep controllers from removing a finalizer of an object that exists.
        if self.operation == "UPDATE" && self.old_object.as_ref() == Some(object) {
            return Ok(Presented::NoKey);
        }
        keys(object)
    }
}

impl Object {
    /// The key of a request: base64 of PEM. Another program could read another one of several
    /// sections.
    fn key_of_request<'a>(&self) -> Result<Presented<'a>, Unusable> {
        let request = self.spec.as_ref().and_then(|spec| spec.request.as_deref());
        let pem = decode(request)?.ok_or(NO_OBJECT)?;
        if [sections(&pem, ""), sections(&pem, "CERTIFICATE REQUEST-----")] != [1, 1] {
            return Err(NOT_ONE_REQUEST);
        }
        let request = CertificateSigningRequestDer::from_pem_slice(&pem);
        requested_keys::presented(vec![of_request(&request.map_err(|_| NOT_ONE_REQUEST)?)?])
    }

    /// The keys of a Secret: of each certificate in `tls.crt`, and the public key of each private
    /// key in `tls.key`.
    fn keys_of_secret<'a>(&self) -> Result<Presented<'a>, Unusable> {
        if self.string_data.is_some() {
            return Err(NO_OBJECT);
        }
        let Some(data) = &self.data else { return Ok(Presented::NoKey) };
        let certificates = decode(data.certificate.as_deref())?;
        let private_keys = decode(data.key.as_deref())?.map(Zeroizing::new);
        if certificates.is_none() && private_keys.is_none() {
            return Ok(Presented::NoKey);
        }
        let mut keys = Vec::new();
        if let Some(pem) = certificates {
            keys.extend(tls::certificates(&pem).map_err(|_| UNREADABLE)?);
        }
        if let Some(pem) = private_keys {
            // Its public key takes time to compute, and an EC key may have a section of parameters.
            if sections(&pem, "") > 2 * MAX_CERTIFICATES {
                return Err(TOO_MANY);
            }
            for finding in spki::keys_in(&pem) {
                keys.push(of_key(&finding.key.map_err(|_| BAD_PRIVATE_KEY)?)?);
            }
        }
        requested_keys::presented(keys)
    }
}

/// The number of PEM sections that begin with this label.
fn sections(pem: &[u8], label: &str) -> usize {
    let begin = format!("-----BEGIN {label}");
    pem.windows(begin.len()).filter(|window| *window == begin.as_bytes()).count()
}
