//! Keys from the passphrase of a store: RFC 7292, appendix B, and PBKDF2 (RFC 8018).

use std::iter::repeat_n;
use std::num::NonZeroU32;

use aws_lc_rs::{digest, hmac, pbkdf2};
use zeroize::Zeroizing;

use super::{BerElement, INTEGER, InputError, OID, SEQUENCE, broken, damaged};

/// Maximum number of iterations for all keys of a store together, some five seconds. OpenSSL uses
/// 2,048 for each key, Java 10,000.
const MAX_ITERATIONS: u32 = 10_000_000;

/// The purpose of a derived key (RFC 7292, appendix B.3).
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyPurpose {
    Encryption = 1,
    InitialVector = 2,
    Mac = 3,
}

/// The passphrase of a store, in its two encodings.
pub(super) struct StorePassphrase {
    utf8: Zeroizing<Vec<u8>>,
    /// Big-endian UTF-16 with a terminator (RFC 7292, appendix B.1).
    utf16: Zeroizing<Vec<u8>>,
}

impl StorePassphrase {
    pub(super) fn new(passphrase: &str) -> Self {
        let units = passphrase.encode_utf16().chain([0]);
        Self {
            utf8: Zeroizing::new(passphrase.as_bytes().to_vec()),
            utf16: Zeroizing::new(units.flat_map(u16::to_be_bytes).collect()),
        }
    }
}

/// Derives keys until the iterations are used up.
pub(super) struct KeyDerivation<'p> {
    passphrase: &'p StorePassphrase,
    iterations: u32,
    /// Whether an empty passphrase has no terminator. Programs differ in this.
    is_bare: bool,
}

/// 1.3.14.3.2.26, and 2.16.840.1.101.3.4.2 without the last number.
const SHA1: &[u8] = b"\x2b\x0e\x03\x02\x1a";
const SHA2: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x02";

impl<'p> KeyDerivation<'p> {
    pub(super) fn new(passphrase: &'p StorePassphrase) -> Self {
        Self { passphrase, iterations: MAX_ITERATIONS, is_bare: false }
    }

    /// Verifies the MacData of a store over its content. A MAC of an unknown algorithm is not
    /// verified, because the decryption of `content` detects a wrong passphrase as well.
    pub(super) fn verify(&mut self, mac: BerElement<'_>, content: &[u8]) -> Result<(), InputError> {
        let mut fields = mac.elements();
        let mut info = fields.read(SEQUENCE).ok_or_else(damaged)?.elements();
        let mut algorithm = info.read(SEQUENCE).ok_or_else(damaged)?.elements();
        let name = algorithm.read(OID).ok_or_else(damaged)?.content;
        let tag = info.octets().ok_or_else(damaged)?;
        let salt = fields.octets().ok_or_else(damaged)?;
        let iterations = match fields.next() {
            None => 1,
            Some(field) => field.number().ok_or_else(damaged)?,
        };
        let hash = match (name, name.strip_prefix(SHA2)) {
            (SHA1, _) => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            (_, Some([1])) => hmac::HMAC_SHA256,
            (_, Some([2])) => hmac::HMAC_SHA384,
            (_, Some([3])) => hmac::HMAC_SHA512,
            (_, Some([4])) => hmac::HMAC_SHA224,
            (_, Some(_) | None) => return Ok(()),
        };
        let has_text = self.passphrase.utf16.len() > 2;
        for is_bare in [false, true] {
            self.is_bare = is_bare;
            let digest = hash.digest_algorithm();
            let key = self.key(digest, KeyPurpose::Mac, &salt, iterations, digest.output_len())?;
            if hmac::verify(&hmac::Key::new(hash, &key), content, &tag).is_ok() {
                return Ok(());
            }
            if has_text {
                break;
            }
        }
        Err(InputError::WrongPassphrase)
    }

    /// Derives `length` bytes as RFC 7292, appendix B.2, says.
    pub(super) fn key(
        &mut self,
        hash: &'static digest::Algorithm,
        purpose: KeyPurpose,
        salt: &[u8],
        iterations: u32,
        length: usize,
    ) -> Result<Zeroizing<Vec<u8>>, InputError> {
        let block = hash.block_len();
        let whole_blocks = |bytes: &[u8]| {
            let length = bytes.len().div_ceil(block) * block;
            bytes.iter().copied().cycle().take(length).collect::<Vec<_>>()
        };
        let passphrase = if self.is_bare { &[] } else { self.passphrase.utf16.as_slice() };
        let mut input = Zeroizing::new([whole_blocks(salt), whole_blocks(passphrase)].concat());
        let prefix: Vec<u8> = repeat_n(purpose as u8, block).collect();
        self.spend(iterations, length.div_ceil(hash.output_len()))?;
        let mut key = Zeroizing::new(Vec::new());
        while key.len() < length {
            let mut context = digest::Context::new(hash);
            context.update(&prefix);
            context.update(&input);
            let mut output = context.finish();
            for _ in 1..iterations {
                output = digest::digest(hash, output.as_ref());
            }
            key.extend_from_slice(output.as_ref());
            for part in input.chunks_mut(block) {
                add_one_and(part, output.as_ref());
            }
        }
        key.truncate(length);
        Ok(key)
    }

    /// Derives `length` bytes by PBKDF2, whose parameters are `parameters`.
    pub(super) fn pbkdf2(
        &mut self,
        parameters: BerElement<'_>,
        length: usize,
    ) -> Result<Zeroizing<Vec<u8>>, InputError> {
        /// 1.2.840.113549.2, without the last number.
        const HMAC: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x02";
        let mut fields = parameters.elements();
        let salt = fields.octets().ok_or_else(damaged)?;
        let iterations = fields.next().and_then(|field| field.number()).ok_or_else(damaged)?;
        if let Some(named) = fields.read_optional(INTEGER)
            && named.number().map(usize::try_from) != Some(Ok(length))
        {
            return Err(damaged());
        }
        let hash = match fields.read_optional(SEQUENCE) {
            None => pbkdf2::PBKDF2_HMAC_SHA1, // the default
            Some(algorithm) => {
                let name = algorithm.elements().read(OID).ok_or_else(damaged)?.content;
                match name.strip_prefix(HMAC) {
                    Some([7]) => pbkdf2::PBKDF2_HMAC_SHA1,
                    Some([9]) => pbkdf2::PBKDF2_HMAC_SHA256,
                    Some([10]) => pbkdf2::PBKDF2_HMAC_SHA384,
                    Some([11]) => pbkdf2::PBKDF2_HMAC_SHA512,
                    Some(_) | None => return Err(unsupported()),
                }
            }
        };
        self.spend(iterations, length.div_ceil(digest::SHA1_OUTPUT_LEN))?;
        let iterations = NonZeroU32::new(iterations).ok_or_else(damaged)?;
        let mut key = Zeroizing::new(vec![0; length]);
        pbkdf2::derive(hash, iterations, &salt, &self.passphrase.utf8, &mut key);
        Ok(key)
    }

    /// Takes the iterations of `blocks` blocks of a key.
    fn spend(&mut self, iterations: u32, blocks: usize) -> Result<(), InputError> {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let left = self.iterations.checked_sub(iterations.saturating_mul(blocks).max(1));
        self.iterations = left.ok_or_else(|| {
            broken(&format!("its key derivation has more than {MAX_ITERATIONS} iterations"))
        })?;
        Ok(())
    }
}

/// Adds `bytes`, repeated to the length of `number`, and one to a big-endian number.
fn add_one_and(number: &mut [u8], bytes: &[u8]) {
    let repeated: Vec<u8> = bytes.iter().copied().cycle().take(number.len()).collect();
    let mut carry = 1;
    for (digit, added) in number.iter_mut().zip(repeated).rev() {
        let sum = u16::from(*digit) + u16::from(added) + carry;
        let [high, low] = sum.to_be_bytes();
        (*digit, carry) = (low, u16::from(high));
    }
}

pub(super) fn unsupported() -> InputError {
    InputError::Unsupported {
        what: "the encryption of the PKCS #12 store".to_owned(),
        hint: ": give its certificates instead",
    }
}
