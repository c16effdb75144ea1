//! A `CheckResponse`: the answer, as Envoy applies it to a request.

use std::cell::RefCell;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use keygate_core::spki::Fingerprint;
use prost::Message;

use super::messages::{
    self, CheckResponse, DeniedHttpResponse, DynamicMetadata, HeaderValueOption, HttpStatus,
    MetadataField, OkHttpResponse, RpcStatus,
};
use crate::ask::denial::DenialBody;
use crate::ask::question::Answer;
use crate::config::PolicyConfig;

/// Codes of `google.rpc.Code`.
const OK: i32 = 0;
const PERMISSION_DENIED: i32 = 7;

/// The status header and the header with the assertion, in their own spellings and in the others
/// that a client could send.
#[derive(Debug)]
pub(crate) struct OwnHeaders {
    name: Bytes,
    assertion: Option<Bytes>,
    /// Every spelling with an underscore. Envoy passes on a field that is not named.
    others: Vec<Bytes>,
    /// The encoded [`OkHttpResponse`] with the last value. Most answers have the value of clean
    /// clients.
    ok_response: RefCell<Option<(HeaderValue, Bytes)>>,
}

impl OwnHeaders {
    pub(crate) fn new(policy: &PolicyConfig) -> Self {
        let assertion = policy.assertion.as_ref().map(|it| &it.header);
        let names = std::iter::once(&policy.header).chain(assertion);
        let own = |name: &HeaderName| Bytes::copy_from_slice(name.as_str().as_bytes());
        Self {
            name: own(&policy.header),
            assertion: assertion.map(own),
            others: names.flat_map(Self::others).collect(),
            ok_response: RefCell::default(),
        }
    }

    /// The other spellings of a name.
    fn others(name: &HeaderName) -> Vec<Bytes> {
        let dashes = |byte: &u8| matches!(byte, b'-' | b'_');
        let mut spellings = vec![Vec::with_capacity(name.as_str().len())];
        for byte in name.as_str().bytes() {
            if dashes(&byte) {
                spellings = spellings
                    .into_iter()
                    .flat_map(|start| [b'-', b'_'].map(|dash| [&start[..], &[dash]].concat()))
                    .collect();
            } else {
                spellings.iter_mut().for_each(|spelling| spelling.push(byte));
            }
        }
        spellings.retain(|spelling| spelling != name.as_str().as_bytes());
        spellings.into_iter().map(Bytes::from).collect()
    }

    /// The header with a value that replaces a client's own.
    fn with(&self, answer: &Answer) -> HeaderValueOption {
        let status = Bytes::copy_from_slice(answer.status.as_bytes());
        HeaderValueOption::replacing(self.name.clone(), status)
    }

    /// The encoded [`OkHttpResponse`] with the headers in place of every spelling of a client's own.
    fn ok_response(&self, answer: &Answer) -> Bytes {
        let mut last = self.ok_response.borrow_mut();
        match &*last {
            // Each client has an assertion of its own.
            Some((status, encoded)) if *status == answer.status && self.assertion.is_none() => {
                encoded.clone()
            }
            Some(_) | None => {
                let (mut headers, mut headers_to_remove) =
                    (vec![self.with(answer)], self.others.clone());
                match &answer.assertion {
                    Some((name, value)) => {
                        let pair = [name.as_str().as_bytes(), value.as_bytes()];
                        let [name, value] = pair.map(Bytes::copy_from_slice);
                        headers.push(HeaderValueOption::replacing(name, value));
                    }
                    None => headers_to_remove.extend(self.assertion.clone()),
                }
                let response = OkHttpResponse { headers, headers_to_remove };
                let encoded = Bytes::from(response.encode_to_vec());
                *last = Some((answer.status.clone(), encoded.clone()));
                encoded
            }
        }
    }
}

/// Encodes the answer about the client with this key. `body` is called for a denial.
pub(super) fn encode(
    answer: &Answer,
    fingerprint: Option<Fingerprint>,
    header: &OwnHeaders,
    body: impl FnOnce() -> DenialBody,
) -> Bytes {
    let mut response = CheckResponse {
        status: None,
        denied_response: None,
        ok_response: None,
        dynamic_metadata: Some(metadata(answer, fingerprint)),
    };
    if answer.is_allowed() {
        response.status = Some(RpcStatus { code: OK });
        response.ok_response = Some(header.ok_response(answer));
    } else {
        let DenialBody { content_type, text } = body();
        let field = |name: &'static str, value: &'static str| {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            HeaderValueOption::replacing(Bytes::from_static(name), Bytes::from_static(value))
        };
        response.status = Some(RpcStatus { code: PERMISSION_DENIED });
        response.denied_response = Some(DeniedHttpResponse {
            status: Some(HttpStatus { code: 403 }),
            headers: vec![
                header.with(answer),
                field("content-type", content_type),
                field("cache-control", "no-store"),
            ],
            body: text.into(),
        });
    }
    messages::encode(&response)
}

/// The dynamic metadata, which access logs and RBAC rules of Envoy can read.
fn metadata(answer: &Answer, fingerprint: Option<Fingerprint>) -> DynamicMetadata {
    let text = |key, value: &'static str| MetadataField::text(key, value.as_bytes());
    let mut fields = Vec::with_capacity(5);
    fields.push(text("verdict", answer.verdict.as_str()));
    fields.push(text("action", answer.decision.as_str()));
    if let Some(fingerprint) = fingerprint {
        fields.push(MetadataField::text("fingerprint", fingerprint.to_string()));
    }
    if let Some((filter, revision)) = &answer.filter {
        fields.push(MetadataField::text("filter", filter.as_bytes().to_vec()));
        fields.push(MetadataField::number("revision", *revision));
    }
    DynamicMetadata { fields }
}

#[cfg(test)]
mod tests {
    use keygate_core::guard::{Decision, VerdictKind};
    use keygate_wire::grpc;

    use super::*;
    use crate::config::example::{MINIMAL, parse};

    /// The headers of a policy with this status header.
    fn headers(status: &str) -> OwnHeaders {
        let mut policy = parse(MINIMAL).unwrap().services.remove(0).policy;
        policy.header = status.parse().unwrap();
        OwnHeaders::new(&policy)
    }

    #[test]
    fn each_answer_has_its_own_status() {
        let header = headers("Client-Key-Status");
        for status in ["clean", "unchecked", "unchecked", "clean"] {
            let answer = Answer {
                decision: Decision::Annotate,
                verdict: VerdictKind::Clean,
                status: HeaderValue::from_static(status),
                reason: None,
                filter: None,
                assertion: None,
                is_temporary: false,
            };
            let message = encode(&answer, None, &header, || DenialBody::new("", None));
            let response = CheckResponse::decode(message.slice(grpc::PREFIX..)).unwrap();
            let allowed = OkHttpResponse::decode(response.ok_response.unwrap()).unwrap();
            let fields: Vec<_> = allowed.headers.into_iter().filter_map(|it| it.header).collect();
            let values: Vec<_> = fields.iter().map(|field| &field.value[..]).collect();
            assert_eq!(values, [status.as_bytes()]);
        }
    }

    #[test]
    fn every_spelling_of_the_header_but_its_own_is_removed() {
        let header = headers("Client-Key-Status");
        assert_eq!(header.name, "client-key-status");
        let mut others = header.others;
        others.sort();
        assert_eq!(others, ["client-key_status", "client_key-status", "client_key_status"]);
        assert!(headers("verdict").others.is_empty());
        let own = headers("x_verdict");
        assert_eq!((own.name, own.others), ("x_verdict".into(), vec!["x-verdict".into()]));
    }
}
