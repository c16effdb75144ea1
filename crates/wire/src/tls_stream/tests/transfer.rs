//! Data between both ends, in pieces of any size.

use super::*;

#[test]
fn data_arrives_byte_by_byte_and_in_large_reads() {
    for version in VERSIONS {
        let configs = configs(version);
        for read_size in [1, 7, 1000, 16_500, 0] {
            let mut ends = Ends::new(&configs, read_size);
            let sent = data(200_000);
            let mut received = Vec::new();
            for piece in sent.chunks(50_000) {
                ends.write(piece);
                received.extend(ends.read(9_000));
            }
            assert!(received == sent, "{version:?}, reads of {read_size} bytes");
            assert!(ends.respond(&sent) == sent);
            assert!(ends.read(1).is_empty());
            assert_eq!(ends.memory(), 0, "an idle connection has no buffer");
        }
    }
}

#[test]
fn many_records_of_one_read_reach_readers_of_any_size() {
    let configs = configs(&TLS13);
    for size in [1, 3, 100, 100_000] {
        let mut ends = Ends::new(&configs, 0);
        for number in 0..=255 {
            ends.write(&[number; 3]);
        }
        let expected: Vec<u8> = (0..=255).flat_map(|number| [number; 3]).collect();
        assert_eq!(ends.read(size), expected, "reads of {size} bytes");
        assert_eq!(ends.memory(), 0);
    }
}

#[test]
fn a_resumed_handshake_has_one_write_less_if_the_request_is_there() {
    for version in VERSIONS {
        let configs = configs(version);
        let mut first = Ends::new(&configs, 0);
        assert!(first.read(1).is_empty());
        first.deliver(&mut Vec::new());
        let mut resumed = Ends::new(&configs, 0);
        assert_eq!(resumed.server.state().handshake_kind(), Some(HandshakeKind::Resumed));
        let handshake = resumed.writes();
        resumed.write(b"request");
        assert_eq!(resumed.poll_read(100).map(Result::unwrap), Poll::Ready(b"request".to_vec()));
        assert_eq!(resumed.respond(b"response"), b"response");
        assert_eq!(resumed.writes(), handshake + 1, "tickets and response are one write");
    }
}

#[test]
fn tickets_do_not_wait_for_a_silent_client() {
    let configs = configs(&TLS13);
    let mut ends = Ends::new(&configs, 0);
    receive(&mut ends.client, &ends.pipe).unwrap();
    assert_eq!(ends.client.tls13_tickets_received(), 0);
    assert!(ends.poll_read(1).is_pending());
    receive(&mut ends.client, &ends.pipe).unwrap();
    assert!(ends.client.tls13_tickets_received() > 0);
    assert_eq!(ends.memory(), 0);
}

#[test]
fn a_client_that_is_held_gets_its_tickets() {
    let mut ends = Ends::new(&configs(&TLS13), 0);
    assert!(ends.server.poll_prefetch(&mut context()).is_pending());
    receive(&mut ends.client, &ends.pipe).unwrap();
    assert!(ends.client.tls13_tickets_received() > 0);
    assert_eq!(ends.memory(), 0);
}

#[test]
fn small_pieces_share_a_record_and_large_ones_are_cut() {
    let configs = configs(&TLS13);
    let mut ends = Ends::new(&configs, 0);
    assert!(ends.read(1).is_empty());
    ends.deliver(&mut Vec::new());
    let (head, body, large) = (data(200), data(128), data(100_000));
    let pieces = [&head, &body].map(|piece| IoSlice::new(piece));
    let server = Pin::new(&mut *ends.server);
    let Poll::Ready(count) = server.poll_write_vectored(&mut context(), &pieces) else { panic!() };
    assert_eq!(count.unwrap(), 328);
    assert_eq!(ends.pipe.0.borrow().to_client.len(), 328 + 22, "one record");
    let pieces = [&head, &large, &body].map(|piece| IoSlice::new(piece));
    let server = Pin::new(&mut *ends.server);
    let Poll::Ready(count) = server.poll_write_vectored(&mut context(), &pieces) else { panic!() };
    let count = count.unwrap();
    assert_eq!(count, 200 + (4 << 14), "as much as the buffer holds");
    let mut received = Vec::new();
    ends.deliver(&mut received);
    assert!(received == [&head, &body, &head, &large[..4 << 14]].concat());
}

#[test]
fn a_client_that_reads_nothing_stops_the_writer() {
    let configs = configs(&TLS13);
    let mut ends = Ends::new(&configs, 0);
    assert!(ends.read(1).is_empty());
    let sent = data(1 << 20);
    let (mut rest, mut received) = (sent.as_slice(), Vec::new());
    ends.pipe.0.borrow_mut().space = Some(0);
    while let Poll::Ready(count) = ends.poll_write(rest) {
        rest = &rest[count.unwrap()..];
        assert!(sent.len() - rest.len() <= 2 * BUFFER);
    }
    assert!(ends.memory() <= 2 * BUFFER, "{}", ends.memory());
    while !rest.is_empty() || !ends.server.session.outgoing.is_empty() {
        ends.pipe.0.borrow_mut().space = Some(1_000);
        if let Poll::Ready(count) = ends.poll_write(rest) {
            rest = &rest[count.unwrap()..];
        }
        let _ = Pin::new(&mut *ends.server).poll_flush(&mut context()).map(Result::unwrap);
        ends.deliver(&mut received);
    }
    assert!(received == sent);
    assert_eq!(ends.memory(), 0);
}

#[test]
fn a_full_buffer_takes_nothing_until_it_is_flushed() {
    let mut ends = Ends::new(&configs(&TLS13), 0);
    assert!(ends.read(1).is_empty());
    ends.deliver(&mut Vec::new());
    let (writes, frame) = (ends.writes(), data(9_000));
    let mut buffered = 0;
    loop {
        match ends.server.buffer_vectored(&[IoSlice::new(&frame)]).unwrap() {
            0 => break,
            count => buffered += count,
        }
    }
    assert!((BUFFER - 10_000..BUFFER).contains(&buffered), "{buffered}");
    assert_eq!(ends.writes(), writes);
    assert!(Pin::new(&mut *ends.server).poll_flush(&mut context()).is_ready());
    assert_eq!(ends.writes(), writes + 1);
    let mut received = Vec::new();
    ends.deliver(&mut received);
    assert_eq!(received.len(), buffered);
    assert_eq!(ends.memory(), 0);
}

#[test]
fn a_client_that_holds_its_share_goes_on_with_short_records_and_with_its_uploads() {
    ledger::set_limit(1 << 20);
    let mut ends = Ends::new(&configs(&TLS13), 0);
    assert!(ends.read(1).is_empty());
    ends.deliver(&mut Vec::new());
    let client = ClientKey::new(None, NONE);
    ends.server.set_client(client);
    let [mut share, mut upload] = [BufferClass::Response, BufferClass::Upload]
        .map(|class| Held::new(Holder { client, class }));
    share.set(700 << 10);
    ends.write(b"short");
    assert_eq!(ends.read(100), b"short");
    let long = data(16_000);
    ends.write(&long);
    assert!(ends.poll_read(100).is_pending());
    ends.pipe.0.borrow_mut().space = Some(0);
    let written = ends.poll_write(&data(100_000)).map(Result::unwrap);
    assert_eq!(written, Poll::Ready(16 << 10), "one record");
    assert!(ends.memory() <= 20 << 10, "{}", ends.memory());
    let read_limit = |ends: &mut Ends| ends.server.poll_read_limit(&context());
    assert!(read_limit(&mut ends).is_pending(), "a part of a record waits");
    upload.set(64 << 10);
    assert!(read_limit(&mut ends).is_ready());
    assert!(ends.read(100) == long, "its window covers the record");
    upload.set(0);
    ends.write(&long);
    assert!(ends.poll_read(100).is_pending());
    share.set(0);
    assert!(read_limit(&mut ends).is_ready());
    assert!(ends.read(100) == long);
}

#[test]
fn data_behind_a_handshake_counts_for_the_client() {
    ledger::set_limit(64 << 10); // 12 KiB for the handshakes of one address
    let configs = configs(&TLS13);
    let mut client = new_client(&configs);
    let sent = data(30_000);
    client.writer().write_all(&sent).unwrap();
    let (client, pipe, accepted) = handshake_of(client, &configs, 0);
    let server = accepted.map_err(|(error, _)| error).unwrap();
    let mut ends = Ends { client, server, pipe };
    ends.server.set_client(ClientKey::new(Some(b"proved"), NONE));
    assert!(bytes_of(BufferClass::Handshake) == 0 && bytes_of(BufferClass::Tls) > 0);
    ledger::set_limit(usize::MAX);
    assert!(ends.read(100) == sent);
}

fn bytes_of(class: BufferClass) -> usize {
    ledger::usage()[class as usize].bytes
}

#[test]
fn key_updates_of_both_sides_are_followed() {
    let configs = configs(&TLS13);
    for read_size in [1, 0] {
        let mut ends = Ends::new(&configs, read_size);
        for round in 0..20 {
            ends.client.refresh_traffic_keys().unwrap();
            ends.write(&[round; 100]);
            assert_eq!(ends.read(70), [round; 100]);
            assert_eq!(ends.respond(&[round; 10]), [round; 10]);
        }
    }
}

#[test]
fn random_sizes_lose_no_byte_and_mix_none() {
    for version in VERSIONS {
        let configs = configs(version);
        for seed in 1..=12 {
            let mut random = generator(seed);
            let mut ends = Ends::new(&configs, random(40_000));
            let (up, down) = (data(400_000), data(300_007));
            let (mut sent, mut received) = (0, Vec::new());
            let (mut written, mut delivered) = (0, Vec::new());
            while received.len() < up.len() || delivered.len() < down.len() {
                let next = random(30_000).min(up.len() - sent);
                ends.write(&up[sent..sent + next]);
                sent += next;
                if random(8) == 0 && version == &TLS13 {
                    ends.client.refresh_traffic_keys().unwrap();
                }
                ends.pipe.0.borrow_mut().read_size = random(40_000);
                ends.pipe.0.borrow_mut().space = Some(random(50_000));
                for _ in 0..random(6) {
                    if let Poll::Ready(read) = ends.poll_read(1 + random(20_000)) {
                        received.extend(read.unwrap());
                    }
                }
                let rest = &down[written..];
                let (first, second) = rest.split_at(random(20_000).min(rest.len()));
                let second = &second[..random(20_000).min(second.len())];
                let pieces = [IoSlice::new(first), IoSlice::new(second)];
                let server = Pin::new(&mut *ends.server);
                match server.poll_write_vectored(&mut context(), &pieces) {
                    Poll::Ready(count) => written += count.unwrap(),
                    Poll::Pending => {}
                }
                let _ = Pin::new(&mut *ends.server).poll_flush(&mut context());
                ends.deliver(&mut delivered);
            }
            assert!(received == up && delivered == down, "{version:?}, seed {seed}");
        }
    }
}

/// Each connection of a client that holds its share of the memory would add to it otherwise.
#[test]
fn few_bytes_behind_a_handshake_are_read_before_the_client_is_known() {
    let configs = configs(&TLS13);
    let mut client = new_client(&configs);
    client.writer().write_all(&[b'x'; 60_000]).unwrap();
    let (_client, pipe, accepted) = handshake_of(client, &configs, 0);
    assert!(accepted.is_ok());
    let left = pipe.0.borrow().to_server.len();
    assert!(left > 60_000 - FEW, "{left}");
}
