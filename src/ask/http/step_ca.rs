//! The webhooks of step-ca that decide before it issues a certificate.
//!
//! step-ca signs the body with the secret of the webhook. The response has status 200 and says
//! `allow`; anything else than `true` makes step-ca issue nothing. A body that is sent again is the
//! same question again: it gets the answer of that moment, and changes nothing.
//! Source: `webhook/types.go` and `authority/provisioner/webhook.go` of smallstep/certificates.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::fields::HttpRequest;
use super::requested_keys::{RequestedKeys, decode};
use super::response::HttpAnswer;
use crate::ask::connection::AskConnection;
use crate::ask::question::{ClientQuestion, Presented, Unusable};
use crate::sources::webhook_keys::WebhookKeys;

const ID: &str = "x-smallstep-webhook-id";
const SIGNATURE: &str = "x-smallstep-signature";

const NOT_SIGNED: Unusable = Unusable::NotVerified(
    "no configured webhook has signed the question: its id and its secret must be those of step-ca",
);
const MALFORMED: Unusable = Unusable::Malformed("the body is not a question of step-ca");
const SCEP_CHALLENGE: Unusable = Unusable::Malformed(
    "a webhook of the kind SCEPCHALLENGE asks about a password; register this one as AUTHORIZING",
);

/// The response to a question.
pub(super) fn answer(
    connection: &AskConnection,
    request: Result<HttpRequest<'_>, Unusable>,
) -> HttpAnswer {
    let received = Instant::now();
    let authorizer = connection.authorizer();
    let body = request.and_then(|request| signed_body(&authorizer.webhooks, request));
    let body: Result<RequestBody, _> =
        body.and_then(|body| serde_json::from_slice(body).map_err(|_| MALFORMED));
    let object = body.as_ref().ok().and_then(RequestBody::name);
    let presented = body.as_ref().map_err(|it| *it).and_then(|body| body.keys()?.presented());
    let presented = presented.unwrap_or_else(Presented::Unusable);
    let question = ClientQuestion { received, presented, client: None, server_name: None, object };
    let answer = connection.answer(&question);
    let denial = answer.reason.map(|reason| Denial {
        code: answer.verdict.as_str(),
        message: answer.finding.as_deref().unwrap_or(reason),
    });
    let body = ResponseBody { allow: answer.is_allowed(), error: denial };
    HttpAnswer::in_body(&answer, &authorizer.config.policy.header, &body)
}

/// The body, if a configured webhook has signed it.
fn signed_body<'a>(keys: &WebhookKeys, request: HttpRequest<'a>) -> Result<&'a [u8], Unusable> {
    let (id, signature) = (request.fields.only(ID), request.fields.only(SIGNATURE));
    let (id, signature) = id.zip(signature).ok_or(NOT_SIGNED)?;
    keys.verify(id, request.body, signature).then_some(request.body).ok_or(NOT_SIGNED)
}

/// The body of a question.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestBody {
    x509_certificate: Option<X509>,
    x509_certificate_request: Option<X509>,
    ssh_certificate: Option<Ssh>,
    ssh_certificate_request: Option<Ssh>,
    /// The certificate with which the applicant of an X5C provisioner has authorized itself.
    x5c_certificate: Option<X509>,
    scep_challenge: Option<String>,
}

/// A certificate, or a request. All keys of it count.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct X509 {
    /// SubjectPublicKeyInfo, in base64.
    public_key: Option<String>,
    /// The whole certificate or request in base64, if there is one already.
    raw: Option<String>,
    subject: Option<Subject>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subject {
    common_name: Option<String>,
}

/// An SSH certificate, or a request for one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ssh {
    /// The key in its binary form, in base64.
    public_key: Option<String>,
    #[serde(alias = "keyID")]
    key_id: Option<String>,
}

impl RequestBody {
    /// The keys that the certificate would have, and the key that has authorized it.
    fn keys<'a>(&self) -> Result<RequestedKeys<'a>, Unusable> {
        if self.scep_challenge.as_ref().is_some_and(|challenge| !challenge.is_empty()) {
            return Err(SCEP_CHALLENGE);
        }
        let mut keys = RequestedKeys::default();
        for (x509, is_request) in [
            (&self.x509_certificate, false),
            (&self.x509_certificate_request, true),
            (&self.x5c_certificate, false),
        ] {
            let Some(x509) = x509 else { continue };
            let (raw, key) = (decode(x509.raw.as_deref())?, decode(x509.public_key.as_deref())?);
            if raw.is_none() && key.is_none() {
                return Err(MALFORMED);
            }
            match raw {
                Some(request) if is_request => keys.add_request(&request)?,
                Some(certificate) => keys.add_certificate(certificate)?,
                None => {}
            }
            key.map_or(Ok(()), |key| keys.add_key(&key))?;
        }
        for ssh in [&self.ssh_certificate, &self.ssh_certificate_request].into_iter().flatten() {
            let key = decode(ssh.public_key.as_deref())?.ok_or(MALFORMED)?;
            keys.add_ssh_key(&key)?;
        }
        Ok(keys)
    }

    /// The name in the certificate, for logs.
    fn name(&self) -> Option<&str> {
        let x509 = [&self.x509_certificate, &self.x509_certificate_request].into_iter().flatten();
        let names = x509.filter_map(|it| it.subject.as_ref()?.common_name.as_deref());
        let ssh = [&self.ssh_certificate, &self.ssh_certificate_request].into_iter().flatten();
        names.chain(ssh.filter_map(|it| it.key_id.as_deref())).find(|name| !name.is_empty())
    }
}

/// The body of a response. step-ca reads nothing else.
#[derive(Serialize)]
struct ResponseBody<'a> {
    allow: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Denial<'a>>,
}

/// The reason for a denial, in words for a person.
#[derive(Serialize)]
struct Denial<'a> {
    code: &'a str,
    message: &'a str,
}
