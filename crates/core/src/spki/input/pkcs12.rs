//! PKCS #12 stores (`.p12`, `.pfx`): the keys of their certificates, and of private keys without a
//! certificate.
//!
//! A store is decrypted in bounded time. Sources: RFC 7292, RFC 8018 (PBES2).

mod derivation;
mod encryption;

use std::fmt;

use zeroize::Zeroizing;

use self::derivation::{KeyDerivation, StorePassphrase};
use super::ber::{
    BerElement, BerElements, CONTEXT_0, CONTEXT_0_PRIMITIVE, INTEGER, OCTET_STRING, OID, SEQUENCE,
};
use super::{Damage, InputError, KeyResults, der};

/// 1.2.840.113549.1.7.1 and 1.2.840.113549.1.7.6.
const DATA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01";
const ENCRYPTED_DATA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x07\x06";
/// 1.2.840.113549.1.12.10.1, without the last number.
const BAG: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x0c\x0a\x01";
const KEY_BAG: u8 = 1;
const SHROUDED_KEY_BAG: u8 = 2;
const CERTIFICATE_BAG: u8 = 3;
const NESTED_BAGS: u8 = 6;
/// 1.2.840.113549.1.9.22.1.
const X509_CERTIFICATE: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x16\x01";
/// Maximum depth of bags in bags.
const MAX_DEPTH: u8 = 4;

const WHAT: &str = "a PKCS #12 store";

/// A PKCS #12 store that can be read with its passphrase.
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptedStore(Vec<u8>);

impl fmt::Debug for EncryptedStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "EncryptedStore({} bytes)", self.0.len())
    }
}

impl EncryptedStore {
    /// The SubjectPublicKeyInfos (DER) in the store, or the reasons why there are none. Each key
    /// occurs once.
    ///
    /// Takes time: the store chooses the number of iterations of the key derivation, ten million at
    /// most.
    #[must_use]
    pub fn keys(&self, passphrase: &str) -> KeyResults {
        let passphrase = StorePassphrase::new(passphrase);
        let keys = StoreReader::new(Some(&passphrase)).read(&self.0);
        keys.unwrap_or_else(|error| vec![Err(error)])
    }
}

/// The keys in a store, or an [`InputError::Passphrase`].
pub(super) fn keys_in(object: &[u8]) -> KeyResults {
    StoreReader::new(None).read(object).unwrap_or_else(|error| vec![Err(error)])
}

struct StoreReader<'p> {
    derivation: Option<KeyDerivation<'p>>,
    certificates: KeyResults,
    private_keys: KeyResults,
    /// The errors of parts that cannot be read.
    problems: KeyResults,
    /// Encrypted parts that were passed over, because there is no passphrase: any, and other ones
    /// than private keys.
    has_skipped: bool,
    has_skipped_bags: bool,
}

impl<'p> StoreReader<'p> {
    fn new(passphrase: Option<&'p StorePassphrase>) -> Self {
        Self {
            derivation: passphrase.map(KeyDerivation::new),
            certificates: KeyResults::new(),
            private_keys: KeyResults::new(),
            problems: KeyResults::new(),
            has_skipped: false,
            has_skipped_bags: false,
        }
    }

    fn read(mut self, object: &[u8]) -> Result<KeyResults, InputError> {
        let mut store = BerElement::only(object, SEQUENCE).ok_or_else(damaged)?.elements();
        store.read(INTEGER).ok_or_else(damaged)?; // version
        let mut safe = store.read(SEQUENCE).ok_or_else(damaged)?.elements();
        if safe.read(OID).ok_or_else(damaged)?.content != DATA {
            return Err(InputError::Unsupported {
                what: "a PKCS #12 store with a signature".to_owned(),
                hint: ": give its certificates instead",
            });
        }
        let content = explicit(&mut safe, OCTET_STRING)?.octets().ok_or_else(damaged)?;
        if let (Some(derivation), Some(mac)) = (&mut self.derivation, store.next()) {
            derivation.verify(mac, &content)?;
        }
        let mut parts = BerElement::only(&content, SEQUENCE).ok_or_else(damaged)?.elements();
        while let Some(part) = parts.read(SEQUENCE) {
            // The keys of the other parts count all the same.
            if let Err(error) = self.read_part(part) {
                self.problems.push(Err(error));
            }
        }
        if !parts.is_finished() {
            return Err(damaged());
        }
        if self.has_skipped_bags || self.has_skipped && self.certificates.is_empty() {
            return Err(InputError::Passphrase(EncryptedStore(object.to_vec())));
        }
        self.finish()
    }

    /// The keys of the certificates, then the keys of private keys without a certificate, then the
    /// errors.
    fn finish(self) -> Result<KeyResults, InputError> {
        let mut keys = KeyResults::new();
        for key in self.certificates.into_iter().chain(self.private_keys).chain(self.problems) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if keys.is_empty() { Err(InputError::NoCertificate { what: WHAT }) } else { Ok(keys) }
    }

    /// Reads a ContentInfo of bags.
    fn read_part(&mut self, part: BerElement<'_>) -> Result<(), InputError> {
        let mut fields = part.elements();
        match fields.read(OID).ok_or_else(damaged)?.content {
            DATA => {
                let bags = explicit(&mut fields, OCTET_STRING)?.octets().ok_or_else(damaged)?;
                self.read_bags(&bags, MAX_DEPTH)
            }
            ENCRYPTED_DATA => {
                let Some(derivation) = &mut self.derivation else {
                    (self.has_skipped, self.has_skipped_bags) = (true, true);
                    return Ok(());
                };
                let mut data = explicit(&mut fields, SEQUENCE)?.elements();
                data.read(INTEGER).ok_or_else(damaged)?; // version
                let mut info = data.read(SEQUENCE).ok_or_else(damaged)?.elements();
                info.read(OID).ok_or_else(damaged)?; // type of the content
                let algorithm = info.read(SEQUENCE).ok_or_else(damaged)?;
                let content = info
                    .next()
                    .filter(|it| [CONTEXT_0, CONTEXT_0_PRIMITIVE].contains(&it.tag))
                    .and_then(|content| content.octets())
                    .ok_or_else(damaged)?;
                let bags = decrypt(algorithm, &content, derivation)?;
                self.read_bags(&bags, MAX_DEPTH)
            }
            _ => Err(InputError::Unsupported {
                what: "a part of a PKCS #12 store that is encrypted with a public key".to_owned(),
                hint: ": give its certificates instead",
            }),
        }
    }

    fn read_bags(&mut self, bags: &[u8], depth: u8) -> Result<(), InputError> {
        let depth = depth.checked_sub(1).ok_or_else(damaged)?;
        let mut bags = BerElement::only(bags, SEQUENCE).ok_or_else(damaged)?.elements();
        while let Some(bag) = bags.read(SEQUENCE) {
            let mut fields = bag.elements();
            let kind = fields.read(OID).ok_or_else(damaged)?.content;
            match kind.strip_prefix(BAG) {
                Some([CERTIFICATE_BAG]) => {
                    let mut fields = explicit(&mut fields, SEQUENCE)?.elements();
                    let kind = fields.read(OID).ok_or_else(damaged)?;
                    if kind.content == X509_CERTIFICATE {
                        let string = explicit(&mut fields, OCTET_STRING)?;
                        let certificate = string.octets().ok_or_else(damaged)?;
                        self.certificates.push(der::certificate(&certificate));
                    }
                }
                Some([KEY_BAG]) => {
                    let key = explicit(&mut fields, SEQUENCE)?;
                    self.private_keys.push(der::private_key(key.whole));
                }
                Some([SHROUDED_KEY_BAG]) => {
                    let mut fields = explicit(&mut fields, SEQUENCE)?.elements();
                    let algorithm = fields.read(SEQUENCE).ok_or_else(damaged)?;
                    let content = fields.octets().ok_or_else(damaged)?;
                    match &mut self.derivation {
                        Some(derivation) => {
                            let key = decrypt(algorithm, &content, derivation);
                            self.private_keys.push(key.and_then(|key| der::private_key(&key)));
                        }
                        None => self.has_skipped = true,
                    }
                }
                Some([NESTED_BAGS]) => {
                    self.read_bags(explicit(&mut fields, SEQUENCE)?.whole, depth)?;
                }
                Some(_) | None => {} // revocation lists and secrets
            }
        }
        if bags.is_finished() { Ok(()) } else { Err(damaged()) }
    }
}

/// The element with this tag, an OCTET STRING in either form, in the next one, which must be \[0\].
fn explicit<'a>(fields: &mut BerElements<'a>, tag: u8) -> Result<BerElement<'a>, InputError> {
    let mut content = fields.read(CONTEXT_0).ok_or_else(damaged)?.elements();
    let is_wanted =
        |it: &BerElement<'_>| it.tag == tag || tag == OCTET_STRING && it.is_octet_string();
    content.next().filter(is_wanted).filter(|_| content.is_finished()).ok_or_else(damaged)
}

/// Decrypted bytes, which may have a private key.
type Decrypted = Zeroizing<Vec<u8>>;

/// Decrypts a part of the store, which must be a SEQUENCE. A store without a MAC may have valid
/// padding after a decryption with a wrong passphrase: one in 256 has it.
fn decrypt(
    algorithm: BerElement<'_>,
    content: &[u8],
    derivation: &mut KeyDerivation<'_>,
) -> Result<Decrypted, InputError> {
    let decrypted = encryption::decrypt(algorithm, content, derivation)?;
    match BerElement::only(&decrypted, SEQUENCE) {
        Some(_) => Ok(decrypted),
        None => Err(InputError::WrongPassphrase),
    }
}

fn damaged() -> InputError {
    broken("its structure is damaged")
}

fn broken(reason: &str) -> InputError {
    InputError::Broken { what: WHAT, source: Damage::Text(reason.to_owned()) }
}
