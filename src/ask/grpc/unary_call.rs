//! One unary call: its question is received, answered, and the rest of its stream discarded.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::Request;
use hyper::header::HeaderMap;
use keygate_wire::grpc::{BadMessage, ReceivedMessage};
use tokio::time::Sleep;

use super::ext_authz::{ExtAuthz, RpcMethod};
use super::status::{self, CallError};

/// Maximum time for the message of a call to arrive. A message that is late is answered like a
/// malformed one.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that are discarded after an early response. A longer call is reset with `NO_ERROR`, which
/// follows a complete response (RFC 9113, section 8.1). Envoy sends a message of 4 MiB at most.
const MAX_DISCARDED: usize = 4 << 20;

/// A call on one stream.
pub(super) struct UnaryCall {
    body: RecvStream,
    respond: SendResponse<Bytes>,
    phase: CallPhase,
    /// End of the time for the message; set when the call waits for the first time.
    deadline: Option<Pin<Box<Sleep>>>,
    timeout: Duration,
}

enum CallPhase {
    Receiving {
        method: RpcMethod,
        message: ReceivedMessage,
    },
    /// Number of bytes that may still be discarded.
    Discarding(usize),
}

impl UnaryCall {
    /// Begins the call of `request`, whose message has at most `max` bytes.
    pub(super) fn new(
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        max: usize,
    ) -> Self {
        let (head, body) = request.into_parts();
        let timeout = timeout(&head.headers).unwrap_or(MESSAGE_TIMEOUT).min(MESSAGE_TIMEOUT);
        let phase = CallPhase::Discarding(MAX_DISCARDED);
        let mut call = Self { body, respond, phase, deadline: None, timeout };
        match RpcMethod::from_head(&head) {
            Ok(method) => {
                call.phase = CallPhase::Receiving { method, message: ReceivedMessage::new(max) };
            }
            Err(error) => call.send(Err(error)),
        }
        call
    }

    /// Runs the call until it waits for the peer or has ended.
    pub(super) fn poll(&mut self, methods: &ExtAuthz, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let data = match self.body.poll_data(context) {
                Poll::Ready(Some(Ok(data))) => data,
                Poll::Ready(Some(Err(_))) => return Poll::Ready(()), // cancelled
                Poll::Ready(None) => {
                    self.end(methods);
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    ready!(self.poll_deadline(context));
                    if matches!(self.phase, CallPhase::Discarding(_)) {
                        return Poll::Ready(());
                    }
                    self.deny(methods, BadMessage::Late);
                    return Poll::Ready(());
                }
            };
            let length = data.len();
            // Fails if the window is larger than what was received, which it is not.
            let _ = self.body.flow_control().release_capacity(length);
            match &mut self.phase {
                CallPhase::Receiving { message, .. } => {
                    if let Err(problem) = message.push(data) {
                        self.deny(methods, problem);
                    }
                }
                CallPhase::Discarding(left) => match left.checked_sub(length) {
                    Some(less) => *left = less,
                    None => return Poll::Ready(()),
                },
            }
        }
    }

    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let timeout = self.timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        deadline.as_mut().poll(context)
    }

    /// Answers the question, whose stream has ended.
    fn end(&mut self, methods: &ExtAuthz) {
        let phase = std::mem::replace(&mut self.phase, CallPhase::Discarding(0));
        if let CallPhase::Receiving { method, message } = phase {
            self.send(methods.answer(method, message.finish()));
        }
    }

    /// Answers an unusable question before its stream has ended.
    fn deny(&mut self, methods: &ExtAuthz, problem: BadMessage) {
        let phase = std::mem::replace(&mut self.phase, CallPhase::Discarding(MAX_DISCARDED));
        if let CallPhase::Receiving { method, .. } = phase {
            self.send(methods.answer(method, Err(problem)));
        }
    }

    /// Sends the response. An error means that the stream was reset, which ends the call.
    fn send(&mut self, answer: Result<Bytes, CallError>) {
        let _ = match answer {
            Ok(message) => {
                self.respond.send_response(status::head(), false).and_then(|mut send| {
                    send.send_data(message, false)?;
                    send.send_trailers(status::trailers())
                })
            }
            Err(error) => self.respond.send_response(error.response(), true).map(drop),
        };
    }
}

/// The field `grpc-timeout`: up to eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u32 = digits.parse().ok()?;
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    unit.checked_mul(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_read_as_grpc_writes_it() {
        let read = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", value.parse().unwrap());
            timeout(&headers)
        };
        assert_eq!(read("200m"), Some(Duration::from_millis(200)));
        assert_eq!(read("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(read("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for wrong in ["", "m", "1", "+1S", "123456789S", "1s", "1 S", "-1S"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
