//! The revocation of a certificate at an ACME server, signed with the key of the certificate.
//!
//! The server may send anything: responses are bounded, and only the response of RFC 8555, section
//! 7.6, is a success. A redirect is an error, because a signature is for one URL.

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Builder;
use hyper::{Method, Response, StatusCode, header};
use keygate_core::jws::SigningKey;
use serde::Deserialize;
use serde_json::Value;

use super::client::{FetchClient, Progress, collect};
use super::error::{FetchError, shortened};
use crate::config::{FetchConfig, SourceUrl};
use crate::resolver::Resolver;

/// Maximum size of a response, in bytes.
const MAX_BODY: u64 = 64 << 10;
/// Number of requests that are sent if the server rejects the nonce of each.
const ATTEMPTS: usize = 3;
const BAD_NONCE: &str = "urn:ietf:params:acme:error:badNonce";

/// The directory (RFC 8555, section 7.1.1).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Directory {
    new_nonce: String,
    revoke_cert: String,
}

struct AcmeResponse {
    status: StatusCode,
    /// `Replay-Nonce`, if it is a nonce (RFC 8555, section 6.5.1).
    nonce: Option<String>,
    body: Vec<u8>,
}

/// Lets the ACME server with the directory at `config.url` revoke a certificate. `payload` is the
/// request without its signature.
///
/// # Errors
/// Returns an error if the server does not respond that the certificate is revoked now.
pub async fn revoke(
    config: &FetchConfig,
    resolver: Resolver,
    key: &SigningKey,
    payload: &Value,
) -> Result<(), FetchError> {
    let client = FetchClient::new(config, resolver)?;
    let url = &config.url;
    let AcmeResponse { status, body, .. } = request(&client, url, Method::GET, "").await?;
    let directory = serde_json::from_slice(&body).ok().filter(|_| status == StatusCode::OK);
    let Some(Directory { new_nonce, revoke_cert }) = directory else {
        let problem = "no directory of an ACME server; correct --acme";
        return Err(failed(url, format!("{status}, {problem}")));
    };
    // The CAs that authenticate the directory authenticate no other server.
    let own = |text: &str| {
        let own = SourceUrl::parse_file(text).filter(|own| own.has_same_origin(url));
        let problem = format!("the directory names {:?} on another server", shortened(text));
        own.ok_or_else(|| failed(url, problem))
    };
    let (nonce_url, revoke_url) = (own(&new_nonce)?, own(&revoke_cert)?);
    let (mut fresh, mut attempts) = (None, 0);
    loop {
        attempts += 1;
        if fresh.is_none() {
            fresh = request(&client, &nonce_url, Method::HEAD, "").await?.nonce;
        }
        let Some(nonce) = fresh.take() else {
            return Err(failed(&nonce_url, "no valid Replay-Nonce; try again later".to_owned()));
        };
        let body = key.acme_request(&nonce, &revoke_cert, payload);
        let body = body.map_err(|_| failed(&revoke_url, "the key cannot sign".to_owned()))?;
        let response = request(&client, &revoke_url, Method::POST, &body).await?;
        let (status, body) = (response.status, response.body.trim_ascii());
        // An error page may have the status 200.
        if status == StatusCode::OK && body.is_empty() {
            return Ok(());
        }
        // A problem document (RFC 9457), or null if it is something else.
        let problem: Value = serde_json::from_slice(body).unwrap_or_default();
        let [kind, detail] = ["type", "detail"].map(|it| problem.get(it).and_then(Value::as_str));
        if kind != Some(BAD_NONCE) || attempts >= ATTEMPTS {
            let [kind, detail] = [kind, detail].map(|it| shortened(it.unwrap_or("no reason")));
            let problem = format!("{status}, {kind}: {detail}");
            return Err(failed(&revoke_url, format!("the CA does not revoke: {problem}")));
        }
        fresh = response.nonce;
    }
}

fn failed(url: &SourceUrl, problem: String) -> FetchError {
    FetchError::Acme { url: url.to_string(), problem }
}

/// Sends a request. An error of the server is a response, too.
async fn request(
    client: &FetchClient,
    url: &SourceUrl,
    method: Method,
    body: &str,
) -> Result<AcmeResponse, FetchError> {
    let add = |builder: Builder| {
        builder.method(method.clone()).header(header::CONTENT_TYPE, "application/jose+json")
    };
    let read = async |response: Response<Incoming>, progress: &Progress| {
        let status = response.status();
        let nonce = response.headers().get("replay-nonce").and_then(|it| it.to_str().ok());
        let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let nonce = nonce.filter(|it| !it.is_empty() && it.bytes().all(is_base64url));
        let nonce = nonce.map(str::to_owned);
        let body = collect(response, MAX_BODY, progress).await?;
        Ok(AcmeResponse { status, nonce, body })
    };
    client.send(url, add, &Bytes::copy_from_slice(body.as_bytes()), read).await
}
