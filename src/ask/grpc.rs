//! The protocol of Envoy: `envoy.service.auth.v3.Authorization/Check` and
//! `grpc.health.v1.Health/Check` over HTTP/2 without TLS negotiation.
//!
//! A question that cannot be used is denied in a complete `CheckResponse`. A gRPC error is for
//! faults of the host alone, because Envoy admits clients on errors with `failure_mode_allow`.
//!
//! | step | module |
//! | --- | --- |
//! | A stream is a call of a known method, or gets an error. | `unary_call`, `status` |
//! | Each method has its answer. | `ext_authz` |
//! | The length-prefixed message is received. | [`keygate_wire::grpc`] |
//! | The certificate is read from the `CheckRequest`. | `check_request`, `messages` |
//! | The answer becomes a `CheckResponse`. | `check_response` |
//!
//! Neither streaming nor compression nor reflection is supported.

mod check_request;
mod check_response;
mod ext_authz;
mod messages;
mod status;
mod unary_call;

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Context;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::Request;
use keygate_wire::grpc::{PREFIX, ReceivedMessage};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

use self::check_request::DescribedClient;
use self::ext_authz::ExtAuthz;
use self::unary_call::UnaryCall;
use super::connection::AskConnection;
use super::http2;
use super::question::Unusable;
use crate::config::CertificateSource;
use crate::dialect::Chain;

/// Serves the questions of one connection. Most calls end at once, because their message comes with
/// their head.
pub(crate) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    connection: Rc<AskConnection>,
) {
    let limits = connection.config().limits;
    let max_size = usize::try_from(limits.max_question_size).unwrap_or(usize::MAX);
    let methods = Rc::new(ExtAuthz::new(Rc::clone(&connection)));
    let begin =
        |request: Request<RecvStream>, respond: SendResponse<Bytes>, context: &mut Context<'_>| {
            let mut call = UnaryCall::new(request, respond, max_size);
            if call.poll(&methods, context).is_pending() {
                let methods = Rc::clone(&methods);
                tokio::task::spawn_local(poll_fn(move |context| call.poll(&methods, context)));
            }
        };
    let builder = http2::message_builder(limits, max_size.saturating_add(PREFIX));
    let drain = connection.closing();
    if let Err(error) = http2::serve(stream, &builder, limits.idle_timeout, begin, drain).await {
        debug!(%error, "connection of an asker ended");
    }
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
    let source = if from_xfcc { CertificateSource::Xfcc } else { CertificateSource::Attributes };
    let (client, chain) = DescribedClient::read(message, &source);
    let _ = (client.server_name(), client.field("accept"));
    chain.map_err(Unusable::reason)
}
