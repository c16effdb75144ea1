//! The revocation of a certificate at an ACME server, signed with the key of the certificate.
//!
//! The server may send anything: responses are bounded, and only the response of RFC 8555, section
//! 7.6, is a success. A redirect is an error, because a signature is for one URL.

use aws_lc_rs::error::Unspecified;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Builder;
use hyper::{Method, Response, StatusCode, header};
use keygate_core::proof::RequestSigner;
use serde::Deserialize;
use serde_json::Value;

use super::client::{FetchClient, Progress, collect, header_text};
use super::error::{FetchError, shortened};
use crate::config::{FetchConfig, SourceUrl};
use crate::resolver::Resolver;

/// Maximum size of a response, in bytes.
const MAX_BODY: u64 = 64 << 10;
/// Number of requests that are sent if the server rejects the nonce of each.
const ATTEMPTS: usize = 3;
const BAD_NONCE: &str = "urn:ietf:params:acme:error:badNonce";

/// Why a certificate was not revoked.
#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    /// There is no response.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The server rejects the request, or its response is none of RFC 8555.
    #[error("{url}: {problem}")]
    Response {
        /// The URL.
        url: String,
        /// The reason and the remedy.
        problem: String,
    },
    /// The cryptographic library cannot sign.
    #[error("the signature failed: {0}")]
    Signature(#[from] Unspecified),
}

impl AcmeError {
    fn response(url: &SourceUrl, problem: String) -> Self {
        Self::Response { url: url.to_string(), problem }
    }
}

/// The directory (RFC 8555, section 7.1.1).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Directory {
    new_nonce: String,
    revoke_cert: String,
}

struct AcmeResponse {
    status: StatusCode,
    /// `Replay-Nonce`; empty without one.
    nonce: String,
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
    signer: &RequestSigner,
    payload: &Value,
) -> Result<(), AcmeError> {
    let client = FetchClient::new(config, resolver)?;
    let (url, wrong) = (&config.url, AcmeError::response);
    let AcmeResponse { status, body, .. } = request(&client, url, Method::GET, "").await?;
    let directory = serde_json::from_slice(&body).ok().filter(|_| status == StatusCode::OK);
    let Some(Directory { new_nonce, revoke_cert }) = directory else {
        let problem = "no directory of an ACME server; correct --acme";
        return Err(wrong(url, format!("{status}, {problem}")));
    };
    // The CAs that authenticate the directory authenticate no other server.
    let own = |text: &str| {
        let own = SourceUrl::parse_file(text).filter(|own| own.has_same_origin(url));
        let problem = format!("the directory names {:?} on another server", shortened(text));
        own.ok_or_else(|| wrong(url, problem))
    };
    let (nonce_url, revoke_url) = (own(&new_nonce)?, own(&revoke_cert)?);
    let (mut nonce, mut attempts) = (String::new(), 0);
    loop {
        attempts += 1;
        if !is_nonce(&nonce) {
            nonce = request(&client, &nonce_url, Method::HEAD, "").await?.nonce;
        }
        if !is_nonce(&nonce) {
            let problem = "no valid Replay-Nonce; try again later".to_owned();
            return Err(wrong(&nonce_url, problem));
        }
        let body = signer.sign(&nonce, &revoke_cert, payload)?;
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
            return Err(wrong(&revoke_url, format!("the CA does not revoke: {problem}")));
        }
        nonce = response.nonce;
    }
}

/// Whether a server may have sent this nonce (RFC 8555, section 6.5.1).
fn is_nonce(text: &str) -> bool {
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    !text.is_empty() && text.bytes().all(is_base64url)
}

async fn request(
    client: &FetchClient,
    url: &SourceUrl,
    method: Method,
    body: &str,
) -> Result<AcmeResponse, AcmeError> {
    let add = |builder: Builder| {
        builder.method(method.clone()).header(header::CONTENT_TYPE, "application/jose+json")
    };
    let read = async |response: Response<Incoming>, progress: &Progress| {
        let status = response.status();
        let nonce = header_text(&response, &header::HeaderName::from_static("replay-nonce"));
        let body = collect(response, MAX_BODY, progress).await?;
        Ok(AcmeResponse { status, nonce, body })
    };
    let body = Bytes::copy_from_slice(body.as_bytes());
    Ok(client.send(url, add, &body, read).await?)
}
