//! The questions of nginx: HTTP/1.1 with the certificate in `X-SSL-Cert`.

use super::peer::Peer;
use super::support::http_host::escaped_pem;
use super::support::pki::Party;

/// A connection of nginx, with the fields of `deploy/authorizer/nginx`.
pub struct HttpPeer {
    question: Vec<u8>,
    /// Length of a response, after the first one. All are alike.
    length: Option<usize>,
}

impl HttpPeer {
    pub fn about(client: &Party) -> Self {
        let certificate = escaped_pem(&client.der);
        let question = format!(
            "GET / HTTP/1.1\r\nHost: keygate\r\nX-SSL-Cert: {certificate}\r\n\
             X-SSL-Verify: SUCCESS\r\nX-Real-IP: 192.0.2.7\r\n\r\n"
        );
        Self { question: question.into_bytes(), length: None }
    }
}

impl Peer for HttpPeer {
    fn ask(&mut self, bytes: &mut Vec<u8>) {
        bytes.extend(&self.question);
    }

    fn answers(&mut self, bytes: &mut Vec<u8>) -> usize {
        let first = || Some(bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4);
        self.length = self.length.or_else(first);
        let Some(length) = self.length else { return 0 };
        let count = bytes.len() / length;
        for response in bytes.chunks_exact(length) {
            let is_whole = response.ends_with(b"\r\n\r\n");
            let text = || String::from_utf8_lossy(response);
            assert!(is_whole && response.starts_with(b"HTTP/1.1 200 "), "{}", text());
        }
        bytes.drain(..count * length);
        count
    }
}
