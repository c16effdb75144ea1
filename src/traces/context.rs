//! The W3C trace context of a request: `traceparent` and `tracestate` as the client sends them, and
//! as the upstream gets them.
//!
//! Source: <https://www.w3.org/TR/trace-context/#traceparent-header>

use data_encoding::HEXLOWER;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Length of a `traceparent` of version 00, in bytes.
const LENGTH: usize = 55;
/// The bit of the flags that marks a sampled trace.
const SAMPLED: u8 = 1;
/// Maximum length of the `tracestate` in a span, in bytes. The W3C recommends to propagate as much.
const MAX_TRACE_STATE: usize = 512;

/// The id of a trace; not 0.
pub(super) type TraceId = [u8; 16];
/// The id of a span; not 0.
pub(super) type SpanId = [u8; 8];

/// The span of the client that sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemoteParent {
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    pub(super) is_sampled: bool,
}

impl RemoteParent {
    /// The parent that a request names; `None` if it names none, several, or an invalid one. A new
    /// trace begins then (section 3.2.4, "Mutating the traceparent Field").
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut fields = headers.get_all(TRACEPARENT).iter();
        match (fields.next(), fields.next()) {
            (Some(field), None) => Self::parse(field.as_bytes()),
            (None, _) | (Some(_), Some(_)) => None,
        }
    }

    /// Parses `VERSION-TRACE_ID-PARENT_ID-FLAGS`. A version above 00 may have more behind the
    /// flags, after a further `-`. Version ff is invalid.
    fn parse(field: &[u8]) -> Option<Self> {
        let (known, rest) = field.split_at_checked(LENGTH)?;
        let mut parts = known.split(|byte| *byte == b'-');
        let [version] = hex(parts.next()?)?;
        let (trace_id, span_id) = (hex(parts.next()?)?, hex(parts.next()?)?);
        let [flags]: [u8; 1] = hex(parts.next()?)?;
        let has_valid_rest = match version {
            0 => rest.is_empty(),
            0xff => false,
            1..=0xfe => rest.is_empty() || rest.starts_with(b"-"),
        };
        let is_valid = has_valid_rest
            && parts.next().is_none()
            && trace_id != TraceId::default()
            && span_id != SpanId::default();
        is_valid.then_some(Self { trace_id, span_id, is_sampled: flags & SAMPLED != 0 })
    }
}

/// Decodes lower-case hex of exactly `N` bytes.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    HEXLOWER.decode_mut(text, &mut bytes).ok()?;
    Some(bytes)
}

/// The trace of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestTrace {
    pub(super) ids: SpanIds,
    is_sampled: bool,
}

/// The ids of the spans of one request.
#[cfg_attr(not(feature = "opentelemetry"), expect(dead_code, reason = "`otlp` reads them"))]
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanIds {
    pub(super) trace: TraceId,
    /// The client's span; `None` if the trace begins here.
    pub(super) parent: Option<SpanId>,
    /// The span of the request.
    pub(super) request: SpanId,
    /// The span of the exchange with the upstream.
    pub(super) exchange: SpanId,
}

impl RequestTrace {
    /// Continues the trace of `parent`, or begins one. `samples` decides whether it is sampled.
    pub(super) fn new(
        parent: Option<RemoteParent>,
        samples: impl FnOnce(&TraceId) -> bool,
    ) -> Self {
        let trace = parent.map_or_else(new_trace_id, |parent| parent.trace_id);
        let parent = parent.map(|parent| parent.span_id);
        let ids = SpanIds { trace, parent, request: new_span_id(), exchange: new_span_id() };
        Self { ids, is_sampled: samples(&trace) }
    }

    /// Whether the spans of the request are exported.
    pub(crate) fn is_sampled(&self) -> bool {
        self.is_sampled
    }

    /// The `tracestate` of the client, in one text; empty if it is none of this trace.
    pub(crate) fn state_of(&self, headers: &HeaderMap) -> String {
        if self.ids.parent.is_none() {
            return String::new();
        }
        let fields = headers.get_all(TRACESTATE).iter();
        let fields: Vec<_> = fields.filter_map(|field| field.to_str().ok()).collect();
        with_whole_members(fields.join(","))
    }

    /// Sets the fields for the upstream. A `tracestate` of another trace is removed.
    pub(crate) fn set_fields(&self, headers: &mut HeaderMap) {
        let SpanIds { trace, parent, exchange, .. } = &self.ids;
        match traceparent(trace, exchange, self.is_sampled) {
            Some(field) => headers.insert(TRACEPARENT, field),
            None => headers.remove(TRACEPARENT),
        };
        if parent.is_none() {
            headers.remove(TRACESTATE);
        }
    }
}

/// The first [`MAX_TRACE_STATE`] bytes, without a member that is cut (W3C Trace Context, section
/// 3.3.1.5).
fn with_whole_members(mut state: String) -> String {
    if state.len() > MAX_TRACE_STATE {
        state.truncate(state.floor_char_boundary(MAX_TRACE_STATE));
        state.truncate(state.rfind(',').unwrap_or_default());
        state.shrink_to_fit();
    }
    state
}

/// The `traceparent` for the server of a request whose span there is the child of `span_id`.
fn traceparent(trace_id: &TraceId, span_id: &SpanId, is_sampled: bool) -> Option<HeaderValue> {
    let (mut trace, mut span) = ([0; 32], [0; 16]);
    HEXLOWER.encode_mut(trace_id, &mut trace);
    HEXLOWER.encode_mut(span_id, &mut span);
    let flags: &[u8] = if is_sampled { b"-01" } else { b"-00" };
    let field = [b"00-", trace.as_slice(), b"-", &span, flags].concat();
    HeaderValue::from_maybe_shared(bytes::Bytes::from(field)).ok()
}

/// A new id of a trace. Unique, but not secret.
pub(super) fn new_trace_id() -> TraceId {
    fastrand::u128(1..).to_be_bytes()
}

/// A new id of a span. Unique, but not secret.
pub(super) fn new_span_id() -> SpanId {
    fastrand::u64(1..).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn parent_of(fields: &[&str]) -> Option<RemoteParent> {
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(TRACEPARENT, HeaderValue::from_bytes(field.as_bytes()).unwrap());
        }
        RemoteParent::from_headers(&headers)
    }

    #[test]
    fn a_traceparent_is_read_and_written_as_the_specification_has_it() {
        let parent = parent_of(&[EXAMPLE]).unwrap();
        assert!(parent.is_sampled);
        let written = traceparent(&parent.trace_id, &parent.span_id, true).unwrap();
        assert_eq!(written, EXAMPLE);
        let unsampled = EXAMPLE.replace("-01", "-00");
        assert!(!parent_of(&[&unsampled]).unwrap().is_sampled);
        assert_eq!(traceparent(&parent.trace_id, &parent.span_id, false).unwrap(), unsampled);
        // Other flags are ignored. A later version is read as far as it is known.
        for (flags, is_sampled) in [("-03", true), ("-fe", false), ("-ff", true)] {
            let found = parent_of(&[&EXAMPLE.replace("-01", flags)]).unwrap();
            assert_eq!(found, RemoteParent { is_sampled, ..parent });
        }
        for later in ["01", "cc", "fe"] {
            let field = format!("{later}{}", EXAMPLE.trim_start_matches("00"));
            assert_eq!(parent_of(&[&field]), Some(parent), "{field}");
            assert_eq!(parent_of(&[&format!("{field}-more")]), Some(parent));
            assert_eq!(parent_of(&[&format!("{field}.more")]), None);
        }
    }

    #[test]
    fn an_invalid_traceparent_is_no_parent() {
        let zero_trace = EXAMPLE.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        let zero_span = EXAMPLE.replace("b7ad6b7169203331", &"0".repeat(16));
        for field in [
            "",
            "00",
            EXAMPLE.trim_end_matches('1'),
            &format!("{EXAMPLE}-"),
            &format!("{EXAMPLE}-more"),
            &format!("{EXAMPLE}0"),
            &format!(" {EXAMPLE}"),
            &format!("ff{}", EXAMPLE.trim_start_matches("00")),
            &EXAMPLE.to_uppercase(),
            &EXAMPLE.replace("00-0a", "00-+a"),
            &EXAMPLE.replace("00-0a", "+0-0a"),
            &EXAMPLE.replace("-01", "-0x"),
            &EXAMPLE.replace('-', "_"),
            &EXAMPLE.replace("19c-b7a", "19-cb7a"),
            &zero_trace,
            &zero_span,
        ] {
            assert_eq!(parent_of(&[field]), None, "{field:?}");
        }
        assert_eq!(parent_of(&[]), None);
        assert_eq!(parent_of(&[EXAMPLE, EXAMPLE]), None, "several are invalid");
    }

    #[test]
    fn a_long_trace_state_loses_whole_members() {
        let members: Vec<_> = (10..99).map(|number| format!("k{number}=abcd")).collect();
        let state = with_whole_members(members.join(","));
        assert_eq!(state, members[..56].join(","), "503 bytes");
        assert_eq!(with_whole_members(state.clone()), state);
        assert_eq!(with_whole_members("a".repeat(600)), "");
    }
}
