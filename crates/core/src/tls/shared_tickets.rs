//! Session tickets that several processes resume, with keys derived from a secret file.
//!
//! A key is derived from the secret and from a digest of everything that admits the clients of the
//! service. A process with other content derives other keys, so it resumes none of these sessions.
//!
//! The construction follows RFC 5077, section 4: name of the key, nonce, encrypted state, tag.
//! The cipher is AES-256-GCM-SIV (RFC 8452), whose random nonces may repeat: many processes encrypt
//! with one key. Keys are derived with HKDF-SHA256 (RFC 5869).

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use rustls::server::ProducesTickets;

use crate::unix_time;

/// Maximum number of secrets in a file.
const MAX_SECRETS: usize = 8;
/// Minimum length of a secret, in characters: 256 random bits in base64.
const MIN_LENGTH: usize = 43;
/// Lifetime of a ticket, 12 h, as the tickets of one process have.
const LIFETIME: u32 = 12 * 60 * 60;
/// Maximum time by which the clock of another process may be ahead, 60 s.
const MAX_SKEW: u64 = 60;
/// Length of the name of a key, in bytes (RFC 5077, section 4).
const NAME_LENGTH: usize = 16;

/// The secrets of a file, one a line. The first encrypts, all decrypt.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketSecrets(Vec<Box<str>>);

/// The reason why a file has no secrets that can be used. No text of the file is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TicketSecretsError {
    /// The file has no secret, or more than eight.
    #[error("{0} secrets; write one to {MAX_SECRETS}, each on a line of its own")]
    Count(usize),
    /// The line with this number is too short for a secret, or has other characters.
    #[error(
        "line {0} is no secret of at least {MIN_LENGTH} letters, digits, '+', '/' and '='; `openssl rand -base64 48` prints one"
    )]
    Line(usize),
}

impl TicketSecrets {
    /// Parses a file with a secret on each line, in base64 or hex.
    ///
    /// # Errors
    /// Returns an error if a line is no secret, or if there are none or more than eight.
    pub fn parse(content: &[u8]) -> Result<Self, TicketSecretsError> {
        let mut secrets = Vec::new();
        for (line, number) in content.split(|byte| *byte == b'\n').zip(1..) {
            let text = std::str::from_utf8(line).map_err(|_| TicketSecretsError::Line(number))?;
            let text = text.trim_ascii();
            if text.is_empty() {
                continue;
            }
            let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
            if text.len() < MIN_LENGTH || !text.bytes().all(is_digit) {
                return Err(TicketSecretsError::Line(number));
            }
            secrets.push(text.into());
        }
        if !(1..=MAX_SECRETS).contains(&secrets.len()) {
            return Err(TicketSecretsError::Count(secrets.len()));
        }
        Ok(Self(secrets))
    }

    /// The tickets of a service whose clients are admitted by the content with this SHA-256.
    ///
    /// # Errors
    /// Returns an error if the cryptographic library cannot derive a key.
    pub fn tickets(&self, content: &[u8; 32]) -> Result<SharedTickets, rustls::Error> {
        let keys = self.0.iter().map(|secret| TicketKey::derived(secret, content));
        let keys = keys.collect::<Result<_, _>>();
        keys.map(SharedTickets).map_err(|_| rustls::Error::FailedToGetRandomBytes)
    }
}

impl fmt::Debug for TicketSecrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TicketSecrets({})", self.0.len())
    }
}

/// Encrypts and decrypts the tickets of one service, for one content.
pub struct SharedTickets(Vec<TicketKey>);

/// A key with its name, which is in the clear in each ticket.
struct TicketKey {
    name: [u8; NAME_LENGTH],
    key: RandomizedNonceKey,
}

/// The length of an output of HKDF, in bytes.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl TicketKey {
    fn derived(secret: &str, content: &[u8; 32]) -> Result<Self, Unspecified> {
        let extracted =
            Salt::new(HKDF_SHA256, b"keygate session tickets").extract(secret.as_bytes());
        let (mut name, mut key) = ([0; NAME_LENGTH], [0; 32]);
        expand(&extracted, b"name", content, &mut name)?;
        expand(&extracted, b"key", content, &mut key)?;
        Ok(Self { name, key: RandomizedNonceKey::new(&AES_256_GCM_SIV, &key)? })
    }
}

fn expand(
    extracted: &Prk,
    purpose: &[u8],
    content: &[u8; 32],
    out: &mut [u8],
) -> Result<(), Unspecified> {
    extracted.expand(&[purpose, content], Length(out.len()))?.fill(out)
}

impl fmt::Debug for SharedTickets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SharedTickets({})", self.0.len())
    }
}

impl ProducesTickets for SharedTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let TicketKey { name, key } = self.0.first()?;
        let mut state = [&unix_time::now().to_be_bytes(), plain].concat();
        let nonce = key.seal_in_place_append_tag(Aad::from(name), &mut state).ok()?;
        Some([name, nonce.as_ref().as_slice(), &state].concat())
    }

    /// The state of a ticket that a process with the same content has issued within its lifetime.
    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, ticket) = ticket.split_first_chunk::<NAME_LENGTH>()?;
        let (nonce, state) = ticket.split_first_chunk::<NONCE_LEN>()?;
        let TicketKey { name, key } = self.0.iter().find(|key| key.name == *name)?;
        let mut state = state.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let state = key.open_in_place(nonce, Aad::from(name), &mut state).ok()?;
        let (issued, session) = state.split_first_chunk()?;
        let (issued, now) = (u64::from_be_bytes(*issued), unix_time::now());
        let is_current = issued <= now.saturating_add(MAX_SKEW)
            && now.saturating_sub(issued) <= u64::from(LIFETIME);
        is_current.then(|| session.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "Zm9vYmFyYmF6cXV4cXV1eGNvcmdlZ3JhdWx0Z2FycGx5d2FsZG8K";
    const CONTENT: [u8; 32] = [1; 32];
    const SECOND: &str = "d2FsZG9mcmVkcGx1Z2h4eXp6eXRodWRmb29iYXJiYXpxdXhxdXV4Cg==";

    fn tickets(secrets: &str, content: [u8; 32]) -> SharedTickets {
        let secrets = TicketSecrets::parse(secrets.as_bytes()).unwrap();
        secrets.tickets(&content).unwrap()
    }

    #[test]
    fn a_ticket_is_opened_with_the_same_secret_and_content_only() {
        let ticket = tickets(FIRST, CONTENT).encrypt(b"session").unwrap();
        let opened = |secrets: &str, content: [u8; 32]| tickets(secrets, content).decrypt(&ticket);
        assert_eq!(opened(FIRST, CONTENT).unwrap(), b"session");
        // The second secret of a file decrypts, and does not encrypt.
        let rotated = format!("{SECOND}\n{FIRST}\n");
        assert_eq!(opened(&rotated, CONTENT).unwrap(), b"session");
        let next = tickets(&rotated, CONTENT).encrypt(b"session").unwrap();
        assert_eq!(tickets(FIRST, CONTENT).decrypt(&next), None);
        assert!(tickets(SECOND, CONTENT).decrypt(&next).is_some());
        assert_eq!(opened(SECOND, CONTENT), None);
        assert_eq!(opened(FIRST, [2; 32]), None);
    }

    #[test]
    fn a_ticket_of_which_any_bit_differs_or_any_byte_is_missing_is_not_opened() {
        let tickets = tickets(FIRST, CONTENT);
        let ticket = tickets.encrypt(b"session").unwrap();
        assert_ne!(ticket, tickets.encrypt(b"session").unwrap(), "the nonce");
        for position in 0..ticket.len() {
            assert_eq!(tickets.decrypt(&ticket[..position]), None, "{position}");
            for bit in 0..8 {
                let mut forged = ticket.clone();
                forged[position] ^= 1 << bit;
                assert_eq!(tickets.decrypt(&forged), None, "{position}");
            }
        }
    }

    #[test]
    fn a_ticket_expires_and_is_not_issued_in_the_future() {
        let tickets = tickets(FIRST, CONTENT);
        let at = |issued: u64| {
            let TicketKey { name, key } = &tickets.0[0];
            let mut state = [&issued.to_be_bytes()[..], b"session"].concat();
            let nonce = key.seal_in_place_append_tag(Aad::from(name), &mut state).unwrap();
            tickets.decrypt(&[name, nonce.as_ref().as_slice(), &state].concat()).is_some()
        };
        let now = unix_time::now();
        let lifetime = u64::from(LIFETIME);
        assert!(at(now) && at(now - lifetime + 60) && at(now + MAX_SKEW));
        assert!(!at(now - lifetime - 60) && !at(now + MAX_SKEW + 60) && !at(0) && !at(u64::MAX));
    }

    #[test]
    fn a_file_has_one_to_eight_secrets_and_no_text_of_it_is_shown() {
        for (content, error) in [
            (String::new(), TicketSecretsError::Count(0)),
            (format!("{FIRST}\n").repeat(9), TicketSecretsError::Count(9)),
            (format!("{FIRST}\npassword\n"), TicketSecretsError::Line(2)),
            (format!("{FIRST}\n\n{}\n", "!".repeat(50)), TicketSecretsError::Line(3)),
        ] {
            assert_eq!(TicketSecrets::parse(content.as_bytes()), Err(error));
        }
        assert_eq!(TicketSecrets::parse(&[0xff; 80]), Err(TicketSecretsError::Line(1)));
        let secrets = TicketSecrets::parse(format!("\n{FIRST}\r\n").repeat(8).as_bytes()).unwrap();
        assert_eq!(format!("{secrets:?}"), "TicketSecrets(8)");
    }
}
