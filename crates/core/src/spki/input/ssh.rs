//! SSH keys: lines of `.pub` and `authorized_keys` files, certificates, and private keys.
//!
//! Sources: RFC 4253, section 6.6 (RSA), RFC 5656, section 3.1 (elliptic curves), RFC 8709,
//! section 4 (Ed25519), OpenSSH's PROTOCOL.key (private keys), PROTOCOL.u2f (security keys) and
//! PROTOCOL.certkeys (certificates).

use data_encoding::BASE64;

use super::{Damage, InputError, shown};
use crate::spki::related::{ec_spki, ed25519_spki, rsa_spki};

/// The prefixes of all key type names.
const TYPES: [&[u8]; 4] = [b"ssh-", b"ecdsa-sha2-", b"sk-ssh-", b"sk-ecdsa-"];

/// The key in a line of optional options, a key type, base64 and a comment.
pub(super) fn key_in_line(line: &[u8]) -> Result<Vec<u8>, InputError> {
    let mut words = Words(line);
    let kind = words.find(|word| TYPES.iter().any(|start| word.starts_with(start)));
    let (Some(kind), Some(base64)) = (kind, words.next()) else { return Err(InputError::Line) };
    let blob = BASE64.decode(base64).map_err(|_| damaged("its base64 is damaged"))?;
    let (named, spki) = public_key(&blob)?;
    if named != kind {
        let (kind, named) = (shown(kind), shown(&named));
        return Err(damaged(&format!("the line names the type {kind}, the key {named}")));
    }
    Ok(spki)
}

/// Splits at whitespace outside double quotes, which options of `authorized_keys` use.
struct Words<'a>(&'a [u8]);

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.0.trim_ascii_start();
        let (mut is_quoted, mut is_escaped) = (false, false);
        let end = rest.iter().position(|byte| {
            let is_end = byte.is_ascii_whitespace() && !is_quoted;
            is_quoted ^= *byte == b'"' && !is_escaped;
            is_escaped = *byte == b'\\' && !is_escaped;
            is_end
        });
        let (word, rest) = rest.split_at_checked(end.unwrap_or(rest.len()))?;
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }
}

/// The public key in the content of an OPENSSH PRIVATE KEY section. It precedes the private key and
/// is never encrypted.
pub(super) fn private_key(content: &[u8]) -> Result<Vec<u8>, InputError> {
    let mut fields = SshFields(content.strip_prefix(b"openssh-key-v1\0").ok_or_else(cut)?);
    fields.string()?; // cipher
    fields.string()?; // key derivation function
    fields.string()?; // options of the key derivation
    // The format has room for several keys, which OpenSSH rejects. Only the first would be found.
    if fields.number()? != 1 {
        return Err(damaged("it has several keys, or none"));
    }
    Ok(public_key(fields.string()?)?.1)
}

/// The public key in the content of an SSH2 PUBLIC KEY section (RFC 4716).
pub(super) fn rfc4716_key(content: &[u8]) -> Result<Vec<u8>, InputError> {
    Ok(public_key(content)?.1)
}

/// The end of the type names of certificates.
const CERTIFICATE: &[u8] = b"-cert-v01@openssh.com";

/// The type name in the blob of a key or certificate, and the SubjectPublicKeyInfo of the key. The
/// key of a certificate is its subject's. The CA's key is not reported, as with X.509.
fn public_key(blob: &[u8]) -> Result<(Vec<u8>, Vec<u8>), InputError> {
    let mut fields = SshFields(blob);
    let kind = fields.string()?;
    let certified = kind.strip_suffix(CERTIFICATE);
    if certified.is_some() {
        fields.string()?; // nonce
    }
    let plain = certified.or_else(|| kind.strip_suffix(b"@openssh.com")).unwrap_or(kind);
    let spki = match plain {
        b"ssh-rsa" => {
            let exponent = fields.integer()?;
            let modulus = fields.integer()?;
            rsa_spki(&modulus, &exponent).ok_or_else(|| damaged("not an RSA key"))?
        }
        b"ssh-ed25519" | b"sk-ssh-ed25519" => {
            let point = fields.string()?;
            if point.len() != 32 {
                return Err(damaged("an Ed25519 key has 32 bytes"));
            }
            ed25519_spki(point)
        }
        b"ecdsa-sha2-nistp256"
        | b"ecdsa-sha2-nistp384"
        | b"ecdsa-sha2-nistp521"
        | b"sk-ecdsa-sha2-nistp256" => {
            let curve = match fields.string()? {
                b"nistp256" => "p256",
                b"nistp384" => "p384",
                b"nistp521" => "p521",
                other => return Err(damaged(&format!("a curve {}", shown(other)))),
            };
            ec_spki(curve, fields.string()?)
                .ok_or_else(|| damaged("not an uncompressed point of the curve"))?
        }
        _ => {
            let what = format!("an OpenSSH key of the type {}", shown(kind));
            return Err(InputError::Unsupported { what, hint: "" });
        }
    };
    if plain.starts_with(b"sk-") {
        fields.string()?; // application
    }
    if certified.is_some() {
        fields.skip_certificate_fields()?;
    }
    Ok((kind.to_vec(), spki))
}

/// Decodes the data types of RFC 4251, section 5.
struct SshFields<'a>(&'a [u8]);

impl<'a> SshFields<'a> {
    fn number(&mut self) -> Result<usize, InputError> {
        let (number, rest) = self.0.split_first_chunk::<4>().ok_or_else(cut)?;
        self.0 = rest;
        usize::try_from(u32::from_be_bytes(*number)).map_err(|_| cut())
    }

    fn string(&mut self) -> Result<&'a [u8], InputError> {
        let length = self.number()?;
        let (string, rest) = self.0.split_at_checked(length).ok_or_else(cut)?;
        self.0 = rest;
        Ok(string)
    }

    /// Skips the fields of a certificate after its key, up to the end.
    fn skip_certificate_fields(&mut self) -> Result<(), InputError> {
        for _ in 0..3 {
            self.number()?; // the halves of the serial number, and the type
        }
        self.string()?; // key identifier
        self.string()?; // principals
        for _ in 0..4 {
            self.number()?; // the halves of both ends of the validity
        }
        for _ in 0..5 {
            self.string()?; // critical options, extensions, reserved, key of the CA, signature
        }
        if self.0.is_empty() { Ok(()) } else { Err(damaged("bytes after the certificate")) }
    }

    /// Decodes an `mpint` into a DER INTEGER, which has no leading zeros.
    fn integer(&mut self) -> Result<Vec<u8>, InputError> {
        let content = self.string()?;
        let zeros = content.iter().take_while(|byte| **byte == 0).count();
        let value = content.get(zeros..).unwrap_or_default();
        let is_negative = zeros == 0 && content.first().is_some_and(|byte| *byte >= 0x80);
        if value.is_empty() || is_negative {
            return Err(damaged("an integer that is not positive"));
        }
        Ok(crate::spki::related::der_integer(value))
    }
}

fn cut() -> InputError {
    damaged("it ends too early")
}

fn damaged(reason: &str) -> InputError {
    InputError::Broken { what: "an OpenSSH key", source: Damage::Text(reason.to_owned()) }
}
