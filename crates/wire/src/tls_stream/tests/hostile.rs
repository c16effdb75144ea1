//! Clients that break the protocol.

use rustls::crypto::cipher::{
    AeadKey, KeyBlockShape, MessageDecrypter, OutboundOpaqueMessage, Tls12AeadAlgorithm,
    UnsupportedOperationError,
};
use rustls::{CipherSuiteCommon, Tls12CipherSuite};

use super::*;

#[test]
fn writes_between_the_bytes_of_a_fragmented_message_do_no_harm() {
    let (mut forger, mut server) = Ends::new(&configs(&TLS13), 1).into_forger();
    // A key update without a request for one in return, one byte in each record.
    for byte in [24, 0, 0, 1, 0] {
        forger.send(ContentType::Handshake, &[byte]);
    }
    let mut written = 0;
    while !forger.pipe.0.borrow().to_server.is_empty() {
        // One byte of the network: the reader polls until the pipe is empty, so hide the rest.
        let rest = forger.pipe.0.borrow_mut().to_server.split_off(1);
        assert!(read_from(&mut server).is_pending());
        forger.pipe.0.borrow_mut().to_server = rest;
        let polled = Pin::new(&mut *server).poll_write(&mut context(), b"between");
        assert!(matches!(polled, Poll::Ready(Ok(7))), "{polled:?}");
        written += 1;
    }
    assert_eq!(written, 5 * (5 + 1 + 1 + 16));
    assert!(read_from(&mut server).is_pending());
    assert_eq!(server.session.incoming.len(), 0);
}

#[test]
fn floods_of_records_without_data_end_the_connection() {
    let update = [24, 0, 0, 1, 1];
    let user_canceled = [1, 90];
    for (typ, payload, most) in [
        (ContentType::ApplicationData, &[][..], 40),
        (ContentType::Handshake, &update, 40),
        (ContentType::Alert, &user_canceled, 40),
    ] {
        let (mut forger, mut server) = Ends::new(&configs(&TLS13), 0).into_forger();
        let mut records = 0;
        let error = loop {
            // The keys change with each update, so only the first of them is valid.
            forger.send(typ, payload);
            records += 1;
            match read_from(&mut server) {
                Poll::Pending => assert!(records < 10_000, "no limit"),
                Poll::Ready(ended) => break ended.unwrap_err(),
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        assert!(records <= most, "{typ:?}: {records}");
        assert!(read_from(&mut server).is_ready(), "it stays failed");
        assert_eq!(server.session.memory(), 0);
    }
}

#[test]
fn ten_thousand_empty_records_in_one_read_end_the_connection() {
    let (mut forger, mut server) = Ends::new(&configs(&TLS13), 0).into_forger();
    for _ in 0..10_000 {
        forger.send(ContentType::ApplicationData, b"");
    }
    assert!(matches!(read_from(&mut server), Poll::Ready(Err(_))));
}

#[test]
fn bytes_behind_a_close_notify_are_ignored_and_the_server_may_go_on() {
    for version in VERSIONS {
        for read_size in [1, 0] {
            let mut ends = Ends::new(&configs(version), read_size);
            ends.write(b"last words");
            ends.client.send_close_notify();
            send(&mut ends.client, &ends.pipe);
            ends.pipe
                .0
                .borrow_mut()
                .to_server
                .extend(b"\x17\x03\x03\x00\x05garbage that is no TLS");
            let mut received = Vec::new();
            loop {
                match ends.poll_read(4) {
                    Poll::Ready(Ok(read)) if read.is_empty() => break,
                    Poll::Ready(read) => received.extend(read.unwrap()),
                    Poll::Pending => {}
                }
            }
            assert_eq!(received, b"last words");
            assert!(matches!(ends.poll_read(4), Poll::Ready(Ok(read)) if read.is_empty()));
            assert_eq!(ends.respond(b"response"), b"response");
            assert!(Pin::new(&mut *ends.server).poll_shutdown(&mut context()).is_ready());
            receive(&mut ends.client, &ends.pipe).unwrap();
            assert!(matches!(ends.client.reader().read(&mut [0]), Ok(0)), "close_notify");
            assert!(matches!(ends.poll_write(b"more"), Poll::Ready(Err(_))));
            assert_eq!(ends.memory(), 0);
        }
    }
}

#[test]
fn a_stream_without_close_notify_has_no_end_but_an_error() {
    let mut ends = Ends::new(&configs(&TLS13), 0);
    ends.write(b"first");
    ends.write(b"second");
    ends.pipe.0.borrow_mut().to_server.pop_back();
    ends.pipe.0.borrow_mut().is_closed = true;
    assert_eq!(ends.poll_read(100).map(Result::unwrap), Poll::Ready(b"first".to_vec()));
    let Poll::Ready(Err(error)) = ends.poll_read(100) else { panic!() };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    let Poll::Ready(Err(error)) = ends.poll_read(100) else { panic!() };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "it stays one");
}

#[test]
fn garbage_gets_the_alert_that_rustls_chooses() {
    let oversized = [&[23, 3, 3, 0x48, 1][..], &[0; 100]].concat();
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], AlertDescription::DecodeError),
        (&oversized, AlertDescription::DecodeError),
        (b"\x17\x03\x03\x00\x20abcdefghijklmnopqrstuvwxyzabcdef", AlertDescription::BadRecordMac),
    ] {
        for version in VERSIONS {
            for read_size in [1, 0] {
                let mut ends = Ends::new(&configs(version), read_size);
                assert!(ends.read(1).is_empty());
                ends.deliver(&mut Vec::new());
                ends.pipe.0.borrow_mut().to_server.extend(bytes);
                let read = loop {
                    if let Poll::Ready(read) = ends.poll_read(100) {
                        break read;
                    }
                };
                assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
                assert_eq!(ends.alert(), expected, "{version:?}");
                assert!(matches!(ends.poll_read(100), Poll::Ready(Err(_))));
                assert!(matches!(ends.poll_write(b"more"), Poll::Ready(Err(_))));
                assert!(Pin::new(&mut *ends.server).poll_shutdown(&mut context()).is_ready());
                assert!(ends.pipe.0.borrow().to_client.is_empty(), "one alert");
            }
        }
    }
}

#[test]
fn a_client_hello_that_is_none_or_too_long_is_an_error() {
    let configs = configs(&TLS13);
    let long = [&[22, 3, 1, 0x40, 0, 1, 1, 0, 0][..], &[0; 20_000]].concat();
    let fragments =
        [&[22, 3, 1, 0, 4, 1, 0, 0x40, 0][..], &[22, 3, 1, 0, 1, 0].repeat(4000)].concat();
    for bytes in
        [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], &long, &[22, 3, 1, 0, 4, 2, 0, 0, 0], &fragments, b""]
    {
        for read_size in [1, 0] {
            let pipe = Pipe::default();
            pipe.0.borrow_mut().to_server.extend(bytes);
            pipe.0.borrow_mut().is_closed = bytes.len() < 9;
            pipe.0.borrow_mut().read_size = read_size;
            let accepting = pin!(accept(pipe, Arc::clone(&configs.server)));
            assert!(matches!(accepting.poll(&mut context()), Poll::Ready(Err(_))), "{bytes:?}");
        }
    }
}

/// A suite of TLS 1.2 whose client sends another message in the record of its `Finished`.
struct WithSecondMessage(&'static dyn Tls12AeadAlgorithm);

impl Tls12AeadAlgorithm for WithSecondMessage {
    fn encrypter(&self, key: AeadKey, iv: &[u8], extra: &[u8]) -> Box<dyn MessageEncrypter> {
        Box::new(SecondMessage(self.0.encrypter(key, iv, extra)))
    }

    fn decrypter(&self, key: AeadKey, iv: &[u8]) -> Box<dyn MessageDecrypter> {
        self.0.decrypter(key, iv)
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        self.0.key_block_shape()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: &[u8],
        explicit: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv, explicit)
    }
}

struct SecondMessage(Box<dyn MessageEncrypter>);

impl MessageEncrypter for SecondMessage {
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        sequence: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let mut payload = message.payload.to_vec();
        if message.typ == ContentType::Handshake {
            payload.extend([0, 0, 0, 0]); // a HelloRequest, which only a server may send
        }
        let payload = OutboundChunks::from(payload.as_slice());
        self.0.encrypt(OutboundPlainMessage { payload, ..message }, sequence)
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        self.0.encrypted_payload_len(payload_len)
    }
}

#[test]
fn a_message_behind_finished_in_its_record_ends_the_handshake() {
    let mut configs = configs(&TLS12);
    let mut provider = (**configs.client.crypto_provider()).clone();
    for suite in &mut provider.cipher_suites {
        if let SupportedCipherSuite::Tls12(Tls12CipherSuite {
            common: CipherSuiteCommon { suite: name, hash_provider, confidentiality_limit },
            prf_provider,
            kx,
            sign,
            aead_alg,
        }) = *suite
        {
            *suite = SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: CipherSuiteCommon {
                    suite: *name,
                    hash_provider: *hash_provider,
                    confidentiality_limit: *confidentiality_limit,
                },
                prf_provider: *prf_provider,
                kx: *kx,
                sign,
                aead_alg: Box::leak(Box::new(WithSecondMessage(*aead_alg))),
            })));
        }
    }
    configs.client = client_config(&TLS12, provider, &configs.certificate, &configs.key);
    for read_size in [1, 0] {
        let (mut client, pipe, outcome) = handshake(&configs, read_size);
        let Err((error, _)) = outcome else { panic!("read size {read_size}") };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        let alert = receive(&mut client, &pipe).unwrap_err();
        assert_eq!(alert, Error::AlertReceived(AlertDescription::UnexpectedMessage));
    }
}

#[test]
fn an_alert_of_a_failed_handshake_waits_for_the_socket() {
    let pipe = Pipe::default();
    send(&mut new_client(&configs(&TLS13)), &pipe);
    let server = configs(&TLS12).server; // no common version
    let mut accepting = pin!(accept(pipe.clone(), server));
    pipe.0.borrow_mut().space = Some(0);
    assert!(accepting.as_mut().poll(&mut context()).is_pending());
    pipe.0.borrow_mut().space = None;
    assert!(matches!(accepting.poll(&mut context()), Poll::Ready(Err(_))));
    assert_eq!(pipe.0.borrow().to_client, [21, 3, 3, 0, 2, 2, 70], "protocol_version");
}

#[test]
fn fragments_of_a_message_are_kept_up_to_a_bound() {
    for (length, most) in [([0, 0xff, 0xff], BUFFER), ([1, 0x11, 0x70], BUFFER)] {
        let (mut forger, mut server) = Ends::new(&configs(&TLS13), 0).into_forger();
        forger.send(ContentType::Handshake, &[&[24][..], &length].concat());
        let mut records = 0;
        let error = loop {
            match read_from(&mut server) {
                Poll::Pending => assert!(server.session.memory() <= most),
                Poll::Ready(ended) => break ended.unwrap_err(),
            }
            forger.send(ContentType::Handshake, &[0]);
            records += 1;
            assert!(records < 10_000, "no limit");
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        assert!(server.session.memory() <= most);
        assert!(read_from(&mut server).is_ready(), "it stays failed");
    }
}

#[test]
fn no_sequence_of_valid_records_causes_a_panic_or_takes_memory() {
    let update = [24, 0, 0, 1, 0];
    let pieces: [(ContentType, &[u8]); 12] = [
        (ContentType::Alert, &[1, 90]),
        (ContentType::Alert, &[1]),
        (ContentType::ApplicationData, &[7; 3000]),
        (ContentType::ApplicationData, b""),
        (ContentType::ChangeCipherSpec, &[1]),
        (ContentType::Handshake, &update[..1]),
        (ContentType::Handshake, &update[1..4]),
        (ContentType::Handshake, &update),
        (ContentType::Handshake, &[24, 0, 0, 1, 0, 24, 0]),
        (ContentType::Handshake, &[1, 0, 0, 0]),
        (ContentType::Handshake, &[4, 0xff, 0xff, 0xff]),
        (ContentType::Heartbeat, b"beat"),
    ];
    let configs = configs(&TLS13);
    for seed in 1..=200 {
        let mut random = generator(seed);
        let (mut forger, mut server) = Ends::new(&configs, random(2) * random(30)).into_forger();
        for _ in 0..12 {
            // Mostly data and fragments, because the other records end the connection.
            let (typ, payload) = match random(3) {
                0 => pieces[random(pieces.len())],
                1 => pieces[2],
                _ => pieces[5 + random(2)],
            };
            forger.send(typ, payload);
            if random(8) == 0 {
                forger.pipe.damage(random(40));
            }
            for _ in 0..random(4) {
                let _ = read_from(&mut server);
                let _ = Pin::new(&mut *server).poll_write(&mut context(), b"between");
                let _ = server.poll_prefetch(&mut context());
            }
            assert!(server.session.memory() <= 2 * BUFFER);
        }
        let _ = Pin::new(&mut *server).poll_shutdown(&mut context());
    }
}

#[test]
fn no_damage_of_a_handshake_causes_a_panic() {
    for version in VERSIONS {
        let configs = configs(version);
        for seed in 1..=200 {
            let mut random = generator(seed);
            let pipe = Pipe::default();
            pipe.0.borrow_mut().read_size = random(2) * random(300);
            let mut client = new_client(&configs);
            let mut accepting = pin!(accept(pipe.clone(), Arc::clone(&configs.server)));
            for _ in 0..20 {
                send(&mut client, &pipe);
                if random(3) == 0 {
                    pipe.damage(random(600));
                }
                if accepting.as_mut().poll(&mut context()).is_ready() {
                    break;
                }
                let _ = receive(&mut client, &pipe);
            }
        }
    }
}
