//! The calls of Envoy's `ext_authz` over gRPC, byte by byte and apart from keygate's own code.

use super::http2;

/// The path of a question.
pub const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// The field block of a question.
pub fn head() -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", CHECK),
        (":authority", "keygate"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    fields.iter().flat_map(|(name, value)| http2::field(name, value)).collect()
}

/// A message with the prefix of gRPC.
pub fn prefixed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat()
}

/// A field of a protobuf message whose value has a length.
pub fn field(tag: u8, value: &[u8]) -> Vec<u8> {
    [&[(tag << 3) | 2][..], &http2::varint(value.len()), value].concat()
}

/// A `CheckRequest` whose source has these fields.
pub fn check_request(source: &[u8]) -> Vec<u8> {
    field(1, &field(1, source))
}

/// A `CheckRequest` with this certificate.
pub fn about(certificate: &[u8]) -> Vec<u8> {
    check_request(&field(5, certificate))
}
