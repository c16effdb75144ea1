//! The methods that Envoy calls, and the answer to each.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::http::request::Parts;
use keygate_wire::grpc::BadMessage;
use prost::Message;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use super::check_request::DescribedClient;
use super::check_response::{self, OwnHeaders};
use super::messages::{self, HealthCheckRequest, HealthCheckResponse};
use super::status::CallError;
use crate::ask::connection::AskConnection;
use crate::ask::denial::DenialBody;
use crate::ask::question::{ClientQuestion, Presented, Unusable};
use crate::config::AuthorizerConfig;
use crate::dialect::Chain;
use crate::process::lifecycle::Lifecycle;

/// The services whose health is known. The empty name is the whole server.
const SERVICES: [&[u8]; 2] = [b"", b"envoy.service.auth.v3.Authorization"];

/// Values of `grpc.health.v1.HealthCheckResponse.ServingStatus`.
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

/// The methods of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RpcMethod {
    /// `envoy.service.auth.v3.Authorization/Check`.
    Check,
    /// `grpc.health.v1.Health/Check`.
    Health,
}

impl RpcMethod {
    /// The method that a request calls.
    pub(super) fn from_head(head: &Parts) -> Result<Self, CallError> {
        if !is_grpc(&head.headers) {
            return Err(CallError::ContentType);
        }
        match head.uri.path() {
            _ if head.method != Method::POST => Err(CallError::UnknownMethod),
            "/envoy.service.auth.v3.Authorization/Check" => Ok(Self::Check),
            "/grpc.health.v1.Health/Check" => Ok(Self::Health),
            _ => Err(CallError::UnknownMethod),
        }
    }
}

/// Whether the content is gRPC with protobuf messages.
fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(|value| value.as_bytes()).unwrap_or_default();
    let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
    let kind = value.get(..end).unwrap_or_default().trim_ascii_end();
    kind.eq_ignore_ascii_case(b"application/grpc")
        || kind.eq_ignore_ascii_case(b"application/grpc+proto")
}

/// The methods of both services, on one connection.
pub(super) struct ExtAuthz {
    asker: Rc<AskConnection>,
    /// The headers of the configuration in use.
    header: RefCell<Option<(Arc<AuthorizerConfig>, Rc<OwnHeaders>)>>,
}

impl ExtAuthz {
    pub(super) fn new(asker: Rc<AskConnection>) -> Self {
        Self { asker, header: RefCell::default() }
    }

    /// The message of the answer, with its prefix.
    ///
    /// # Errors
    /// Returns an error only for a fault of the host that its clients cannot cause.
    pub(super) fn answer(
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

    fn check(&self, message: Result<Bytes, BadMessage>) -> Bytes {
        let received = Instant::now();
        let config = self.asker.config();
        let client =
            message.map(|message| DescribedClient::read(message, &config.certificate_from));
        let (client, presented) = match client {
            Ok((client, chain)) => {
                let presented = match chain {
                    Ok(Some(chain)) => Presented::Chain(shortened(chain)),
                    Ok(None) => Presented::None,
                    Err(unusable) => Presented::Unusable(unusable),
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
            object: None,
        };
        let answer = self.asker.answer(&question);
        check_response::encode(&answer, question.fingerprint(), &self.header(&config), || {
            let accept = client.as_ref().and_then(|client| client.field("accept"));
            DenialBody::new(answer.reason.as_deref().unwrap_or_default(), accept.as_deref())
        })
    }

    /// The headers in `config`.
    fn header(&self, config: &Arc<AuthorizerConfig>) -> Rc<OwnHeaders> {
        let mut header = self.header.borrow_mut();
        match &*header {
            Some((known, header)) if Arc::ptr_eq(known, config) => Rc::clone(header),
            Some(_) | None => {
                let made = Rc::new(OwnHeaders::new(&config.policy));
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
        Ok(messages::encode(&HealthCheckResponse { status }))
    }
}

/// The chain with the lifetime of the question. `SmallVec` is invariant in the lifetime of its
/// items.
#[expect(clippy::map_identity, reason = "the lifetimes of the items differ")]
fn shortened<'a>(chain: Chain) -> SmallVec<[CertificateDer<'a>; 2]> {
    chain.into_iter().map(|certificate| -> CertificateDer<'a> { certificate }).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_grpc_with_protobuf_messages_is_read() {
        let is = |value: &'static str| {
            is_grpc(&HeaderMap::from_iter([(CONTENT_TYPE, value.parse().unwrap())]))
        };
        for right in ["application/grpc", "application/grpc+proto", "application/gRPC ; a=b"] {
            assert!(is(right), "{right}");
        }
        for wrong in ["", "application/grpc-web", "application/grpc+json", "application/json"] {
            assert!(!is(wrong), "{wrong}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
