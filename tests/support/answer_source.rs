//! A source of proofs over HTTP that answers when the test wants it to.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use ::keygate::proof;
use ::keygate::spki::Fingerprint;

use super::keygate::Keygate;
use super::pki::{Kind, Party, Pki};
use super::wait::wait_for;

/// The answer about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// 429 with this `Retry-After`, in seconds.
    Busy(u32),
    /// 200 with this body.
    Proof(String),
    /// None until the test sets another answer.
    Silence,
    /// 404.
    Unknown,
}

/// A listening source; its threads end with the process.
pub struct AnswerSource {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    answers: HashMap<String, Answer>,
    /// The answer about other keys.
    default: Answer,
    asked: Vec<String>,
    /// Requests without an answer.
    open: Vec<(String, TcpStream)>,
}

impl AnswerSource {
    /// A source with this answer about every key.
    pub fn start(default: Answer) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (answers, asked, open) = (HashMap::new(), Vec::new(), Vec::new());
        let shared = Arc::new(Mutex::new(Shared { answers, default, asked, open }));
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let (tcp, shared) = (tcp.unwrap(), Arc::clone(&of_thread));
                std::thread::spawn(move || receive(tcp, &shared));
            }
        });
        Self { address, shared }
    }

    /// Settings of `[confirm]` for this source, whose canary is a new key of `pki`.
    pub fn settings(&self, pki: &Pki, wait: &str) -> String {
        let canary = pki.client("canary", Kind::P256);
        self.prove(&canary);
        format!(
            "[confirm]\nurl = \"http://{}\"\ncanary = \"canary.pem\"\nfilters = [\"lost\"]\n\
             wait = \"{wait}\"\ntimeout = \"1h\"\nrate = 1000\n",
            self.address
        )
    }

    /// Waits until `keygate` has found that this source knows its canary.
    pub fn wait_for_canary(&self, keygate: &Keygate) {
        keygate.wait_for_status("the canary", |status| status["confirm"]["canary"] == "ok");
    }

    /// The source has a proof of the compromise of the key of `party`.
    pub fn prove(&self, party: &Party) {
        let proofs = proof::create(&party.key).unwrap();
        let fingerprint = Fingerprint::of(&party.spki);
        let proof = proofs.into_iter().find(|proof| proof.fingerprint == fingerprint).unwrap();
        self.set(&party.spki, Answer::Proof(proof.json));
    }

    /// The source does not know the key of `party`.
    pub fn clear(&self, party: &Party) {
        self.set(&party.spki, Answer::Unknown);
    }

    /// Sets the answer about a key, also for requests that wait for one.
    pub fn set(&self, spki: &[u8], answer: Answer) {
        let fingerprint = Fingerprint::of(spki).to_string();
        let mut shared = self.shared.lock().unwrap();
        for (_, tcp) in shared.open.extract_if(.., |(asked, _)| *asked == fingerprint) {
            respond(tcp, &answer);
        }
        shared.answers.insert(fingerprint, answer);
    }

    /// Waits until the source is asked about the key of `party`.
    pub fn wait_for_question(&self, party: &Party) {
        let fingerprint = Fingerprint::of(&party.spki).to_string();
        wait_for("a question", || {
            let shared = self.shared.lock().unwrap();
            let is_asked = shared.asked.contains(&fingerprint);
            if is_asked { Ok(()) } else { Err(format!("{:?}", shared.asked)) }
        });
    }

    /// The number of questions about the key of `party`.
    pub fn questions(&self, party: &Party) -> usize {
        let fingerprint = Fingerprint::of(&party.spki).to_string();
        let shared = self.shared.lock().unwrap();
        shared.asked.iter().filter(|asked| **asked == fingerprint).count()
    }
}

fn receive(tcp: TcpStream, shared: &Mutex<Shared>) {
    let mut lines = BufReader::new(&tcp).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let fingerprint = request.split(['/', ' ']).nth(2).unwrap().to_owned();
    let _ = lines.find(String::is_empty);
    let mut shared = shared.lock().unwrap();
    shared.asked.push(fingerprint.clone());
    let answer = shared.answers.get(&fingerprint).unwrap_or(&shared.default).clone();
    if answer == Answer::Silence {
        shared.open.push((fingerprint, tcp));
    } else {
        respond(tcp, &answer);
    }
}

fn respond(mut tcp: TcpStream, answer: &Answer) {
    let (head, body) = match answer {
        Answer::Busy(seconds) => {
            (format!("429 Too Many Requests\r\nretry-after: {seconds}"), "busy")
        }
        Answer::Proof(proof) => {
            ("200 OK\r\ncontent-type: application/json".to_owned(), proof.as_str())
        }
        Answer::Silence => return,
        Answer::Unknown => ("404 Not Found".to_owned(), "unknown"),
    };
    let length = body.len();
    // keygate may have closed the connection.
    let _ = write!(
        tcp,
        "HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
}
