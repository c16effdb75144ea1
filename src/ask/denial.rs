//! The words of a denial, which a host may show to its client.

/// The body of a denial with status 403, for the protocols that have one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DenialBody {
    pub(crate) content_type: &'static str,
    pub(crate) text: String,
}

impl DenialBody {
    /// The body with this reason: JSON if the client accepts JSON, else text.
    pub(crate) fn new(reason: &str, accept: Option<&[u8]>) -> Self {
        let accept = accept.and_then(|accept| str::from_utf8(accept).ok()).unwrap_or_default();
        if accept.contains("application/json") {
            let text = format!("{{\"status\":403,\"error\":\"{reason}\"}}\n");
            Self { content_type: "application/json", text }
        } else {
            let text = format!("403 Forbidden: {reason}\n");
            Self { content_type: "text/plain; charset=utf-8", text }
        }
    }
}
