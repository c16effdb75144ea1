//! The protocol of Envoy: `envoy.service.auth.v3.Authorization/Check` and
//! `grpc.health.v1.Health/Check` over HTTP/2 without TLS negotiation.
//!
//! A question that cannot be used is denied in a complete `CheckResponse`. A gRPC error is for
//! faults of the host alone, because Envoy admits clients on errors with `failure_mode_allow`.
//!
//! | step | module |
//! | --- | --- |
//! | A connection is served until its peer, the idle timeout or a drain ends it. | `connection` |
//! | A stream is a call of a known method, or gets an error. | `unary_call`, `status` |
//! | The length-prefixed message is received. | [`keygate_wire::grpc`] |
//! | The certificate is read from the `CheckRequest`. | `check_request`, `messages` |
//! | The answer becomes a `CheckResponse`. | `check_response` |
//!
//! Neither streaming nor compression nor reflection is supported.

mod check_request;
mod check_response;
mod connection;
mod messages;
mod status;
mod unary_call;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use keygate_wire::grpc::{self, BadMessage, ReceivedMessage};
use prost::Message;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

use self::check_request::{CertificateAttribute, DescribedClient};
use self::check_response::StatusHeader;
use self::connection::CallLimits;
use self::messages::{HealthCheckRequest, HealthCheckResponse};
use self::status::CallError;
use self::unary_call::{Answerer, RpcMethod};
use super::connection::AskConnection;
use super::denial::DenialBody;
use super::question::{ClientQuestion, Presented, Unusable};
use crate::config::{AuthorizerConfig, CertificateSource};
use crate::dialect::Chain;
use crate::process::lifecycle::Lifecycle;

/// The services whose health is known. The empty name is the whole server.
const SERVICES: [&[u8]; 2] = [b"", b"envoy.service.auth.v3.Authorization"];

/// Values of `grpc.health.v1.HealthCheckResponse.ServingStatus`.
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

/// Serves the questions of one connection.
pub(crate) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    connection: Rc<AskConnection>,
) {
    let limits = connection.config().limits;
    let limits = CallLimits {
        max_message_size: usize::try_from(limits.max_question_size).unwrap_or(usize::MAX),
        max_calls: limits.max_streams,
        idle_timeout: limits.idle_timeout,
    };
    let protocol = Rc::new(ExtAuthz { header: RefCell::default(), asker: Rc::clone(&connection) });
    if let Err(error) = connection::serve(stream, limits, protocol, connection.closing()).await {
        debug!(%error, "connection of an asker ended");
    }
}

/// The methods of both services, on one connection.
struct ExtAuthz {
    asker: Rc<AskConnection>,
    /// The status header of the configuration in use.
    header: RefCell<Option<(Arc<AuthorizerConfig>, Rc<StatusHeader>)>>,
}

impl Answerer for ExtAuthz {
    fn answer(
        &self,
        method: RpcMethod,
        question: Result<Bytes, BadMessage>,
    ) -> Result<Bytes, CallError> {
        if question == Err(BadMessage::Compressed) {
            return Err(CallError::Compressed);
        }
        match method {
            RpcMethod::Check => Ok(self.check(question)),
            RpcMethod::Health => self.health(question),
        }
    }
}

impl ExtAuthz {
    fn check(&self, message: Result<Bytes, BadMessage>) -> Bytes {
        let received = Instant::now();
        let config = self.asker.config();
        let client = message.map(|message| DescribedClient::read(message, attribute(&config)));
        let (client, presented) = match client {
            Ok(mut client) => {
                let presented = match client.take_chain() {
                    Ok(Some(chain)) => Presented::Chain(shortened(chain)),
                    Ok(None) => Presented::None,
                    Err(problem) => Presented::Unusable(problem.into()),
                };
                (Some(client), presented)
            }
            Err(problem) => (None, Presented::Unusable(problem.into())),
        };
        let question = ClientQuestion {
            received,
            presented,
            client: client.as_ref().and_then(|client| client.address),
            server_name: client.as_ref().and_then(DescribedClient::server_name),
        };
        let answer = self.asker.answer(&question);
        check_response::encode(&answer, question.fingerprint(), &self.header(&config), || {
            let accept = client.as_ref().and_then(|client| client.field("accept"));
            DenialBody::new(answer.reason.unwrap_or_default(), accept.as_deref())
        })
    }

    /// The status header in `config`.
    fn header(&self, config: &Arc<AuthorizerConfig>) -> Rc<StatusHeader> {
        let mut header = self.header.borrow_mut();
        match &*header {
            Some((known, header)) if Arc::ptr_eq(known, config) => Rc::clone(header),
            Some(_) | None => {
                let made = Rc::new(StatusHeader::new(&config.status_header));
                *header = Some((Arc::clone(config), Rc::clone(&made)));
                made
            }
        }
    }

    /// Serving until the process begins to drain, so that Envoy selects another instance in time.
    fn health(&self, message: Result<Bytes, BadMessage>) -> Result<Bytes, CallError> {
        let question = message.ok().and_then(|message| HealthCheckRequest::decode(message).ok());
        let HealthCheckRequest { service } = question.ok_or(CallError::HealthQuestion)?;
        if !SERVICES.contains(&&service[..]) {
            return Err(CallError::UnknownService);
        }
        let is_serving = match *self.asker.lifecycle().borrow() {
            Lifecycle::Serving => self.asker.may_ask(),
            Lifecycle::DrainedByOperator
            | Lifecycle::Draining
            | Lifecycle::NotReady
            | Lifecycle::Stopped => false,
        };
        let status = if is_serving { SERVING } else { NOT_SERVING };
        Ok(encode(&HealthCheckResponse { status }))
    }
}

/// The chain with the lifetime of the question. `SmallVec` is invariant in the lifetime of its
/// items.
#[expect(clippy::map_identity, reason = "the lifetimes of the items differ")]
fn shortened<'a>(chain: Chain) -> SmallVec<[CertificateDer<'a>; 2]> {
    chain.into_iter().map(|certificate| -> CertificateDer<'a> { certificate }).collect()
}

/// The certificates in the bytes of a call's stream, received in pieces of `size` bytes. For
/// fuzzing.
///
/// # Errors
/// Returns the reason if the question is denied without a judgement.
#[doc(hidden)]
pub fn certificates(
    stream: &[u8],
    size: usize,
    from_xfcc: bool,
    max_message_size: usize,
) -> Result<Option<Chain>, &'static str> {
    let mut message = ReceivedMessage::new(max_message_size);
    for piece in stream.chunks(size.max(1)) {
        message.push(Bytes::copy_from_slice(piece)).map_err(|it| Unusable::from(it).reason())?;
    }
    let message = message.finish().map_err(|it| Unusable::from(it).reason())?;
    let attribute =
        if from_xfcc { CertificateAttribute::Xfcc } else { CertificateAttribute::Source };
    let mut client = DescribedClient::read(message, attribute);
    let _ = (client.server_name(), client.field("accept"));
    client.take_chain().map_err(|problem| Unusable::from(problem).reason())
}

/// A message with its prefix.
fn encode(message: &impl Message) -> Bytes {
    grpc::encode(message.encoded_len(), |bytes| {
        let _ = message.encode(bytes); // a BytesMut grows
    })
}

impl From<BadMessage> for Unusable {
    fn from(problem: BadMessage) -> Self {
        match problem {
            BadMessage::Compressed => Self::Malformed("the question is compressed"),
            BadMessage::Flags => Self::Malformed("the question has unknown flags"),
            BadMessage::Incomplete => Self::Malformed("the question is incomplete"),
            BadMessage::Late => Self::Malformed("the question did not arrive in time"),
            BadMessage::Oversize => Self::Oversize,
            BadMessage::Several => Self::Malformed("the call has more than one message"),
        }
    }
}

/// The attribute that has the certificate.
fn attribute(config: &AuthorizerConfig) -> CertificateAttribute {
    match config.certificate_from {
        CertificateSource::Xfcc => CertificateAttribute::Xfcc,
        // The configuration permits no other with this protocol.
        CertificateSource::Argument
        | CertificateSource::Attributes
        | CertificateSource::ClientCert
        | CertificateSource::Header { .. }
        | CertificateSource::IngressNginx
        | CertificateSource::Traefik => CertificateAttribute::Source,
    }
}
