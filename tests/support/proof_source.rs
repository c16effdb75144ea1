//! A source of proofs that plays every kind of answer, over real sockets.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use ::keygate::proof;
use ::keygate::spki::Fingerprint;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::TIMEOUT;
use super::pki::{Kind, Party, Pki};

/// A stream of a client, with or without TLS.
pub trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// Writes a response. The connection closes afterwards.
pub type Reply = Arc<dyn Fn(&mut dyn Stream) -> std::io::Result<()> + Send + Sync>;

/// A request for one fingerprint.
#[derive(Debug, Clone)]
pub struct Asked {
    pub fingerprint: String,
    /// Request line and fields.
    pub head: String,
}

/// A listening source; its threads end with the process.
pub struct ProofSource {
    address: SocketAddr,
    replies: Arc<Mutex<Replies>>,
    asked: Mutex<Receiver<Asked>>,
}

#[derive(Default)]
struct Replies {
    known: HashMap<String, Reply>,
    others: Option<Reply>,
    under_way: usize,
    most_under_way: usize,
}

/// A response with this status, fields (each with CR LF) and body.
pub fn respond(status: &str, fields: &str, body: impl AsRef<[u8]>) -> Reply {
    let body = body.as_ref();
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{fields}\r\n");
    let response = [head.as_bytes(), body].concat();
    Arc::new(move |stream| stream.write_all(&response))
}

/// 404.
pub fn not_found() -> Reply {
    respond("404 Not Found", "", "That key does not appear to be pwned")
}

/// The proof of the key of `party`, by the first encoding.
pub fn proof_of(party: &Party) -> String {
    proof::create(&party.key).unwrap().remove(0).json
}

/// 200 with the proof of the key of `party`.
pub fn proof(party: &Party) -> Reply {
    respond("200 OK", "content-type: application/json\r\n", proof_of(party))
}

pub fn fingerprint(party: &Party) -> String {
    Fingerprint::of(&party.spki).to_string()
}

impl ProofSource {
    /// A source without TLS that responds 404.
    pub fn start() -> Self {
        Self::serve(None)
    }

    /// A source with TLS and this certificate.
    pub fn with_tls(certificate: &Party) -> Self {
        let (chain, key) = certificate.credentials();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key);
        Self::serve(Some(Arc::new(config.unwrap())))
    }

    fn serve(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, asked) = channel();
        let replies: Arc<Mutex<Replies>> = Arc::default();
        let known = Arc::clone(&replies);
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let (sender, known, tls) = (sender.clone(), Arc::clone(&known), tls.clone());
                std::thread::spawn(move || drop(answer(tcp.unwrap(), tls, &sender, &known)));
            }
        });
        Self { address, replies, asked: Mutex::new(asked) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Responds to requests for the key of `party`, from now on.
    pub fn reply(&self, party: &Party, reply: Reply) {
        self.replies.lock().unwrap().known.insert(fingerprint(party), reply);
    }

    /// Responds to requests for keys without a reply of their own, from now on.
    pub fn reply_to_others(&self, reply: Reply) {
        self.replies.lock().unwrap().others = Some(reply);
    }

    /// The next request.
    pub fn next(&self) -> Asked {
        let asked = self.asked.lock().unwrap().recv_timeout(TIMEOUT);
        asked.expect("the source should have received a request")
    }

    /// The next request about the key of `party`.
    pub fn next_about(&self, party: &Party) -> Asked {
        loop {
            let asked = self.next();
            if asked.fingerprint == fingerprint(party) {
                return asked;
            }
        }
    }

    /// The requests that were received and not taken.
    pub fn taken(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().try_iter().collect()
    }

    /// The maximum number of requests that were under way at once.
    pub fn most_under_way(&self) -> usize {
        self.replies.lock().unwrap().most_under_way
    }
}

fn answer(
    tcp: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    sender: &Sender<Asked>,
    replies: &Mutex<Replies>,
) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    match tls {
        None => answer_on(tcp, sender, replies),
        Some(config) => {
            let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
            answer_on(StreamOwned::new(connection, tcp), sender, replies)
        }
    }
}

fn answer_on(
    stream: impl Stream,
    sender: &Sender<Asked>,
    replies: &Mutex<Replies>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default();
    let fingerprint = path.rsplit('/').next().unwrap_or_default().to_owned();
    let reply = {
        let mut replies = replies.lock().unwrap();
        replies.under_way += 1;
        replies.most_under_way = replies.most_under_way.max(replies.under_way);
        let known = replies.known.get(&fingerprint).or(replies.others.as_ref());
        known.cloned().unwrap_or_else(not_found)
    };
    let _ = sender.send(Asked { fingerprint, head }); // the test may have ended
    let written = reply(stream.get_mut());
    replies.lock().unwrap().under_way -= 1;
    written?;
    stream.get_mut().flush()
}

/// A key that a source must know, in the file `canary.pem`.
pub fn canary(pki: &Pki) -> Party {
    pki.client("canary", Kind::P256)
}
