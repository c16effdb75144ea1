//! The questions of HAProxy: frames of SPOP.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::peer::Peer;
use super::support::pki::Party;
use super::support::spop::{FRAME_SIZE, arguments, hello, notify};

/// A connection of HAProxy, with the arguments of `deploy/authorizer/haproxy`.
pub struct SpopPeer {
    question: Vec<u8>,
}

impl SpopPeer {
    pub fn about(client: &Party) -> Self {
        Self { question: notify(300, "keygate-request", &arguments(&client.der)) }
    }
}

impl Peer for SpopPeer {
    fn greet(&mut self, stream: &mut UnixStream) {
        stream.write_all(&hello(FRAME_SIZE, false)).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        stream.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize]).unwrap();
    }

    fn ask(&mut self, bytes: &mut Vec<u8>) {
        bytes.extend(&self.question);
    }

    fn answers(&mut self, bytes: &mut Vec<u8>) -> usize {
        let (mut start, mut frames) = (0, 0);
        while let Some(length) = bytes[start..].first_chunk::<4>() {
            let end = start + 4 + u32::from_be_bytes(*length) as usize;
            if end > bytes.len() {
                break;
            }
            (start, frames) = (end, frames + 1);
        }
        bytes.drain(..start);
        frames
    }
}
