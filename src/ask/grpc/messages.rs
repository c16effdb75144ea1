//! The messages of Envoy's external authorization and of gRPC health checks: the fields that
//! keygate reads and writes, and no others.
//!
//! Text is `Bytes` here. The encoding is the same, and a field costs neither a copy nor a check of
//! UTF-8. Unknown fields are skipped.
//!
//! Sources: `envoy/service/auth/v3/external_auth.proto`, `attribute_context.proto`,
//! `envoy/config/core/v3/{address,base}.proto`, `google/rpc/status.proto`,
//! `google/protobuf/struct.proto`, `grpc/health/v1/health.proto`.

use bytes::Bytes;
use keygate_wire::grpc;
use prost::Message;

/// A message with its prefix.
pub(super) fn encode(message: &impl Message) -> Bytes {
    grpc::encode(message.encoded_len(), |bytes| {
        let _ = message.encode(bytes); // a BytesMut grows
    })
}

/// `envoy.service.auth.v3.CheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) attributes: Option<AttributeContext>,
}

/// `envoy.service.auth.v3.AttributeContext`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) source: Option<SourcePeer>,
    #[prost(message, optional, tag = "4")]
    pub(crate) request: Option<AttributeRequest>,
    #[prost(message, optional, tag = "12")]
    pub(crate) tls_session: Option<TlsSession>,
}

/// `envoy.service.auth.v3.AttributeContext.Peer`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SourcePeer {
    #[prost(message, optional, tag = "1")]
    pub(crate) address: Option<PeerAddress>,
    /// A name in the certificate. Envoy sends it with and without `include_peer_certificate`.
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) principal: Bytes,
    /// The leaf as PEM, percent-encoded.
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) certificate: Bytes,
}

/// `envoy.config.core.v3.Address`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PeerAddress {
    #[prost(message, optional, tag = "1")]
    pub(crate) socket_address: Option<SocketAddress>,
}

/// `envoy.config.core.v3.SocketAddress`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SocketAddress {
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) address: Bytes,
}

/// `envoy.service.auth.v3.AttributeContext.Request`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttributeRequest {
    /// An encoded [`HttpAttributes`]. It is decoded only if its fields are needed.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) http: Option<Bytes>,
}

/// `envoy.service.auth.v3.AttributeContext.HttpRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpAttributes {
    /// A map on the wire, which is a list of its entries.
    #[prost(message, repeated, tag = "3")]
    pub(crate) headers: Vec<HeaderEntry>,
    /// The fields with `encode_raw_headers`.
    #[prost(message, optional, tag = "13")]
    pub(crate) header_map: Option<HeaderList>,
}

/// `envoy.config.core.v3.HeaderMap`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) headers: Vec<HeaderEntry>,
}

/// `envoy.config.core.v3.HeaderValue`, and an entry of the map in [`HttpAttributes`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderEntry {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) raw_value: Bytes,
}

/// `envoy.service.auth.v3.AttributeContext.TLSSession`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TlsSession {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) sni: Bytes,
}

/// `envoy.service.auth.v3.CheckResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<RpcStatus>,
    #[prost(message, optional, tag = "2")]
    pub(crate) denied_response: Option<DeniedHttpResponse>,
    /// An encoded [`OkHttpResponse`].
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) ok_response: Option<Bytes>,
    #[prost(message, optional, tag = "4")]
    pub(crate) dynamic_metadata: Option<DynamicMetadata>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

/// `envoy.service.auth.v3.DeniedHttpResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) headers: Vec<HeaderValueOption>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) body: Bytes,
}

/// `envoy.type.v3.HttpStatus`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

/// `envoy.service.auth.v3.OkHttpResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OkHttpResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) headers: Vec<HeaderValueOption>,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub(crate) headers_to_remove: Vec<Bytes>,
}

/// `envoy.config.core.v3.HeaderValueOption`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<HeaderEntry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) append: Option<BoolValue>,
    #[prost(int32, tag = "3")]
    pub(crate) append_action: i32,
}

/// `HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD`.
const OVERWRITE_IF_EXISTS_OR_ADD: i32 = 2;

impl HeaderValueOption {
    /// A field that replaces every field of this name.
    ///
    /// Both `append` and `append_action` are set. If both are unset, the versions of Envoy between
    /// envoy#42878 and envoy#43717 append the value to the client's.
    pub(crate) fn replacing(key: Bytes, value: Bytes) -> Self {
        Self {
            header: Some(HeaderEntry { key, value, raw_value: Bytes::new() }),
            append: Some(BoolValue { value: false }),
            append_action: OVERWRITE_IF_EXISTS_OR_ADD,
        }
    }
}

/// `google.protobuf.BoolValue`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub(crate) value: bool,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DynamicMetadata {
    #[prost(message, repeated, tag = "1")]
    pub(crate) fields: Vec<MetadataField>,
}

/// An entry of the map in [`DynamicMetadata`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetadataField {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<MetadataValue>,
}

/// `google.protobuf.Value`. One of the fields is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetadataValue {
    #[prost(double, optional, tag = "2")]
    pub(crate) number: Option<f64>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) string: Option<Bytes>,
}

impl MetadataField {
    pub(crate) fn text(key: &'static str, value: impl Into<Bytes>) -> Self {
        let value = MetadataValue { number: None, string: Some(value.into()) };
        Self { key: Bytes::from_static(key.as_bytes()), value: Some(value) }
    }

    pub(crate) fn number(key: &'static str, value: u32) -> Self {
        let value = MetadataValue { number: Some(value.into()), string: None };
        Self { key: Bytes::from_static(key.as_bytes()), value: Some(value) }
    }
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) service: Bytes,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
}
