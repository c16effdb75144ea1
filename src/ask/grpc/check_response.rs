//! A `CheckResponse`: the answer, as Envoy applies it to a request.

use std::cell::RefCell;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use keygate_core::spki::Fingerprint;
use prost::Message;

use super::messages::{
    self, CheckResponse, DeniedHttpResponse, HeaderValueOption, HttpStatus, Metadata,
    MetadataField, OkHttpResponse, RpcStatus,
};
use crate::ask::denial::DenialBody;
use crate::ask::question::Answer;

/// Codes of `google.rpc.Code`.
const OK: i32 = 0;
const PERMISSION_DENIED: i32 = 7;

/// The status header, in its own spelling and in the others that a client could send.
#[derive(Debug)]
pub(crate) struct StatusHeader {
    name: Bytes,
    /// Every spelling with an underscore. Envoy passes on a field that is not named.
    others: Vec<Bytes>,
    /// The encoded [`OkHttpResponse`] with the last value. Most answers have the value of clean
    /// clients.
    ok_response: RefCell<Option<(HeaderValue, Bytes)>>,
}

impl StatusHeader {
    pub(crate) fn new(name: &HeaderName) -> Self {
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
        Self {
            name: Bytes::copy_from_slice(name.as_str().as_bytes()),
            others: spellings.into_iter().map(Bytes::from).collect(),
            ok_response: RefCell::default(),
        }
    }

    /// The header with a value that replaces a client's own.
    fn with(&self, answer: &Answer) -> HeaderValueOption {
        let status = Bytes::copy_from_slice(answer.status.as_bytes());
        HeaderValueOption::replacing(self.name.clone(), status)
    }

    /// The encoded [`OkHttpResponse`] with the header in place of every spelling of a client's own.
    fn ok_response(&self, answer: &Answer) -> Bytes {
        let mut last = self.ok_response.borrow_mut();
        match &*last {
            Some((status, encoded)) if *status == answer.status => encoded.clone(),
            Some(_) | None => {
                let response = OkHttpResponse {
                    headers: vec![self.with(answer)],
                    headers_to_remove: self.others.clone(),
                };
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
    header: &StatusHeader,
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
fn metadata(answer: &Answer, fingerprint: Option<Fingerprint>) -> Metadata {
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
    Metadata { fields }
}

#[cfg(test)]
mod tests {
    use keygate_core::guard::{Decision, VerdictKind};
    use keygate_wire::grpc;

    use super::*;

    #[test]
    fn each_answer_has_its_own_status() {
        let header = StatusHeader::new(&"Client-Key-Status".parse().unwrap());
        for status in ["clean", "unchecked", "unchecked", "clean"] {
            let answer = Answer {
                decision: Decision::Annotate,
                verdict: VerdictKind::Clean,
                status: HeaderValue::from_static(status),
                reason: None,
                filter: None,
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
        let header = StatusHeader::new(&"Client-Key-Status".parse().unwrap());
        assert_eq!(header.name, "client-key-status");
        let mut others = header.others;
        others.sort();
        assert_eq!(others, ["client-key_status", "client_key-status", "client_key_status"]);
        assert!(StatusHeader::new(&"verdict".parse().unwrap()).others.is_empty());
        let own = StatusHeader::new(&"x_verdict".parse().unwrap());
        assert_eq!((own.name, own.others), ("x_verdict".into(), vec!["x-verdict".into()]));
    }
}
