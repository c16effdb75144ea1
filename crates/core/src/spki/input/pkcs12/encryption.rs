//! Decryption of the parts of a store: AES by PBES2 (RFC 8018, section 6.2), and triple DES and RC2
//! by the algorithms of RFC 7292, appendix C, which OpenSSL before 3.0, macOS and Windows write.

use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey,
};
use aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY;
use aws_lc_rs::iv::FixedLength;
use cbc::Decryptor;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockModeDecrypt, InnerIvInit, KeyIvInit};
use des::TdesEde3;
use rc2::Rc2;
use zeroize::Zeroizing;

use super::derivation::{KeyDerivation, KeyPurpose, unsupported};
use super::{BerElement, BerElements, Decrypted, InputError, OID, SEQUENCE, damaged};

/// 1.2.840.113549.1.5.13 and 1.2.840.113549.1.5.12.
const PBES2: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x05\x0d";
const PBKDF2: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x05\x0c";
/// 1.2.840.113549.1.12.1 and 2.16.840.1.101.3.4.1, without the last numbers.
const PKCS12: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x0c\x01";
const AES: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x01";
/// 1.2.840.113549.3.7.
const TRIPLE_DES: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x03\x07";

/// Size of a block of triple DES and RC2, in bytes.
const BLOCK: usize = 8;

/// Decrypts `content` with this AlgorithmIdentifier.
pub(super) fn decrypt(
    algorithm: BerElement<'_>,
    content: &[u8],
    derivation: &mut KeyDerivation<'_>,
) -> Result<Decrypted, InputError> {
    let mut fields = algorithm.elements();
    let name = fields.read(OID).ok_or_else(damaged)?.content;
    let mut parameters = fields.read(SEQUENCE).ok_or_else(damaged)?.elements();
    if name == PBES2 {
        return decrypt_pbes2(&mut parameters, content, derivation);
    }
    let Some([scheme]) = name.strip_prefix(PKCS12) else { return Err(unsupported()) };
    let salt = parameters.octets().ok_or_else(damaged)?;
    let iterations = parameters.next().and_then(|it| it.number()).ok_or_else(damaged)?;
    let mut derive = |purpose, length| {
        derivation.key(&SHA1_FOR_LEGACY_USE_ONLY, purpose, &salt, iterations, length)
    };
    let key_length = match scheme {
        3 => 24,
        4 | 5 => 16,
        6 => 5,
        _ => return Err(unsupported()),
    };
    let mut key = derive(KeyPurpose::Encryption, key_length)?;
    let iv = derive(KeyPurpose::InitialVector, BLOCK)?;
    if *scheme == 4 {
        key.extend_from_within(..BLOCK); // two keys, of which the first is the third as well
    }
    match scheme {
        3 | 4 => triple_des(&key, &iv, content),
        _ => {
            let cipher = Rc2::new_with_eff_key_len(&key, key.len() * 8);
            let cbc = Decryptor::inner_iv_slice_init(cipher, &iv).map_err(|_| damaged())?;
            decrypted(cbc.decrypt_padded_vec::<Pkcs7>(content))
        }
    }
}

fn decrypt_pbes2(
    parameters: &mut BerElements<'_>,
    content: &[u8],
    derivation: &mut KeyDerivation<'_>,
) -> Result<Decrypted, InputError> {
    let mut function = parameters.read(SEQUENCE).ok_or_else(damaged)?.elements();
    if function.read(OID).ok_or_else(damaged)?.content != PBKDF2 {
        return Err(unsupported());
    }
    let function = function.read(SEQUENCE).ok_or_else(damaged)?;
    let mut scheme = parameters.read(SEQUENCE).ok_or_else(damaged)?.elements();
    let name = scheme.read(OID).ok_or_else(damaged)?.content;
    let iv = scheme.octets().ok_or_else(damaged)?;
    if name == TRIPLE_DES {
        return triple_des(&derivation.pbkdf2(function, 24)?, &iv, content);
    }
    let (aes, length) = match name.strip_prefix(AES) {
        Some([2]) => (&AES_128, 16),
        Some([22]) => (&AES_192, 24),
        Some([42]) => (&AES_256, 32),
        Some(_) | None => return Err(unsupported()),
    };
    let key = derivation.pbkdf2(function, length)?;
    let iv: [u8; 16] = (*iv).try_into().map_err(|_| damaged())?;
    let cipher = UnboundCipherKey::new(aes, &key);
    let cipher = cipher.and_then(PaddedBlockDecryptingKey::cbc_pkcs7).map_err(|_| damaged())?;
    let mut content = Zeroizing::new(content.to_vec());
    let context = DecryptionContext::Iv128(FixedLength::from(iv));
    let length = cipher.decrypt(&mut content, context).map(|plain| plain.len());
    content.truncate(length.map_err(|_| InputError::WrongPassphrase)?);
    Ok(content)
}

fn triple_des(key: &[u8], iv: &[u8], content: &[u8]) -> Result<Decrypted, InputError> {
    let cbc = Decryptor::<TdesEde3>::new_from_slices(key, iv).map_err(|_| damaged())?;
    decrypted(cbc.decrypt_padded_vec::<Pkcs7>(content))
}

/// The content. Wrong padding counts as a wrong passphrase, which leaves random bytes at the end.
fn decrypted<E>(content: Result<Vec<u8>, E>) -> Result<Decrypted, InputError> {
    content.map(Zeroizing::new).map_err(|_| InputError::WrongPassphrase)
}
