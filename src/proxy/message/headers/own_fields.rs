//! The fields that keygate adds to each request: identity of the client, verdict, request id.

use std::fmt::Debug;
use std::net::IpAddr;
use std::rc::Rc;

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, header};
use keygate_core::tls::ClientIdentity;
use keygate_wire::fields::push_line;

use super::{OwnNames, header_value};
use crate::config::{Forwarded, ServiceConfig};
use crate::dialect;

const CLIENT_CERT: HeaderName = HeaderName::from_static("client-cert");
const CLIENT_CERT_CHAIN: HeaderName = HeaderName::from_static("client-cert-chain");
const XFCC: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The fields that keygate sets on every request of a connection. Most are the same for all
/// requests and are computed once.
#[derive(Debug)]
pub(crate) struct Annotations {
    fixed: Vec<(HeaderName, HeaderValue)>,
    /// The field lines of `fixed`.
    lines: Vec<u8>,
    forwarded: Forwarded,
    peer: IpAddr,
}

impl Annotations {
    pub(crate) fn new(service: &ServiceConfig, identity: &ClientIdentity) -> Self {
        let forward = &service.forward;
        let leaf = identity.leaf();
        // An IPv6 socket reports IPv4 clients as IPv4-mapped addresses.
        let peer = identity.peer().ip().to_canonical();
        let x_forwarded = matches!(forward.forwarded, Forwarded::Both | Forwarded::XForwarded);
        // The trust anchor is left out (RFC 9440, section 2.3).
        let chain = forward
            .client_cert_chain
            .then(|| identity.with_intermediates(dialect::client_cert::write_chain));
        let fixed = [
            (CLIENT_CERT, leaf.filter(|_| forward.client_cert).map(dialect::client_cert::write)),
            (CLIENT_CERT_CHAIN, chain.flatten()),
            (XFCC, leaf.filter(|_| forward.xfcc).map(dialect::xfcc::write)),
            (X_FORWARDED_FOR, x_forwarded.then(|| peer.to_string())),
            (X_FORWARDED_PROTO, x_forwarded.then(|| "https".to_owned())),
        ];
        let fixed =
            fixed.into_iter().filter_map(|(name, text)| Some((name, header_value(&text?)?)));
        let fixed: Vec<_> = fixed.collect();
        let mut lines = Vec::new();
        fixed.iter().for_each(|(name, value)| push_line(&mut lines, name, value));
        Self { fixed, lines, forwarded: forward.forwarded, peer }
    }

    /// The fields that depend on the host of a request.
    fn of_host(&self, host: &HeaderValue) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let has_x_forwarded = matches!(self.forwarded, Forwarded::Both | Forwarded::XForwarded);
        let has_forwarded = matches!(self.forwarded, Forwarded::Both | Forwarded::Rfc7239);
        let x_forwarded = has_x_forwarded.then(|| (X_FORWARDED_HOST, host.clone()));
        let forwarded =
            has_forwarded.then(|| header_value(&dialect::forwarded(self.peer, host))).flatten();
        x_forwarded.into_iter().chain(forwarded.map(|value| (header::FORWARDED, value)))
    }
}

/// Has the assertion about the client of a connection that is valid for longest. A request may wait for
/// an upstream, or be sent twice, for longer than an assertion lives.
pub(crate) trait NewestAssertion: Debug {
    /// `None` if there is none, or if it cannot be signed.
    fn assertion(&self) -> Option<HeaderValue>;
}

/// The fields that keygate adds to one request. The client's fields of these names were removed by
/// [`super::remove_identity`]. They are kept apart, because most of them are the same bytes for each
/// request of a connection: in the table of fields they took 4,000 of 48,000 instructions.
#[derive(Debug, Clone)]
pub(crate) struct OwnFields {
    pub(crate) annotations: Rc<Annotations>,
    pub(crate) host: HeaderValue,
    pub(crate) names: Rc<OwnNames>,
    /// The value of the status header.
    pub(crate) status: Option<HeaderValue>,
    pub(crate) assertion: Rc<dyn NewestAssertion>,
    pub(crate) request_id: Option<HeaderValue>,
}

impl OwnFields {
    /// The fields of the policy.
    fn of_policy(&self) -> impl Iterator<Item = (&HeaderName, HeaderValue)> {
        let status = self.status.as_ref().map(|value| (&self.names.status, value.clone()));
        let assertion = self.names.assertion.as_ref();
        let assertion = assertion.and_then(|name| Some((name, self.assertion.assertion()?)));
        status.into_iter().chain(assertion)
    }

    /// Writes the field lines.
    pub(crate) fn write(&self, lines: &mut Vec<u8>) {
        lines.extend_from_slice(&self.annotations.lines);
        for (name, value) in self.annotations.of_host(&self.host) {
            push_line(lines, &name, &value);
        }
        for (name, value) in self.of_policy() {
            push_line(lines, name, &value);
        }
        if let Some(id) = &self.request_id {
            push_line(lines, &X_REQUEST_ID, id);
        }
    }

    /// Sets the fields in a table.
    pub(crate) fn set(self, headers: &mut HeaderMap) {
        for (name, value) in &self.annotations.fixed {
            headers.insert(name, value.clone());
        }
        for (name, value) in self.annotations.of_host(&self.host) {
            headers.insert(name, value);
        }
        for (name, value) in self.of_policy() {
            headers.insert(name, value);
        }
        if let Some(id) = self.request_id {
            headers.insert(X_REQUEST_ID, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::example::{MINIMAL, parse};

    #[test]
    fn the_policy_header_cannot_have_the_name_of_another_field_of_keygate_or_of_credentials() {
        let reserved = [
            CLIENT_CERT,
            CLIENT_CERT_CHAIN,
            XFCC,
            X_FORWARDED_FOR,
            X_FORWARDED_HOST,
            X_FORWARDED_PROTO,
            X_REQUEST_ID,
            header::FORWARDED,
            header::HOST,
            header::COOKIE,
            header::AUTHORIZATION,
            header::PROXY_AUTHORIZATION,
        ];
        for name in reserved {
            for name in [name.as_str(), &name.as_str().replace('-', "_")] {
                let problem = parse(&format!("{MINIMAL}policy = {{ header = \"{name}\" }}"));
                let problem = problem.unwrap_err().to_string();
                assert!(problem.contains(&format!("{name:?} is reserved")), "{problem}");
            }
        }
    }
}
