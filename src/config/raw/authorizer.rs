//! The table of an authorizer as it is written.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::super::number::Bounded;
use super::super::units::{self, DurationText, SizeText};
use super::super::{
    AuthorizerProtocol, ClientAuthMode, ExpiredCrl, HeaderEncoding, RevocationDepth, TlsVersion,
};
use super::{RawAllow, RawAskedPolicy};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawAuthorizer {
    pub(in crate::config) name: String,
    #[serde(deserialize_with = "units::listen")]
    pub(in crate::config) listen: String,
    pub(in crate::config) socket_mode: Option<String>,
    pub(in crate::config) socket_group: Option<String>,
    pub(in crate::config) protocol: AuthorizerProtocol,
    pub(in crate::config) certificate_from: Option<RawCertificateSource>,
    pub(in crate::config) address_from: Option<String>,
    pub(in crate::config) cache_for: Option<DurationText>,
    #[serde(default)]
    pub(in crate::config) askers: RawAskers,
    pub(in crate::config) tls: Option<RawAuthorizerTls>,
    #[serde(default)]
    pub(in crate::config) client_auth: RawChecks,
    #[serde(default)]
    pub(in crate::config) limits: RawAuthorizerLimits,
    #[serde(default)]
    pub(in crate::config) policy: RawAskedPolicy,
}

/// A dialect by its name, or a header with its encoding.
#[derive(Debug)]
pub(in crate::config) enum RawCertificateSource {
    Header(RawHeader),
    Name(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RawHeader {
    pub(in crate::config) header: String,
    pub(in crate::config) encoding: HeaderEncoding,
    pub(in crate::config) verify: Option<String>,
}

impl<'de> Deserialize<'de> for RawCertificateSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SourceVisitor)
    }
}

struct SourceVisitor;

impl<'de> Visitor<'de> for SourceVisitor {
    type Value = RawCertificateSource;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name in quotes, or a table with header and encoding")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<RawCertificateSource, E> {
        Ok(RawCertificateSource::Name(name.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawCertificateSource, A::Error> {
        RawHeader::deserialize(MapAccessDeserializer::new(map)).map(RawCertificateSource::Header)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct RawAskers {
    pub(in crate::config) uids: Vec<u32>,
    pub(in crate::config) from: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawAuthorizerTls {
    pub(in crate::config) certificate: PathBuf,
    pub(in crate::config) private_key: PathBuf,
    pub(in crate::config) client_ca: Option<PathBuf>,
    #[serde(default)]
    pub(in crate::config) min_version: TlsVersion,
    #[serde(default = "super::enabled")]
    pub(in crate::config) resumption: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct RawChecks {
    pub(in crate::config) mode: ClientAuthMode,
    pub(in crate::config) trust_anchors: Option<PathBuf>,
    pub(in crate::config) intermediates: Option<PathBuf>,
    pub(in crate::config) crls: Vec<PathBuf>,
    pub(in crate::config) expired_crl: Option<ExpiredCrl>,
    pub(in crate::config) revocation: Option<RevocationDepth>,
    pub(in crate::config) max_new_hits: Option<usize>,
    pub(in crate::config) allow: Option<RawAllow>,
}

/// Number of connections of askers.
pub(in crate::config) type AskerConnections = Bounded<usize, 1, { 1 << 20 }>;
/// Number of concurrent questions on a connection.
pub(in crate::config) type QuestionCount = Bounded<u32, 1, 100_000>;
/// Size of a question. The minimum is hyper's smallest read buffer, the maximum the default limit
/// of gRPC messages.
pub(in crate::config) type QuestionSize = SizeText<8192, { 4 << 20 }>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct RawAuthorizerLimits {
    pub(in crate::config) max_connections: AskerConnections,
    pub(in crate::config) max_streams: QuestionCount,
    pub(in crate::config) max_question_size: QuestionSize,
    pub(in crate::config) idle_timeout: DurationText,
}

impl Default for RawAuthorizerLimits {
    fn default() -> Self {
        Self {
            max_connections: Bounded(1000),
            max_streams: Bounded(1000),
            max_question_size: SizeText(64 << 10),
            idle_timeout: DurationText(Duration::from_secs(600)),
        }
    }
}
