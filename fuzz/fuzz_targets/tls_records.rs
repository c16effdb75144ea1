//! Any bytes as the first ones of a TLS client, in pieces of any size: an error, or a server name
//! that does not depend on the pieces. No such handshake is complete.

#![no_main]

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

use keygate_wire::permit::ledger::Holder;
use keygate_wire::permit::{BufferClass, ClientKey};
use keygate_wire::tls_stream::ClientHello;
use libfuzzer_sys::fuzz_target;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, ReadBuf};

static CONFIG: LazyLock<Arc<ServerConfig>> = LazyLock::new(|| {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&key).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap())
});

fuzz_target!(|input: &[u8]| {
    let Some((size, bytes)) = input.split_first() else { return };
    let result = |size| handshake(bytes, size).ok();
    let at_once = result(usize::MAX);
    assert_eq!(result(usize::from(*size)), at_once);
    assert!(!at_once.is_some_and(|(_, is_complete)| is_complete), "a handshake without its keys");
});

/// How a handshake ended whose client sent `bytes`, in pieces of `size` bytes, and closed: the
/// server name of the ClientHello, and whether the handshake was complete.
fn handshake(bytes: &[u8], size: usize) -> io::Result<(Option<String>, bool)> {
    let client = ClientKey::before_proof(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let holder = Holder { client, class: BufferClass::Handshake };
    let io = tokio::io::join(Pieces { rest: bytes, size: size.max(1) }, tokio::io::sink());
    let handshake = pin!(async {
        let mut hello = ClientHello::new(io, holder);
        loop {
            if hello.read().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if hello.parse().map_err(|problem| problem.error)? {
                break;
            }
        }
        let name = hello.server_name().map(str::to_owned);
        Ok((name, hello.accept(Arc::clone(&CONFIG)).await.is_ok()))
    });
    match handshake.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits although all bytes are there"),
    }
}

/// Bytes that arrive in pieces without a pause.
struct Pieces<'a> {
    rest: &'a [u8],
    size: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.size.min(self.rest.len()).min(buffer.remaining());
        let (piece, rest) = self.rest.split_at(count);
        buffer.put_slice(piece);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}
