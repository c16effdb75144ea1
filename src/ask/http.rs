//! Questions over HTTP: nginx, Traefik, Caddy, Envoy's HTTP service, and the webhooks of a CA.
//! HTTP/1.0, HTTP/1.1, and HTTP/2 without TLS negotiation.
//!
//! Every request is a question, whatever its method and path, because a host may pass its client's
//! on. The fields of a host have the certificate, and the answer is 200 or 403. The body of a webhook
//! has the key, and the body of the response has the answer. Nothing that a client can cause is an
//! error of HTTP, because hosts may admit on errors: a head that cannot be read is denied as well,
//! and the connection is closed then.
//!
//! | step | module |
//! | --- | --- |
//! | Requests over HTTP/1 are served, until a connection begins with HTTP/2. | `http1` |
//! | The head of a request is parsed. | `head` |
//! | Requests over HTTP/2 are served. | `streams` |
//! | The client's certificate is read from the configured fields. | `fields` |
//! | The keys are read from the body of a webhook. | `step_ca`, `admission`, `requested_keys` |
//! | The answer becomes a response. | `response` |

mod admission;
mod fields;
mod head;
mod http1;
mod requested_keys;
mod response;
mod step_ca;
mod streams;

use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use keygate_core::spki;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

use self::fields::{HttpRequest, QuestionFields};
pub use self::head::lengths;
use self::response::HttpAnswer;
use super::connection::AskConnection;
use super::question::{Answer, ClientQuestion, Presented, Unusable};
use crate::config::{AuthorizerConfig, AuthorizerProtocol, CertificateSource, ClientAuthMode};

/// The commonest fault of a configuration of Traefik.
const NOT_FROM_TRAEFIK: Unusable = Unusable::Malformed(
    "no X-Forwarded-Tls-Client-Cert: the client has no certificate, or Traefik removed it because of trustForwardHeader: false",
);

/// The response to a request, or to one that cannot be read.
type AnswerRequest = fn(&AskConnection, Result<HttpRequest<'_>, Unusable>) -> HttpAnswer;

/// Serves the questions of one connection.
pub(crate) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    connection: Rc<AskConnection>,
) {
    let (limits, protocol) = (connection.config().limits, connection.config().protocol);
    let (answer, reads_body): (AnswerRequest, bool) = match protocol {
        AuthorizerProtocol::ExtAuthz | AuthorizerProtocol::Http | AuthorizerProtocol::Spop => {
            (answer, false)
        }
        AuthorizerProtocol::Admission => (admission::answer, true),
        AuthorizerProtocol::StepCa => (step_ca::answer, true),
    };
    let answer_http1 = |request: Result<HttpRequest<'_>, Unusable>| {
        let mut answer = answer(&connection, request);
        answer.closes = connection.makes_room();
        answer
    };
    let (input, closing) = (BytesMut::new(), connection.closing());
    let upgraded = http1::serve(stream, input, limits, reads_body, answer_http1, closing).await;
    let Some((stream, input)) = upgraded else { return };
    let (closing, asked) = (connection.closing(), Rc::clone(&connection));
    let answer = move |request: Result<HttpRequest<'_>, Unusable>| answer(&asked, request);
    let served = streams::serve(stream, input, limits, reads_body, answer, closing).await;
    if let Err(error) = served {
        debug!(%error, "connection of an asker ended");
    }
}

/// The response to a request, or to one whose fields cannot be read.
fn answer(connection: &AskConnection, request: Result<HttpRequest<'_>, Unusable>) -> HttpAnswer {
    let received = std::time::Instant::now();
    let config = connection.config();
    let fields = request.map(|request| QuestionFields::read(&config, request.fields));
    let presented = match fields.as_ref().map(|fields| presented(fields, &config)) {
        Ok(presented) => presented,
        Err(unusable) => Presented::Unusable(*unusable),
    };
    let client = fields.as_ref().ok().and_then(QuestionFields::client);
    let accept = fields.as_ref().ok().and_then(|fields| fields.accept);
    let question = ClientQuestion { received, presented, client, server_name: None, object: None };
    let answer = connection.answer(&question);
    let cache_for = cache_time(&config, &answer, &question.presented);
    HttpAnswer::new(answer, &config.policy.header, accept, cache_for)
}

/// Time for which the host may use the answer again: `cache_for`, and no longer than the verdict
/// and the certificates are valid, and half of the life of an assertion.
fn cache_time(config: &AuthorizerConfig, answer: &Answer, presented: &Presented<'_>) -> Duration {
    let assertion = config.policy.assertion.as_ref();
    let cache_for = assertion.map_or(config.cache_for, |it| config.cache_for.min(it.life / 2));
    // A revocation must count from the next question on.
    if cache_for.is_zero() || answer.is_temporary || !config.client_auth.crls.is_empty() {
        return Duration::ZERO;
    }
    let Presented::Chain(chain) = presented else { return cache_for };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ends = chain.iter().map(|certificate| spki::not_after(certificate).unwrap_or_default());
    ends.map(|end| end.saturating_sub(now)).fold(cache_for, Duration::min)
}

/// The certificates in the fields.
fn presented(fields: &QuestionFields<'_>, config: &AuthorizerConfig) -> Presented<'static> {
    let must_be_sent = config.certificate_from == CertificateSource::Traefik
        && config.client_auth.mode == ClientAuthMode::Required;
    match fields.certificates(&config.certificate_from) {
        Ok(Some(chain)) => Presented::Chain(chain),
        Ok(None) if must_be_sent => Presented::Unusable(NOT_FROM_TRAEFIK),
        Ok(None) => Presented::None,
        Err(unusable) => Presented::Unusable(unusable),
    }
}
