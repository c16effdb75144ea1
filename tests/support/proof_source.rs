//! A source of proofs with every kind of answer, over real sockets. It responds at once, or when
//! the test has set the reply.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};

use ::keygate_core::proof;
use ::keygate_core::spki::Fingerprint;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::TIMEOUT;
use super::keygate::Keygate;
use super::pki::{Kind, Party, Pki};
use super::wait::wait_for;

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
    shared: Arc<Shared>,
    asked: Mutex<Receiver<Asked>>,
}

#[derive(Default)]
struct Shared {
    replies: Mutex<Replies>,
    /// Notified when a reply is set.
    changed: Condvar,
}

#[derive(Default)]
struct Replies {
    known: HashMap<String, Reply>,
    others: Option<Reply>,
    /// Whether requests without a reply wait for one.
    is_silent: bool,
    /// The fingerprints of all requests.
    asked: Vec<String>,
    under_way: usize,
    most_under_way: usize,
}

impl Replies {
    fn reply(&self, fingerprint: &str) -> Option<Reply> {
        self.known.get(fingerprint).or(self.others.as_ref()).cloned()
    }
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

    /// A source without TLS that responds to a request once the test has set the reply.
    pub fn silent() -> Self {
        let source = Self::start();
        source.shared.replies.lock().unwrap().is_silent = true;
        source
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

    /// A source without TLS on this listener, which responds 404.
    pub fn on(listener: TcpListener) -> Self {
        Self::serve_on(listener, None)
    }

    fn serve(tls: Option<Arc<ServerConfig>>) -> Self {
        Self::serve_on(TcpListener::bind(("127.0.0.1", 0)).unwrap(), tls)
    }

    fn serve_on(listener: TcpListener, tls: Option<Arc<ServerConfig>>) -> Self {
        let address = listener.local_addr().unwrap();
        let (sender, asked) = channel();
        let shared: Arc<Shared> = Arc::default();
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let (sender, shared, tls) = (sender.clone(), Arc::clone(&of_thread), tls.clone());
                std::thread::spawn(move || drop(answer(tcp.unwrap(), tls, &sender, &shared)));
            }
        });
        Self { address, shared, asked: Mutex::new(asked) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Responds to requests for the key of `party`, from now on.
    pub fn reply(&self, party: &Party, reply: Reply) {
        self.reply_about(&party.spki, reply);
    }

    /// Responds to requests for the key with this SubjectPublicKeyInfo, from now on. Requests that
    /// wait for a reply get it as well.
    pub fn reply_about(&self, spki: &[u8], reply: Reply) {
        let fingerprint = Fingerprint::of(spki).to_string();
        self.shared.replies.lock().unwrap().known.insert(fingerprint, reply);
        self.shared.changed.notify_all();
    }

    /// The source has the proof of the compromise of the key of `party`.
    pub fn prove(&self, party: &Party) {
        self.reply(party, proof(party));
    }

    /// The source does not know the key of `party`.
    pub fn clear(&self, party: &Party) {
        self.reply(party, not_found());
    }

    /// Responds to requests for keys without a reply of their own, from now on.
    pub fn reply_to_others(&self, reply: Reply) {
        self.shared.replies.lock().unwrap().others = Some(reply);
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

    /// Settings of `[confirm]` for this source, whose canary is a new key of `pki`.
    pub fn settings(&self, pki: &Pki, wait: &str) -> String {
        self.prove(&canary(pki));
        format!(
            "[confirm]\nurl = \"{}\"\ncanary = \"canary.pem\"\nfilters = [\"lost\"]\n\
             wait = \"{wait}\"\ntimeout = \"1h\"\nrate = 1000\n",
            self.url()
        )
    }

    /// Waits until `keygate` has found that this source knows its canary.
    pub fn wait_for_canary(&self, keygate: &Keygate) {
        keygate.wait_for_status("the canary", |status| status["confirm"]["canary"] == "ok");
    }

    /// Waits until the source is asked about the key of `party`.
    pub fn wait_for_question(&self, party: &Party) {
        wait_for("a question", || {
            let asked = &self.shared.replies.lock().unwrap().asked;
            if asked.contains(&fingerprint(party)) { Ok(()) } else { Err(format!("{asked:?}")) }
        });
    }

    /// The number of requests about the key of `party`.
    pub fn questions(&self, party: &Party) -> usize {
        let replies = self.shared.replies.lock().unwrap();
        replies.asked.iter().filter(|asked| **asked == fingerprint(party)).count()
    }

    /// The maximum number of requests that were under way at once.
    pub fn most_under_way(&self) -> usize {
        self.shared.replies.lock().unwrap().most_under_way
    }
}

fn answer(
    tcp: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    sender: &Sender<Asked>,
    shared: &Shared,
) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    match tls {
        None => answer_on(tcp, sender, shared),
        Some(config) => {
            let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
            answer_on(StreamOwned::new(connection, tcp), sender, shared)
        }
    }
}

fn answer_on(stream: impl Stream, sender: &Sender<Asked>, shared: &Shared) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default();
    let fingerprint = path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut replies = shared.replies.lock().unwrap();
    replies.asked.push(fingerprint.clone());
    replies.under_way += 1;
    replies.most_under_way = replies.most_under_way.max(replies.under_way);
    let _ = sender.send(Asked { fingerprint: fingerprint.clone(), head }); // the test may have ended
    let is_waiting =
        |replies: &mut Replies| replies.is_silent && replies.reply(&fingerprint).is_none();
    let replies = shared.changed.wait_while(replies, is_waiting).unwrap();
    let reply = replies.reply(&fingerprint).unwrap_or_else(not_found);
    drop(replies);
    let mut answering = Answering { stream: stream.get_mut(), shared, has_begun: false };
    reply(&mut answering)?;
    answering.flush()
}

/// A request under way until its response begins: from then on the client may begin another.
struct Answering<'a, S> {
    stream: &'a mut S,
    shared: &'a Shared,
    has_begun: bool,
}

impl<S> Answering<'_, S> {
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.shared.replies.lock().unwrap().under_way -= 1;
        }
    }
}

impl<S> Drop for Answering<'_, S> {
    fn drop(&mut self) {
        self.begin(); // a reply may write nothing
    }
}

impl<S: Read> Read for Answering<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl<S: Write> Write for Answering<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.begin();
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// A key that a source must know, in the file `canary.pem`.
pub fn canary(pki: &Pki) -> Party {
    pki.client("canary", Kind::P256)
}
