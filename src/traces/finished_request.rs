//! The data of a sampled request whose response has ended, on its way to the exporter.

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use super::context::RequestTrace;
use crate::config::ServerConfig;

/// Maximum length of each text of a span, in bytes; the rest is cut off.
const MAX_TEXT: usize = 512;

/// A sampled request whose response has ended.
#[cfg_attr(not(feature = "opentelemetry"), expect(dead_code, reason = "`otlp` reads them"))]
#[derive(Debug)]
pub(crate) struct FinishedRequest {
    pub(crate) trace: RequestTrace,
    /// `tracestate` of the client; empty if there is none.
    pub(crate) trace_state: String,
    pub(crate) began: SystemTime,
    pub(crate) ended: SystemTime,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) host: String,
    /// `1.0`, `1.1` or `2`.
    pub(crate) protocol_version: &'static str,
    pub(crate) user_agent: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) status: Option<u16>,
    /// Whether the response was read to its end.
    pub(crate) is_complete: bool,
    pub(crate) client: IpAddr,
    /// Subject of the client certificate.
    pub(crate) subject: Option<String>,
    pub(crate) service: String,
    /// The verdict on the client key, in one word.
    pub(crate) verdict: &'static str,
    /// Group of the key exchange, and algorithm of the client key.
    pub(crate) key_use: [Option<&'static str>; 2],
    /// The attempts to exchange it with the upstream; empty if keygate rejected the request.
    pub(crate) exchanges: Vec<FinishedExchange>,
}

/// The attempts of a sampled request that another one followed, each with its server, its error and
/// its end.
pub(crate) type FailedAttempts = RefCell<Vec<(ServerConfig, Option<&'static str>, Instant)>>;

/// An attempt to exchange a request with the upstream.
#[cfg_attr(not(feature = "opentelemetry"), expect(dead_code, reason = "`otlp` reads them"))]
#[derive(Debug)]
pub(crate) struct FinishedExchange {
    pub(crate) began: SystemTime,
    pub(crate) ended: SystemTime,
    /// `None` if there was none to try.
    pub(crate) server: Option<ServerConfig>,
    /// Status of the upstream's response.
    pub(crate) status: Option<u16>,
    /// Why there is no response, or only its beginning: a label of
    /// `keygate_upstream_failures_total`, or `client`.
    pub(crate) error: Option<&'static str>,
}

impl FinishedRequest {
    /// The number of spans.
    pub(super) fn spans(&self) -> u64 {
        1 + self.exchanges.len() as u64
    }

    /// Cuts every text that a client or a certificate supplies.
    pub(super) fn truncate(&mut self) {
        let Self { method, path, host, user_agent, request_id, subject, .. } = self;
        let given = [method, path, host].into_iter();
        let optional = [user_agent, request_id, subject].into_iter().flatten();
        for text in given.chain(optional) {
            text.truncate(text.floor_char_boundary(MAX_TEXT));
            text.shrink_to_fit();
        }
    }
}
