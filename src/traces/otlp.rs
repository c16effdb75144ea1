//! Spans as an `ExportTraceServiceRequest` of OTLP, with the attributes of the semantic conventions
//! for HTTP.
//!
//! Source: <https://opentelemetry.io/docs/specs/semconv/http/http-spans/>

use bytes::Bytes;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use prost::Message;

use super::context::{self, new_span_id};
use super::finished_request::{FinishedExchange, FinishedRequest};
use crate::config::{ServerAddress, ServerConfig};

/// The process that has made the spans.
pub(super) type Resource = ResourceAttributesWithSchema;

/// The methods that the conventions know (RFC 9110, section 9, and PATCH of RFC 5789). Any other
/// method could make an unbounded number of span names.
const METHODS: [&str; 9] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// Describes this process as the service with this name.
pub(super) fn resource(service_name: &str) -> Resource {
    let uname = rustix::system::uname();
    let host = uname.nodename();
    let attributes = [
        KeyValue::new("service.name", service_name.to_owned()),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", format!("{:032x}", fastrand::u128(..))),
        KeyValue::new("host.name", host.to_string_lossy().into_owned()),
    ];
    (&opentelemetry_sdk::Resource::builder_empty().with_attributes(attributes).build()).into()
}

/// Encodes the spans of a batch.
pub(super) fn encode(resource: &Resource, batch: &[FinishedRequest]) -> Bytes {
    let scope =
        InstrumentationScope::builder("keygate").with_version(env!("CARGO_PKG_VERSION")).build();
    let mut spans = Vec::with_capacity(2 * batch.len());
    for request in batch {
        spans.push(request_span(request, &scope));
        let count = request.exchanges.len();
        let exchanges = request.exchanges.iter().enumerate();
        spans.extend(exchanges.map(|(resend_count, exchange)| {
            let is_last = resend_count + 1 == count;
            // The upstream got the id of the last attempt with each of them.
            let id = if is_last { request.trace.ids.exchange } else { new_span_id() };
            exchange_span(request, exchange, (id, resend_count), &scope)
        }));
    }
    let resource_spans = group_spans_by_resource_and_scope(spans, resource);
    ExportTraceServiceRequest { resource_spans }.encode_to_vec().into()
}

/// The number of spans that the collector has rejected, by its response. 0 if it cannot be read.
pub(super) fn rejected_spans(response: Bytes) -> u64 {
    let response = ExportTraceServiceResponse::decode(response).ok();
    let partial = response.and_then(|response| response.partial_success);
    partial.and_then(|partial| u64::try_from(partial.rejected_spans).ok()).unwrap_or_default()
}

/// The span of the request as keygate serves it.
fn request_span(request: &FinishedRequest, scope: &InstrumentationScope) -> SpanData {
    let mut attributes = method_attributes(request);
    attributes.extend([
        KeyValue::new("url.scheme", "https"),
        KeyValue::new("url.path", request.path.clone()),
        KeyValue::new("client.address", request.client.to_string()),
        KeyValue::new("network.protocol.version", request.protocol_version),
        KeyValue::new("keygate.service", request.service.clone()),
        KeyValue::new("keygate.verdict", request.verdict),
    ]);
    let names = ["keygate.key_exchange", "keygate.key_algorithm"].into_iter().zip(request.key_use);
    attributes.extend(names.filter_map(|(name, value)| Some(KeyValue::new(name, value?))));
    let (host, port) = host_and_port(&request.host);
    attributes.extend((!host.is_empty()).then(|| KeyValue::new("server.address", host.to_owned())));
    attributes.extend(port.map(|port| KeyValue::new("server.port", i64::from(port))));
    attributes.extend(text("user_agent.original", request.user_agent.as_ref()));
    attributes.extend(text("keygate.request_id", request.request_id.as_ref()));
    attributes.extend(text("tls.client.subject", request.subject.as_ref()));
    attributes.extend(request.status.map(status_attribute));
    // A status of 4xx is no error of the server.
    let error = match request.status {
        Some(status) if status >= 500 => Some(status.to_string()),
        _ if !request.is_complete => Some("incomplete".to_owned()),
        Some(_) | None => None,
    };
    let ids = &request.trace.ids;
    let (span, parent) = (SpanId::from_bytes(ids.request), ids.parent.map(SpanId::from_bytes));
    SpanData {
        parent_span_is_remote: true,
        start_time: request.began,
        ..span_data(request, span, parent, SpanKind::Server, error, attributes, scope)
    }
}

/// The span of an attempt to exchange the request with the upstream.
fn exchange_span(
    request: &FinishedRequest,
    exchange: &FinishedExchange,
    (id, resend_count): (context::SpanId, usize),
    scope: &InstrumentationScope,
) -> SpanData {
    let mut attributes = method_attributes(request);
    attributes.extend(exchange.server.iter().flat_map(|it| server_attributes(it, &request.path)));
    attributes.extend(exchange.status.map(status_attribute));
    let resent = i64::try_from(resend_count).ok().filter(|count| *count > 0);
    attributes.extend(resent.map(|count| KeyValue::new("http.request.resend_count", count)));
    let error = match (exchange.error, exchange.status) {
        (Some(error), _) => Some(error.to_owned()),
        (None, Some(status)) if status >= 400 => Some(status.to_string()),
        (None, Some(_) | None) => None,
    };
    let (span, parent) = (SpanId::from_bytes(id), SpanId::from_bytes(request.trace.ids.request));
    SpanData {
        start_time: exchange.began,
        end_time: exchange.ended,
        ..span_data(request, span, Some(parent), SpanKind::Client, error, attributes, scope)
    }
}

/// A span that ends with the request.
fn span_data(
    request: &FinishedRequest,
    span: SpanId,
    parent: Option<SpanId>,
    kind: SpanKind,
    error: Option<String>,
    mut attributes: Vec<KeyValue>,
    scope: &InstrumentationScope,
) -> SpanData {
    let trace = TraceId::from_bytes(request.trace.ids.trace);
    let state: TraceState = request.trace_state.parse().unwrap_or_default();
    let name = known_method(request).map_or_else(|| "HTTP".to_owned(), str::to_owned);
    let status = match &error {
        Some(_) => Status::error(""), // `error.type` has the reason
        None => Status::Unset,
    };
    attributes.extend(error.map(|error| KeyValue::new("error.type", error)));
    SpanData {
        span_context: SpanContext::new(trace, span, TraceFlags::SAMPLED, false, state),
        parent_span_id: parent.unwrap_or(SpanId::INVALID),
        parent_span_is_remote: false,
        span_kind: kind,
        name: name.into(),
        start_time: request.began,
        end_time: request.ended,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status,
        instrumentation_scope: scope.clone(),
    }
}

fn known_method(request: &FinishedRequest) -> Option<&str> {
    METHODS.into_iter().find(|method| *method == request.method)
}

fn method_attributes(request: &FinishedRequest) -> Vec<KeyValue> {
    const METHOD: &str = "http.request.method";
    match known_method(request) {
        Some(method) => vec![KeyValue::new(METHOD, method.to_owned())],
        None => vec![
            KeyValue::new(METHOD, "_OTHER"),
            KeyValue::new("http.request.method_original", request.method.clone()),
        ],
    }
}

fn server_attributes(server: &ServerConfig, path: &str) -> Vec<KeyValue> {
    let scheme = if server.scheme.is_secure() { "https" } else { "http" };
    match &server.address {
        ServerAddress::Tcp { host, port } => vec![
            KeyValue::new("server.address", host.clone()),
            KeyValue::new("server.port", i64::from(*port)),
            KeyValue::new("url.full", format!("{scheme}://{}{path}", server.address)),
        ],
        ServerAddress::Unix(socket) => vec![
            KeyValue::new("server.address", socket.display().to_string()),
            KeyValue::new("network.transport", "unix"),
        ],
    }
}

fn status_attribute(status: u16) -> KeyValue {
    KeyValue::new("http.response.status_code", i64::from(status))
}

fn text(name: &'static str, text: Option<&String>) -> Option<KeyValue> {
    text.map(|text| KeyValue::new(name, text.clone()))
}

/// The name or address, and the port, in an authority.
fn host_and_port(authority: &str) -> (&str, Option<u16>) {
    // A client may send user information, which can hold a password.
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()),
        Some(_) | None => (authority, None),
    };
    (host.trim_matches(['[', ']']), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_has_a_host_and_maybe_a_port() {
        for (authority, expected) in [
            ("a.example", ("a.example", None)),
            ("a.example:8443", ("a.example", Some(8443))),
            ("127.0.0.1:1", ("127.0.0.1", Some(1))),
            ("[::1]", ("::1", None)),
            ("[::1]:443", ("::1", Some(443))),
            ("a:", ("a", None)),
            ("user:secret@a.example:8443", ("a.example", Some(8443))),
            ("user@a.example", ("a.example", None)),
            ("", ("", None)),
        ] {
            assert_eq!(host_and_port(authority), expected, "{authority}");
        }
    }

    #[test]
    fn a_response_that_is_none_rejects_nothing() {
        for response in [&b""[..], b"\n", b"{}", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(rejected_spans(Bytes::from_static(response)), 0);
        }
        // partial_success { rejected_spans: 2 } and { rejected_spans: -1 }
        assert_eq!(rejected_spans(Bytes::from_static(b"\x0a\x02\x08\x02")), 2);
        let negative = b"\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(rejected_spans(Bytes::from_static(negative)), 0);
    }
}
