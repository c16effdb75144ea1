//! The webhooks of step-ca that decide before it issues a certificate.
//!
//! step-ca signs the body with the secret of the webhook. The response has status 200 and says
//! `allow`; anything else than `true` makes step-ca issue nothing. A body that is sent again is the
//! same question again: it gets the answer of that moment, and changes nothing.
//! Source: `webhook/types.go` and `authority/provisioner/webhook.go` of smallstep/certificates.

use std::time::Instant;

use rustls::pki_types::CertificateDer;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::fields::HttpRequest;
use super::requested_keys::{self, decode, of_certificate, of_key, of_request, of_ssh_key};
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
const OF_SCEP: Unusable = Unusable::Malformed(
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
    let body: Result<WebhookBody, _> =
        body.and_then(|body| serde_json::from_slice(body).map_err(|_| MALFORMED));
    let object = body.as_ref().ok().and_then(WebhookBody::name);
    let keys = body.as_ref().map_err(|it| *it).and_then(WebhookBody::keys);
    let presented = keys.and_then(requested_keys::presented);
    let presented = presented.unwrap_or_else(Presented::Unusable);
    let question = ClientQuestion { received, presented, client: None, server_name: None, object };
    let answer = connection.answer(&question);
    let body = match answer.is_allowed() {
        true => json!({ "allow": true }),
        false => {
            let error = json!({ "code": answer.verdict.as_str(), "message": answer.reason });
            json!({ "allow": false, "error": error })
        }
    };
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
struct WebhookBody {
    x509_certificate: Option<Requested>,
    x509_certificate_request: Option<Requested>,
    ssh_certificate: Option<Requested>,
    ssh_certificate_request: Option<Requested>,
    /// The certificate with which the applicant of an X5C provisioner has authorized itself.
    x5c_certificate: Option<Requested>,
    /// The password of an applicant; step-ca leaves an empty one out.
    scep_challenge: Option<IgnoredAny>,
    #[serde(rename = "scepTransactionID")]
    scep_transaction_id: Option<IgnoredAny>,
}

/// A certificate or a request. All keys of it count.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Requested {
    /// SubjectPublicKeyInfo or binary SSH key, in base64.
    public_key: Option<String>,
    /// The whole certificate or request in base64, if there is one already.
    raw: Option<String>,
    subject: Option<Subject>,
    #[serde(alias = "keyID")]
    key_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subject {
    common_name: Option<String>,
}

/// Reads a key out of a decoded member.
type ReadKey = fn(&[u8]) -> Result<CertificateDer<'static>, Unusable>;

impl WebhookBody {
    /// The keys that the certificate would have, and the key that has authorized it.
    fn keys(&self) -> Result<Vec<CertificateDer<'static>>, Unusable> {
        if self.scep_challenge.is_some() || self.scep_transaction_id.is_some() {
            return Err(OF_SCEP);
        }
        let mut keys = Vec::new();
        let members: [(_, ReadKey, ReadKey); 5] = [
            (&self.x509_certificate, of_certificate, of_key),
            (&self.x509_certificate_request, of_request, of_key),
            (&self.x5c_certificate, of_certificate, of_key),
            (&self.ssh_certificate, of_ssh_key, of_ssh_key),
            (&self.ssh_certificate_request, of_ssh_key, of_ssh_key),
        ];
        for (member, of_raw, of_public_key) in members {
            let Some(requested) = member else { continue };
            let before = keys.len();
            let raw = decode(requested.raw.as_deref())?;
            keys.extend(raw.map(|raw| of_raw(&raw)).transpose()?);
            let key = decode(requested.public_key.as_deref())?;
            keys.extend(key.map(|key| of_public_key(&key)).transpose()?);
            if keys.len() == before {
                return Err(MALFORMED);
            }
        }
        Ok(keys)
    }

    /// The name in the certificate, for logs.
    fn name(&self) -> Option<&str> {
        let x509 = [&self.x509_certificate, &self.x509_certificate_request];
        let all = x509.into_iter().chain([&self.ssh_certificate, &self.ssh_certificate_request]);
        all.flatten().find_map(|requested| {
            let subject = requested.subject.as_ref().and_then(|it| it.common_name.as_deref());
            subject.or(requested.key_id.as_deref()).filter(|name| !name.is_empty())
        })
    }
}
