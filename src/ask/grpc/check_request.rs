//! A `CheckRequest`: the certificate, the address and the server name of the client in it.

use std::net::IpAddr;

use bytes::Bytes;
use prost::Message;

use super::messages::{AttributeContext, CheckRequest, HeaderEntry, HttpAttributes};
use crate::ask::question::Unusable;
use crate::config::CertificateSource;
use crate::dialect::{Chain, ChainLength, escaped_pem, xfcc};

/// The field from which the certificate is read.
const XFCC: &str = "x-forwarded-client-cert";

const NOT_A_REQUEST: Unusable = Unusable::Malformed("the question is not a CheckRequest");
const PRINCIPAL_ALONE: Unusable = Unusable::Malformed(
    "the question has a principal and no certificate (include_peer_certificate is off)",
);
const SEVERAL_FIELDS: Unusable =
    Unusable::Malformed("the question has X-Forwarded-Client-Cert twice or with underscores");

/// A client that a `CheckRequest` describes.
#[derive(Debug)]
pub(crate) struct DescribedClient {
    pub(crate) address: Option<IpAddr>,
    sni: Bytes,
    http: Option<Bytes>,
}

impl DescribedClient {
    /// The client of a `CheckRequest` and its certificates, leaf first; `None` if it has presented
    /// none. The certificates are in the field [`XFCC`] if `source` is `Xfcc`, and else in
    /// `attributes.source.certificate`.
    pub(crate) fn read(message: Bytes, source: &CertificateSource) -> (Self, PresentedChain) {
        let is_in_field = *source == CertificateSource::Xfcc;
        let request = CheckRequest::decode(message).ok().and_then(|request| request.attributes);
        let Some(AttributeContext { source: Some(source), request, tls_session }) = request else {
            return (Self { address: None, sni: Bytes::new(), http: None }, Err(NOT_A_REQUEST));
        };
        let address = source.address.and_then(|address| address.socket_address);
        let address = address.and_then(|socket| str::from_utf8(&socket.address).ok()?.parse().ok());
        let sni = tls_session.map(|session| session.sni).unwrap_or_default();
        let http = request.and_then(|request| request.http);
        let chain = match is_in_field {
            true => http.clone().map_or(Ok(None), from_xfcc),
            false => from_source(&source.certificate),
        };
        let chain = match chain {
            Ok(None) if !source.principal.is_empty() => Err(PRINCIPAL_ALONE),
            chain => chain,
        };
        (Self { address, sni, http }, chain)
    }

    /// The server name of the client's handshake.
    pub(crate) fn server_name(&self) -> Option<&str> {
        str::from_utf8(&self.sni).ok().filter(|name| !name.is_empty())
    }

    /// The value of a field of the client's request, if Envoy sends that field.
    pub(crate) fn field(&self, name: &str) -> Option<Bytes> {
        let http = HttpAttributes::decode(self.http.clone()?).ok()?;
        let field = fields(http).find(|field| is(field, name))?;
        Some(value(field))
    }
}

/// The certificates that a client has presented.
type PresentedChain = Result<Option<Chain>, Unusable>;

/// The leaf in `attributes.source.certificate`.
fn from_source(certificate: &[u8]) -> PresentedChain {
    if certificate.is_empty() {
        return Ok(None);
    }
    Ok(Some(escaped_pem::read(certificate, ChainLength::One)?))
}

/// The certificates in the one field `X-Forwarded-Client-Cert`.
///
/// Envoy passes a client's own `x_forwarded_client_cert` on. A client that sends it is rejected.
fn from_xfcc(http: Bytes) -> PresentedChain {
    let http = HttpAttributes::decode(http).map_err(|_| NOT_A_REQUEST)?;
    let mut found = fields(http).filter(is_spelled_like_xfcc);
    let Some(field) = found.next() else { return Ok(None) };
    if found.next().is_some() || !is(&field, XFCC) {
        return Err(SEVERAL_FIELDS);
    }
    Ok(Some(xfcc::read(&value(field))?))
}

/// All fields of a request, with `encode_raw_headers` and without.
fn fields(http: HttpAttributes) -> impl Iterator<Item = HeaderEntry> {
    let raw = http.header_map.map(|map| map.headers).unwrap_or_default();
    http.headers.into_iter().chain(raw)
}

fn value(field: HeaderEntry) -> Bytes {
    if field.raw_value.is_empty() { field.value } else { field.raw_value }
}

fn is(field: &HeaderEntry, name: &str) -> bool {
    field.key.eq_ignore_ascii_case(name.as_bytes())
}

fn is_spelled_like_xfcc(field: &HeaderEntry) -> bool {
    let dashed = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    field.key.len() == XFCC.len() && field.key.iter().map(dashed).eq(XFCC.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::grpc::messages::{
        AttributeRequest, HeaderList, PeerAddress, SocketAddress, SourcePeer, TlsSession,
    };
    use crate::dialect::MalformedValue;
    use rustls::pki_types::CertificateDer;

    fn certificate() -> CertificateDer<'static> {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::default().self_signed(&key).unwrap().der().clone()
    }

    fn entry(key: &'static str, value: &str) -> HeaderEntry {
        let value = Bytes::copy_from_slice(value.as_bytes());
        HeaderEntry { key: Bytes::from_static(key.as_bytes()), value, raw_value: Bytes::new() }
    }

    fn raw(key: &'static str, value: &str) -> HeaderEntry {
        let HeaderEntry { key, value, raw_value } = entry(key, value);
        HeaderEntry { key, value: raw_value, raw_value: value }
    }

    fn request(certificate: &str, principal: &'static str, http: HttpAttributes) -> Bytes {
        let address = SocketAddress { address: Bytes::from_static(b"192.0.2.7") };
        let source = SourcePeer {
            address: Some(PeerAddress { socket_address: Some(address) }),
            principal: Bytes::from_static(principal.as_bytes()),
            certificate: Bytes::copy_from_slice(certificate.as_bytes()),
        };
        let attributes = AttributeContext {
            source: Some(source),
            request: Some(AttributeRequest { http: Some(http.encode_to_vec().into()) }),
            tls_session: Some(TlsSession { sni: Bytes::from_static(b"a.example") }),
        };
        CheckRequest { attributes: Some(attributes) }.encode_to_vec().into()
    }

    fn with_fields(headers: &[HeaderEntry], raw: &[HeaderEntry]) -> HttpAttributes {
        let header_map = (!raw.is_empty()).then(|| HeaderList { headers: raw.to_vec() });
        HttpAttributes { headers: headers.to_vec(), header_map }
    }

    fn chain(message: Bytes, source: CertificateSource) -> Result<usize, Unusable> {
        let (_, chain) = DescribedClient::read(message, &source);
        chain.map(|chain| chain.map_or(0, |chain| chain.len()))
    }

    #[test]
    fn the_attribute_has_certificate_address_and_server_name() {
        let certificate = certificate();
        let message = request(&escaped_pem::write(&certificate), "CN=a", with_fields(&[], &[]));
        let (client, chain) = DescribedClient::read(message, &CertificateSource::Attributes);
        assert_eq!(chain.unwrap().unwrap()[..], [certificate]);
        assert_eq!(client.address, Some("192.0.2.7".parse().unwrap()));
        assert_eq!(client.server_name(), Some("a.example"));
    }

    #[test]
    fn only_the_configured_part_is_read() {
        let xfcc = xfcc::write(&certificate());
        let http = with_fields(&[entry(XFCC, &xfcc), entry("accept", "text/html")], &[]);
        let alone = request("", "", http.clone());
        assert_eq!(chain(alone.clone(), CertificateSource::Attributes), Ok(0));
        assert_eq!(chain(alone.clone(), CertificateSource::Xfcc), Ok(1));
        let (client, _) = DescribedClient::read(alone, &CertificateSource::Attributes);
        assert_eq!(client.field("Accept").unwrap(), "text/html");
        let other = request(&escaped_pem::write(&certificate()), "", with_fields(&[], &[]));
        assert_eq!(chain(other, CertificateSource::Xfcc), Ok(0));
    }

    #[test]
    fn xfcc_in_two_fields_or_spellings_is_no_certificate() {
        let value = xfcc::write(&certificate());
        let read = |headers: &[HeaderEntry], raw: &[HeaderEntry]| {
            chain(request("", "", with_fields(headers, raw)), CertificateSource::Xfcc)
        };
        assert_eq!(read(&[], &[raw(XFCC, &value)]), Ok(1));
        let several = Err(SEVERAL_FIELDS);
        assert_eq!(read(&[], &[raw(XFCC, &value), raw(XFCC, &value)]), several);
        assert_eq!(read(&[entry(XFCC, &value)], &[raw(XFCC, &value)]), several);
        assert_eq!(read(&[entry("x_forwarded_client_cert", &value)], &[]), several);
        let spellings = [entry("X-Forwarded-Client_Cert", "x"), entry(XFCC, &value)];
        assert_eq!(read(&spellings, &[]), several);
        assert_eq!(read(&[entry(XFCC, "")], &[]), Err(MalformedValue::XFCC_SYNTAX.into()));
    }

    #[test]
    fn a_name_from_a_certificate_that_is_not_sent_is_an_error() {
        for attribute in [CertificateSource::Attributes, CertificateSource::Xfcc] {
            let message = request("", "spiffe://a", with_fields(&[], &[]));
            assert_eq!(chain(message, attribute.clone()), Err(PRINCIPAL_ALONE));
            assert_eq!(chain(request("", "", with_fields(&[], &[])), attribute), Ok(0));
        }
    }

    #[test]
    fn every_other_message_is_an_error() {
        let message = request(&escaped_pem::write(&certificate()), "", with_fields(&[], &[]));
        for attribute in [CertificateSource::Attributes, CertificateSource::Xfcc] {
            assert_eq!(chain(Bytes::new(), attribute), Err(NOT_A_REQUEST));
        }
        let whole = chain(message.clone(), CertificateSource::Attributes);
        for length in 0..message.len() {
            let cut = chain(message.slice(..length), CertificateSource::Attributes);
            assert_eq!(cut, Err(NOT_A_REQUEST), "{length}");
        }
        assert_eq!(whole, Ok(1));
        // Two certificates where the leaf is due, and none at all.
        let two = escaped_pem::write(&certificate()) + &escaped_pem::write(&certificate());
        for (wrong, expected) in [
            (two.as_str(), MalformedValue::TWO_CERTIFICATES),
            ("-----BEGIN", MalformedValue::PEM),
            ("%", MalformedValue::PERCENT_ENCODING),
            ("\u{1f}", MalformedValue::PEM),
        ] {
            let message = request(wrong, "", with_fields(&[], &[]));
            let read = chain(message, CertificateSource::Attributes);
            assert_eq!(read, Err(expected.into()), "{wrong}");
        }
    }
}
