//! The questions over HTTP/1.1: of nginx, with the certificate in `X-SSL-Cert`, and of webhooks, with
//! the key in the body.

use super::peer::Peer;
use super::support::http_host::escaped_pem;
use super::support::pki::Party;
use super::support::webhook::{
    CSR, post, request_of, review, signed, with_request, x509_certificate,
};

/// A connection of a host that asks one question again and again.
pub struct HttpPeer {
    question: Vec<u8>,
    /// The end of a response that allows.
    allowed: &'static [u8],
    /// Length of a response, after the first one. All are alike.
    length: Option<usize>,
}

impl HttpPeer {
    /// nginx, with the fields of `deploy/authorizer/nginx`.
    pub fn about(client: &Party) -> Self {
        let certificate = escaped_pem(&client.der);
        let question = format!(
            "GET / HTTP/1.1\r\nHost: keygate\r\nX-SSL-Cert: {certificate}\r\n\
             X-SSL-Verify: SUCCESS\r\nX-Real-IP: 192.0.2.7\r\n\r\n"
        );
        Self { question: question.into_bytes(), allowed: b"\r\n\r\n", length: None }
    }

    /// step-ca, with the body of an AUTHORIZING webhook.
    pub fn of_step_ca(applicant: &Party) -> Self {
        let question = signed(&x509_certificate(&applicant.spki).to_string()).into_bytes();
        Self { question, allowed: b"\"allow\":true}", length: None }
    }

    /// The API server, with a CertificateSigningRequest.
    pub fn of_api_server(applicant: &Party) -> Self {
        let review = review(CSR, "CREATE", with_request(&request_of(applicant)));
        let question = post(&[], &review.to_string()).into_bytes();
        Self { question, allowed: b"\"allowed\":true}}", length: None }
    }
}

impl Peer for HttpPeer {
    fn ask(&mut self, bytes: &mut Vec<u8>) {
        bytes.extend(&self.question);
    }

    fn answers(&mut self, bytes: &mut Vec<u8>) -> usize {
        let end = |end: &[u8]| {
            Some(bytes.windows(end.len()).position(|window| window == end)? + end.len())
        };
        // A denial has another length, and ends the benchmark below.
        self.length = self.length.or_else(|| end(self.allowed));
        let Some(length) = self.length else { return 0 };
        let count = bytes.len() / length;
        for response in bytes.chunks_exact(length) {
            let is_whole = response.ends_with(self.allowed);
            let text = || String::from_utf8_lossy(response);
            assert!(is_whole && response.starts_with(b"HTTP/1.1 200 "), "{}", text());
        }
        bytes.drain(..count * length);
        count
    }
}
