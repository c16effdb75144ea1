//! The fields of a question: the ones that the configuration names, and no others.
//!
//! Some hosts pass all fields of their client on. A field that occurs twice, or with another byte
//! where its name has a hyphen, has no value: one of the two may be the client's own.

use std::net::IpAddr;

use hyper::HeaderMap;

use crate::ask::question::Unusable;
use crate::config::{AuthorizerConfig, CertificateSource, HeaderEncoding};
use crate::dialect::{
    Chain, ChainLength, MalformedValue, base64_der, client_cert, escaped_pem, xfcc,
};

const REPEATED: Unusable =
    Unusable::Malformed("the certificate header occurs twice, or with an underscore for a hyphen");
const REPEATED_RESULT: Unusable =
    Unusable::Malformed("the verify header occurs twice, or with an underscore for a hyphen");
const CHAIN_ALONE: Unusable = Unusable::Malformed("Client-Cert-Chain without Client-Cert");
const NO_VALUE: Unusable =
    Unusable::Malformed("the host verified a certificate that it did not send");
const NO_RESULT: Unusable =
    Unusable::NotVerified("the host did not send the header that verify names");
const NOT_VERIFIED: Unusable =
    Unusable::NotVerified("the host did not verify the client certificate");

/// The fields of a request.
#[derive(Clone, Copy)]
pub(super) enum RequestFields<'a> {
    Http1(&'a [httparse::Header<'a>]),
    Http2(&'a HeaderMap),
}

impl<'a> RequestFields<'a> {
    /// Calls `each` with name and value of every field.
    pub(super) fn for_each(self, mut each: impl FnMut(&'a [u8], &'a [u8])) {
        match self {
            Self::Http1(fields) => {
                fields.iter().for_each(|field| each(field.name.as_bytes(), field.value));
            }
            Self::Http2(fields) => {
                fields
                    .iter()
                    .for_each(|(name, value)| each(name.as_str().as_bytes(), value.as_bytes()));
            }
        }
    }

    /// The value of the field with this name; `None` if there is none, or more than one.
    pub(super) fn only(self, wanted: &str) -> Option<&'a [u8]> {
        let (wanted, mut found) = (wanted.as_bytes(), FieldValue::Absent);
        self.for_each(|name, value| {
            if is_spelling_of(name, wanted) {
                found.add(name.eq_ignore_ascii_case(wanted), value);
            }
        });
        if let FieldValue::Once(value) = found { Some(value) } else { None }
    }
}

/// A request, with its body if the protocol reads bodies.
#[derive(Clone, Copy)]
pub(super) struct HttpRequest<'a> {
    pub(super) fields: RequestFields<'a>,
    pub(super) body: &'a [u8],
}

/// The values of the fields that an authorizer reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuestionFields<'a> {
    certificate: FieldValue<'a>,
    chain: FieldValue<'a>,
    verify: FieldValue<'a>,
    address: FieldValue<'a>,
    /// The first `Accept`.
    pub(super) accept: Option<&'a [u8]>,
}

/// The names of the fields that an authorizer reads. No field has an empty name.
struct FieldNames<'a> {
    certificate: &'a [u8],
    chain: &'a [u8],
    verify: &'a [u8],
    address: &'a [u8],
}

impl<'a> FieldNames<'a> {
    fn new(config: &'a AuthorizerConfig) -> Self {
        let (certificate, chain, verify) = match &config.certificate_from {
            CertificateSource::ClientCert => ("client-cert", "client-cert-chain", ""),
            CertificateSource::Header { header, verify, .. } => {
                (header.as_str(), "", verify.as_ref().map_or("", |verify| verify.as_str()))
            }
            CertificateSource::IngressNginx => ("ssl-client-cert", "", "ssl-client-verify"),
            CertificateSource::Traefik => ("x-forwarded-tls-client-cert", "", ""),
            CertificateSource::Xfcc => ("x-forwarded-client-cert", "", ""),
            // The configuration permits none of them with a protocol that reads fields.
            CertificateSource::Argument
            | CertificateSource::Attributes
            | CertificateSource::Body => ("", "", ""),
        };
        let address = config.address_from.as_ref().map_or("", |name| name.as_str());
        let [certificate, chain, verify, address] =
            [certificate, chain, verify, address].map(str::as_bytes);
        Self { certificate, chain, verify, address }
    }
}

impl<'a> QuestionFields<'a> {
    /// The values in `fields`.
    pub(super) fn read(config: &AuthorizerConfig, fields: RequestFields<'a>) -> Self {
        let names = FieldNames::new(config);
        let mut read = Self {
            certificate: FieldValue::Absent,
            chain: FieldValue::Absent,
            verify: FieldValue::Absent,
            address: FieldValue::Absent,
            accept: None,
        };
        fields.for_each(|name, value| {
            for (wanted, found) in [
                (names.certificate, &mut read.certificate),
                (names.chain, &mut read.chain),
                (names.verify, &mut read.verify),
                (names.address, &mut read.address),
            ] {
                if is_spelling_of(name, wanted) {
                    found.add(name.eq_ignore_ascii_case(wanted), value);
                }
            }
            if read.accept.is_none() && name.eq_ignore_ascii_case(b"accept") {
                read.accept = Some(value);
            }
        });
        read
    }

    /// Address of the client: the last one of a list such as `X-Forwarded-For`, which the host has
    /// added.
    pub(super) fn client(&self) -> Option<IpAddr> {
        let FieldValue::Once(value) = self.address else { return None };
        let last = value.rsplit(|&byte| byte == b',').next()?;
        str::from_utf8(last.trim_ascii()).ok()?.parse().ok()
    }

    /// The certificates of the client, leaf first; `None` if it has none.
    ///
    /// # Errors
    /// Returns an error if the certificate is malformed, or if the host did not verify it.
    pub(super) fn certificates(
        &self,
        source: &CertificateSource,
    ) -> Result<Option<Chain>, Unusable> {
        let certificate = self.certificate.value(REPEATED)?;
        match source {
            CertificateSource::Argument
            | CertificateSource::Attributes
            | CertificateSource::Body => Ok(None),
            CertificateSource::ClientCert => self.client_cert(certificate),
            CertificateSource::Header { encoding, verify, .. } => {
                let is_none = |value: &[u8]| *encoding == HeaderEncoding::Rfc9440 && value == b"::";
                let certificate = certificate.filter(|value| !is_none(value));
                let certificate = match verify {
                    None => certificate,
                    Some(_) => self.verified(certificate)?,
                };
                certificate.map(|value| decode(*encoding, value)).transpose()
            }
            CertificateSource::IngressNginx => {
                let certificate = self.verified(certificate)?;
                certificate.map(|value| decode(HeaderEncoding::EscapedPem, value)).transpose()
            }
            CertificateSource::Traefik => {
                let chain = certificate.map(|value| base64_der::read(value, ChainLength::Any));
                Ok(chain.transpose()?)
            }
            CertificateSource::Xfcc => Ok(certificate.map(xfcc::read).transpose()?),
        }
    }

    /// `Client-Cert` and `Client-Cert-Chain`.
    fn client_cert(&self, certificate: Option<&[u8]>) -> Result<Option<Chain>, Unusable> {
        let leaf = certificate.map(client_cert::read).transpose()?.flatten();
        match (leaf, self.chain.value(REPEATED)?) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(CHAIN_ALONE),
            (Some(leaf), issuers) => {
                let mut chain = Chain::from_iter([leaf]);
                if let Some(issuers) = issuers {
                    client_cert::read_chain(issuers, &mut chain)?;
                }
                Ok(Some(chain))
            }
        }
    }

    /// The certificate, if the host verified it. The field has the value of `$ssl_client_verify`
    /// of nginx: `SUCCESS`, `NONE`, or `FAILED:` with a reason.
    fn verified(&self, certificate: Option<&'a [u8]>) -> Result<Option<&'a [u8]>, Unusable> {
        match (certificate, self.verify.value(REPEATED_RESULT)?) {
            (Some(_), Some(b"SUCCESS")) => Ok(certificate),
            (None, None | Some(b"NONE")) => Ok(None),
            (None, Some(b"SUCCESS")) => Err(NO_VALUE),
            (Some(_), None) => Err(NO_RESULT),
            (_, Some(_)) => Err(NOT_VERIFIED),
        }
    }
}

fn decode(encoding: HeaderEncoding, value: &[u8]) -> Result<Chain, Unusable> {
    let chain = match encoding {
        HeaderEncoding::Base64Der => base64_der::read(value, ChainLength::One),
        HeaderEncoding::EscapedPem => escaped_pem::read(value, ChainLength::One),
        HeaderEncoding::Rfc9440 => client_cert::read(value)
            .and_then(|leaf| leaf.ok_or(MalformedValue::NO_MEMBER))
            .map(|leaf| Chain::from_iter([leaf])),
    };
    Ok(chain?)
}

/// A field that may occur once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldValue<'a> {
    Absent,
    Once(&'a [u8]),
    /// Two fields, or one with another spelling.
    Repeated,
}

impl<'a> FieldValue<'a> {
    fn add(&mut self, is_exact: bool, value: &'a [u8]) {
        *self = match self {
            Self::Absent if is_exact => Self::Once(value),
            Self::Absent | Self::Once(_) | Self::Repeated => Self::Repeated,
        };
    }

    /// The value. An empty one is like none: some hosts set a field whose variable has no value.
    fn value(self, repeated: Unusable) -> Result<Option<&'a [u8]>, Unusable> {
        match self {
            Self::Absent | Self::Once(b"") => Ok(None),
            Self::Once(value) => Ok(Some(value)),
            Self::Repeated => Err(repeated),
        }
    }
}

/// Whether some host or application could read `name` as `wanted`: upper and lower case are the
/// same, and so are all bytes that are neither letters nor digits.
fn is_spelling_of(name: &[u8], wanted: &[u8]) -> bool {
    let same = |(a, b): (&u8, &u8)| {
        a.eq_ignore_ascii_case(b) || !(a.is_ascii_alphanumeric() || b.is_ascii_alphanumeric())
    };
    name.len() == wanted.len() && name.iter().zip(wanted).all(same)
}
