//! An HTTP/2 connection of a host, whose streams are unary calls.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use h2::server::Builder;
use keygate_wire::grpc::PREFIX;
use tokio::io::{AsyncRead, AsyncWrite};

use super::unary_call::{Answerer, UnaryCall};
use crate::ask::http2;

/// Maximum and default of a flow-control window, in bytes (RFC 9113, section 6.9).
const MAX_WINDOW: u32 = (1 << 31) - 1;
const DEFAULT_WINDOW: u32 = (1 << 16) - 1;

/// Flow-control window of a connection, in bytes. Data is read at once, so it does not bound calls.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Small DATA frames that may wait to be read, for each call that a connection may have.
const SMALL_FRAMES_PER_CALL: usize = 16;
/// Part of the budget of h2 that a small frame uses up, in bytes.
const SMALL_FRAME: usize = 256;

/// Limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLimits {
    /// Maximum length of a message, in bytes.
    pub(crate) max_message_size: usize,
    /// Maximum number of concurrent calls.
    pub(crate) max_calls: u32,
    /// Time without a new call after which the connection is closed.
    pub(crate) idle_timeout: Duration,
}

/// Serves the calls of a connection. After `drain` has ended the peer gets GOAWAY, and the
/// connection ends with its last call.
///
/// # Errors
/// Returns an error if the peer violates HTTP/2 or the connection is lost.
pub(crate) async fn serve<S, A>(
    stream: S,
    limits: CallLimits,
    answerer: Rc<A>,
    drain: impl Future<Output = ()>,
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Answerer + 'static,
{
    let run = |request, respond, context: &mut Context<'_>| {
        run(UnaryCall::new(request, respond, limits.max_message_size), &answerer, context);
    };
    http2::serve(stream, &builder(limits), limits.idle_timeout, run, drain).await
}

fn builder(limits: CallLimits) -> Builder {
    let calls = usize::try_from(limits.max_calls).unwrap_or(usize::MAX);
    let message = limits.max_message_size.saturating_add(PREFIX);
    let message = u32::try_from(message).unwrap_or(u32::MAX).min(MAX_WINDOW);
    let mut builder = http2::builder(limits.max_calls, message.max(http2::MIN_HEADER_SIZE));
    builder
        .initial_window_size(message.max(DEFAULT_WINDOW))
        .initial_connection_window_size(CONNECTION_WINDOW.max(message))
        .data_frame_budget(calls.saturating_mul(SMALL_FRAMES_PER_CALL * SMALL_FRAME));
    builder
}

/// Runs a call. It mostly ends at once, because its message came with its head.
fn run(mut call: UnaryCall, answerer: &Rc<impl Answerer + 'static>, context: &mut Context<'_>) {
    if call.poll(&**answerer, context).is_pending() {
        let answerer = Rc::clone(answerer);
        tokio::task::spawn_local(poll_fn(move |context| call.poll(&*answerer, context)));
    }
}
