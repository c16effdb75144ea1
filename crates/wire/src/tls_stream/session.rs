//! The TLS state of a connection: rustls without its buffers.
//!
//! Every call of rustls' unbuffered interface is here. The interface has one rule: rustls keeps
//! positions in bytes that it was offered and has not discarded, so each later call must begin with
//! the same bytes. [`Session`] offers one record at a time and counts such bytes in `offered`. They
//! are the fragments of a handshake message that is not complete.

use std::io::{self, IoSlice};
use std::sync::Arc;

use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, Error, ServerConfig};

use super::buffer::Buffer;
use crate::permit::ledger::Holder;

/// Maximum plaintext of a record, in bytes.
const MAX_PLAINTEXT: usize = 16 << 10;
/// Upper bound of what encryption adds to a record, in bytes. TLS 1.3 adds 22, TLS 1.2 at most 29.
const OVERHEAD: usize = 64;
/// Upper bound of a record that rustls writes, in bytes.
pub(super) const MAX_RECORD: usize = MAX_PLAINTEXT + OVERHEAD;
/// Length of a record's header, in bytes. The last two are the length of its payload.
const HEADER: usize = 5;
/// Space for messages that rustls adds before data: the key updates of both sides.
const CONTROL: usize = 512;
/// Maximum size of a piece that shares a record with its neighbours, in bytes. Its copy costs less
/// than a record of its own.
const SHARED: usize = 8 << 10;

/// The state of one connection.
pub(super) struct Session {
    connection: UnbufferedServerConnection,
    /// Received bytes that rustls has not discarded, at most one [`BUFFER`](super::BUFFER).
    pub(super) incoming: Buffer,
    /// Bytes at the front of `incoming` that rustls keeps positions in.
    offered: usize,
    /// The records that wait to be sent.
    pub(super) outgoing: Buffer,
    /// The client has sent `close_notify`. Bytes behind it are ignored.
    pub(super) has_received_close: bool,
    /// An error has ended the session. rustls gets no more bytes.
    pub(super) has_failed: bool,
    /// `close_notify` is in `outgoing` or sent. Nothing can be written behind it.
    has_sent_close: bool,
}

/// The progress that [`Session::process`] has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Processed {
    /// The plaintext of a record was delivered. There may be more.
    Delivered,
    /// The handshake is complete. There may be bytes behind it.
    Established,
    /// All whole records are processed.
    NeedsBytes,
}

/// The state of rustls after it was offered bytes.
enum Offered {
    /// The client has closed its side.
    Closed,
    /// The plaintext of a record was delivered.
    Delivered,
    /// rustls has used all whole records that it was offered.
    Idle,
}

impl Session {
    /// # Errors
    /// Returns an error if rustls refuses the configuration.
    pub(super) fn new(
        config: Arc<ServerConfig>,
        incoming: Buffer,
        holder: Holder,
    ) -> Result<Self, Error> {
        Ok(Self {
            connection: UnbufferedServerConnection::new(config)?,
            incoming,
            offered: 0,
            outgoing: Buffer::new(holder),
            has_received_close: false,
            has_failed: false,
            has_sent_close: false,
        })
    }

    pub(super) fn state(&self) -> &CommonState {
        &self.connection
    }

    /// Processes received records until the handshake is complete, or until one has plaintext,
    /// which `deliver` gets.
    ///
    /// # Errors
    /// Returns an error if the client breaks the protocol. The alert waits to be sent.
    pub(super) fn process(&mut self, mut deliver: impl FnMut(&[u8])) -> Result<Processed, Error> {
        if self.has_failed {
            return Err(Error::General("the connection has failed".into()));
        }
        let was_handshaking = self.state().is_handshaking();
        while self.incoming.len() > self.offered {
            let (end, partial) = self.next_record();
            match self.offer(end, partial, &mut deliver).inspect_err(|_| self.fail())? {
                Offered::Closed => {
                    self.has_received_close = true;
                    self.incoming.clear(); // RFC 8446, section 6.1
                    self.offered = 0;
                }
                Offered::Delivered => return Ok(Processed::Delivered),
                Offered::Idle if was_handshaking && !self.state().is_handshaking() => {
                    return Ok(Processed::Established);
                }
                Offered::Idle if partial > 0 => break,
                Offered::Idle => {}
            }
        }
        Ok(Processed::NeedsBytes)
    }

    /// The end of the first record that rustls was not offered, and how many bytes before this end
    /// are only a part of a record. rustls looks at a part as well, because its first bytes may
    /// show that it is no TLS.
    fn next_record(&self) -> (usize, usize) {
        let filled = self.incoming.filled();
        let rest = filled.get(self.offered..).unwrap_or_default();
        if let [_, _, _, high, low, ..] = *rest {
            let length = HEADER.saturating_add(u16::from_be_bytes([high, low]).into());
            if length <= rest.len() {
                return (self.offered.saturating_add(length), 0);
            }
        }
        (filled.len(), rest.len())
    }

    /// Calls rustls with the first `end` bytes until it has used them. The last `partial` of them
    /// are no whole record.
    #[expect(clippy::wildcard_enum_match_arm, reason = "rustls may add states")]
    fn offer(
        &mut self,
        mut end: usize,
        partial: usize,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<Offered, Error> {
        loop {
            let bytes = self.incoming.filled_mut().get_mut(..end).unwrap_or_default();
            let UnbufferedStatus { mut discard, state } =
                self.connection.process_tls_records(bytes);
            let step = match state? {
                // The record had data. rustls has no position in its bytes.
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard = discard.saturating_add(record.discard);
                        deliver(record.payload);
                    }
                    Some(Offered::Delivered)
                }
                // rustls has a message for the client. There may be more, and bytes not used.
                ConnectionState::EncodeTlsData(mut data) => {
                    encode(&mut self.outgoing, |room| data.encode(room))?;
                    None
                }
                // All messages are encoded. They are in `outgoing`, which is sent in order.
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    None
                }
                // `close_notify` of the client; with our own before it, the state is `Closed`.
                ConnectionState::PeerClosed | ConnectionState::Closed => Some(Offered::Closed),
                // The handshake needs more bytes, or data can be sent.
                ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => {
                    Some(Offered::Idle)
                }
                // Early data is off in every configuration.
                _ => return Err(Error::General("unexpected TLS state".into())),
            };
            self.incoming.consume(discard);
            end = end.saturating_sub(discard);
            if let Some(step) = step {
                self.offered = end.saturating_sub(partial);
                return Ok(step);
            }
        }
    }

    /// Ends the session after an error. The alert, if there is one, waits to be sent.
    fn fail(&mut self) {
        self.has_failed = true;
        self.incoming.clear(); // a second look at the bytes would make a second alert
        self.offered = 0;
        while self.state().wants_write() {
            // rustls returns its messages before it looks at bytes.
            let state = self.connection.process_tls_records(&mut []).state;
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { return };
            if encode(&mut self.outgoing, |room| data.encode(room)).is_err() {
                return;
            }
        }
    }

    /// Encrypts as much of `pieces` as the outgoing buffer has space for. Returns the number of
    /// bytes; 0 if the buffer is full.
    ///
    /// # Errors
    /// Returns an error if the connection has failed, or if its write side is closed.
    pub(super) fn encrypt(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut shared = Vec::new();
        let mut taken: usize = 0;
        let mut rest = pieces;
        while let [first, behind @ ..] = rest {
            let neighbours = count_neighbours(rest);
            let bytes = if neighbours > 1 {
                shared.clear();
                rest.iter().take(neighbours).for_each(|piece| shared.extend_from_slice(piece));
                rest = rest.get(neighbours..).unwrap_or_default();
                shared.as_slice()
            } else {
                rest = behind;
                first
            };
            let count = self.encrypt_bytes(bytes)?;
            taken = taken.saturating_add(count);
            if count < bytes.len() {
                break;
            }
        }
        Ok(taken)
    }

    /// Encrypts as much of `bytes` as fits: all, or full records only. Returns the number of bytes.
    fn encrypt_bytes(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.has_failed || self.has_sent_close {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let space = self.outgoing.space().saturating_sub(CONTROL);
        let full = (space / MAX_RECORD).saturating_mul(MAX_PLAINTEXT);
        let fits = full.saturating_add((space % MAX_RECORD).saturating_sub(OVERHEAD));
        let bytes = if bytes.len() <= fits { bytes } else { bytes.get(..full).unwrap_or_default() };
        if !bytes.is_empty() {
            self.write(|traffic, room| traffic.encrypt(bytes, room))?;
        }
        Ok(bytes.len())
    }

    /// Makes a `close_notify`, once.
    pub(super) fn close(&mut self) {
        if !self.has_failed && !self.has_sent_close {
            // A connection that cannot be written to is closed already.
            let _ = self.write(|traffic, room| traffic.queue_close_notify(room));
        }
        self.has_sent_close = true;
    }

    /// Adds the records of `write` to the outgoing buffer, behind messages of rustls that wait.
    ///
    /// rustls gets the bytes that it was offered before, and no others. It would decrypt others,
    /// and there is no reader for the data.
    fn write(
        &mut self,
        write: impl FnOnce(
            &mut WriteTraffic<'_, ServerConnectionData>,
            &mut [u8],
        ) -> Result<usize, EncryptError>,
    ) -> io::Result<()> {
        loop {
            let bytes = self.incoming.filled_mut().get_mut(..self.offered).unwrap_or_default();
            let outcome = match self.connection.process_tls_records(bytes).state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    let written = write(&mut traffic, self.outgoing.room());
                    let written = written.map(|count| self.outgoing.add(count));
                    return written.map_err(io::Error::other).inspect_err(|_| self.fail());
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(&mut self.outgoing, |room| data.encode(room)).map_err(io::Error::other)
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    Ok(())
                }
                Ok(_) => Err(io::ErrorKind::BrokenPipe.into()),
                Err(error) => Err(io::Error::other(error)),
            };
            outcome.inspect_err(|_| self.fail())?;
        }
    }
}

/// The number of small pieces at the front that fit in one record together.
fn count_neighbours(pieces: &[IoSlice<'_>]) -> usize {
    let mut sum: usize = 0;
    let is_small = |piece: &&IoSlice<'_>| {
        sum = sum.saturating_add(piece.len());
        piece.len() <= SHARED && sum <= MAX_PLAINTEXT
    };
    pieces.iter().take_while(is_small).count()
}

/// Adds a message of rustls to the outgoing buffer, which grows for a flight that is larger.
fn encode(
    outgoing: &mut Buffer,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), Error> {
    let mut size = 0;
    loop {
        match encode(outgoing.room_for(size)) {
            Ok(count) => {
                outgoing.add(count);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(needed)) if needed.required_size > size => {
                size = needed.required_size;
            }
            Err(error) => return Err(Error::General(error.to_string())),
        }
    }
}

#[cfg(test)]
impl Session {
    /// The memory of both buffers, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.incoming.memory() + self.outgoing.memory()
    }
}
