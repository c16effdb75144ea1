//! Questions over HTTP: nginx, Traefik, Caddy, Envoy's HTTP service. HTTP/1.0, HTTP/1.1, and HTTP/2
//! without TLS negotiation.
//!
//! Every request is a question, whatever its method and path, because a host may pass its client's
//! on. Only its fields are read, never its body. The answer is 200 or 403. Nothing that a client
//! can cause is an error of HTTP, because hosts may admit on errors: a head that cannot be read is
//! a 403, too, and the connection is closed then.
//!
//! | step | module |
//! | --- | --- |
//! | Requests over HTTP/1 are served, until a connection begins with HTTP/2. | `http1` |
//! | The head of a request is parsed. | `head` |
//! | Requests over HTTP/2 are served. | `streams` |
//! | The client's certificate is read from the configured fields. | `fields` |
//! | The answer becomes a response. | `response` |

mod fields;
mod head;
mod http1;
mod response;
mod streams;

use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use keygate_core::spki;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

use self::fields::{QuestionFields, RequestFields};
pub use self::head::lengths;
use self::response::HttpAnswer;
use super::connection::AskConnection;
use super::question::{Answer, ClientQuestion, Presented, Unusable};
use crate::config::{AuthorizerConfig, CertificateSource, ClientAuthMode};

/// The commonest fault of a configuration of Traefik.
const NOT_FROM_TRAEFIK: Unusable = Unusable::Malformed(
    "no X-Forwarded-Tls-Client-Cert: the client has no certificate, or Traefik removed it because of trustForwardHeader: false",
);

/// Serves the questions of one connection.
pub(crate) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    connection: Rc<AskConnection>,
) {
    let limits = connection.config().limits;
    let answer_http1 = |fields: Result<RequestFields<'_>, Unusable>| {
        let mut answer = answer(&connection, fields);
        answer.closes = connection.makes_room();
        answer
    };
    let input = BytesMut::new();
    let upgraded = http1::serve(stream, input, limits, answer_http1, connection.closing()).await;
    let Some((stream, input)) = upgraded else { return };
    let answer = |fields: Result<RequestFields<'_>, Unusable>| answer(&connection, fields);
    if let Err(error) = streams::serve(stream, input, limits, answer, connection.closing()).await {
        debug!(%error, "connection of an asker ended");
    }
}

/// The response to a request, or to one whose fields cannot be read.
fn answer(connection: &AskConnection, fields: Result<RequestFields<'_>, Unusable>) -> HttpAnswer {
    let received = std::time::Instant::now();
    let config = connection.config();
    let fields = fields.map(|fields| QuestionFields::read(&config, fields));
    let presented = match fields.as_ref().map(|fields| presented(fields, &config)) {
        Ok(presented) => presented,
        Err(unusable) => Presented::Unusable(*unusable),
    };
    let client = fields.as_ref().ok().and_then(QuestionFields::client);
    let accept = fields.as_ref().ok().and_then(|fields| fields.accept);
    let question = ClientQuestion { received, presented, client, server_name: None };
    let answer = connection.answer(&question);
    let cache_for = cache_time(&config, &answer, &question.presented);
    HttpAnswer::new(answer, &config.policy.header, accept, cache_for)
}

/// Time for which the host may use the answer again: `cache_for`, and no longer than the verdict
/// and the certificates are valid.
fn cache_time(config: &AuthorizerConfig, answer: &Answer, presented: &Presented<'_>) -> Duration {
    // A revocation must count from the next question on.
    if config.cache_for.is_zero() || answer.is_temporary || !config.client_auth.crls.is_empty() {
        return Duration::ZERO;
    }
    let Presented::Chain(chain) = presented else { return config.cache_for };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ends = chain.iter().map(|certificate| spki::not_after(certificate).unwrap_or_default());
    ends.map(|end| end.saturating_sub(now)).fold(config.cache_for, Duration::min)
}

/// The certificates in the fields.
fn presented(fields: &QuestionFields<'_>, config: &AuthorizerConfig) -> Presented<'static> {
    match fields.certificates(&config.certificate_from) {
        Ok(Some(chain)) => Presented::Chain(chain),
        Ok(None) if is_of_traefik(config) => Presented::Unusable(NOT_FROM_TRAEFIK),
        Ok(None) => Presented::None,
        Err(unusable) => Presented::Unusable(unusable),
    }
}

/// Whether every client of Traefik must have a certificate.
fn is_of_traefik(config: &AuthorizerConfig) -> bool {
    config.certificate_from == CertificateSource::Traefik
        && config.client_auth.mode == ClientAuthMode::Required
}
