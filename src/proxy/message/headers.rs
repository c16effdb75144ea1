//! Header fields: removes every field that an upstream could mistake for the client's identity, in
//! every spelling. keygate's own fields are added later ([`own_fields`]).
//!
//! Source: RFC 9440 (`Client-Cert`).

pub(crate) mod own_fields;

use std::cell::RefCell;

use bytes::BytesMut;
use data_encoding::HEXLOWER;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use keygate_core::guard::Verdict;

use self::own_fields::X_REQUEST_ID;
use crate::config::{PolicyConfig, ServiceConfig};

/// The names of the fields of a service's policy, which are removed from each request.
#[derive(Debug)]
pub(crate) struct OwnNames {
    pub(crate) status: HeaderName,
    /// The field with the assertion; `None` without assertions.
    pub(crate) assertion: Option<HeaderName>,
}

impl OwnNames {
    pub(crate) fn new(policy: &PolicyConfig) -> Self {
        let assertion = policy.assertion.as_ref().map(|it| it.header.clone());
        Self { status: policy.header.clone(), assertion }
    }
}

/// Fields that carry identity in the dialect of keygate or of another proxy.
const IDENTITY: [&str; 25] = [
    "cf-connecting-ip",
    "client-cert",
    "client-cert-chain",
    "client-ip",
    "client-key-status",
    "fastly-client-ip",
    "fly-client-ip",
    "forwarded",
    "keygate-assertion",
    "l5d-client-id",
    "proxy",
    "proxy-client-ip",
    "remote-user",
    "true-client-ip",
    "x-arr-clientcert",
    "x-azure-clientip",
    "x-client-dn",
    "x-client-ip",
    "x-client-verify",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-forwarded",
    "x-original-forwarded-for",
    "x-real-ip",
    "x-request-id",
];
/// Prefixes of further fields that carry identity.
const IDENTITY_PREFIXES: [&str; 10] = [
    "$ws", // the plug-in of IBM WebSphere: `$WSCC` is the certificate, `$WSRU` the user
    "cf-client-cert",
    "ssl-client-",
    "wl-proxy-",
    "x-amzn-mtls-",
    "x-client-cert",
    "x-forwarded-",
    "x-remote-",
    "x-ssl-",
    "x-tls-client-",
];

/// Removes every field that carries identity. Any byte that is no letter or digit counts as `-`,
/// because CGI turns all of them into `_`. hyper has made the names lower case.
pub(crate) fn remove_identity(headers: &mut HeaderMap, own: &OwnNames) {
    let forged: Vec<HeaderName> =
        headers.keys().filter(|name| is_identity(name.as_str(), own)).cloned().collect(); // does not allocate if no field matches
    for name in forged {
        headers.remove(name);
    }
}

fn is_identity(name: &str, own: &OwnNames) -> bool {
    same(name, own.status.as_str())
        || own.assertion.as_ref().is_some_and(|it| same(name, it.as_str()))
        || (has_identity_initial(name)
            && (IDENTITY.iter().any(|identity| same(name, identity))
                || IDENTITY_PREFIXES.iter().any(|prefix| begins(name, prefix))))
}

/// The first bytes of all names in the tables, one bit for each ASCII character. Most fields begin
/// with another byte and need no comparison.
const IDENTITY_INITIALS: u128 = initials(&IDENTITY) | initials(&IDENTITY_PREFIXES);

const fn initials(names: &[&str]) -> u128 {
    let mut set = 0;
    let mut rest = names;
    while let [name, others @ ..] = rest {
        if let [first, ..] = name.as_bytes() {
            set |= 1 << *first;
        }
        rest = others;
    }
    set
}

fn has_identity_initial(name: &str) -> bool {
    let first = name.bytes().next().filter(u8::is_ascii);
    first.is_some_and(|first| IDENTITY_INITIALS & (1 << first) != 0)
}

fn same(name: &str, other: &str) -> bool {
    name.len() == other.len() && begins(name, other)
}

fn begins(name: &str, prefix: &str) -> bool {
    let dash = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    name.len() >= prefix.len() && name.bytes().zip(prefix.bytes()).all(|(a, b)| dash(a) == dash(b))
}

/// The value of the status header for a verdict; `None` if the policy sets no header.
pub(crate) fn key_status(service: &ServiceConfig, verdict: &Verdict) -> Option<HeaderValue> {
    service.policy.decisions.annotates().then(|| header_value(&verdict.to_string())).flatten()
}

/// A header value; `None` if `text` has control characters.
pub(crate) fn header_value(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(text).ok()
}

/// Maximum length of an `X-Request-Id`, in bytes; a longer one is replaced.
const MAX_REQUEST_ID_LENGTH: usize = 128;

thread_local! {
    /// The rest of the buffer that request ids are cut from.
    static REQUEST_IDS: RefCell<BytesMut> = RefCell::default();
}
/// Length of an `X-Request-Id` of keygate, in bytes.
const REQUEST_ID_LENGTH: usize = 32;
/// Number of ids that share one allocation.
const REQUEST_IDS_AT_ONCE: usize = 32;

/// The `X-Request-Id` of a request: the client's own if it is trusted and well-formed, or a new
/// one.
pub(crate) fn request_id(headers: &HeaderMap, is_trusted: bool) -> Option<HeaderValue> {
    if is_trusted {
        let mut given = headers.get_all(X_REQUEST_ID).iter();
        if let (Some(id), None) = (given.next(), given.next())
            && is_plain(id)
        {
            return Some(id.clone());
        }
    }
    REQUEST_IDS.with_borrow_mut(|buffer| {
        if buffer.capacity() < REQUEST_ID_LENGTH {
            buffer.reserve(REQUEST_ID_LENGTH * REQUEST_IDS_AT_ONCE);
        }
        // Unique, but not secret.
        let mut id = [0; REQUEST_ID_LENGTH];
        HEXLOWER.encode_mut(&fastrand::u128(..).to_be_bytes(), &mut id);
        buffer.extend_from_slice(&id);
        HeaderValue::from_maybe_shared(buffer.split().freeze()).ok()
    })
}

fn is_plain(id: &HeaderValue) -> bool {
    let id = id.as_bytes();
    (1..=MAX_REQUEST_ID_LENGTH).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests;
