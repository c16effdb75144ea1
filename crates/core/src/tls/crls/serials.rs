//! The serial numbers of a revocation list, in one sorted array.

use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Reader, SliceReader, Tag, Tagged};

use super::error::CrlError;
use super::extension::{self, Extension};

/// A serial number: the value of the INTEGER, sign-extended to a fixed size.
///
/// RFC 5280, 4.1.2.2, allows 20 octets and requires positive numbers. One octet more has the sign,
/// because CAs issue negative numbers nevertheless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Serial([u8; Self::SIZE]);

impl Serial {
    /// Size in bytes.
    const SIZE: usize = 21;

    /// The number with these content octets; `None` if they are too many, or none.
    fn from_integer(octets: &[u8]) -> Option<Self> {
        let is_negative = octets.first()? & 0x80 != 0;
        let mut serial = [if is_negative { 0xff } else { 0 }; Self::SIZE];
        let start = Self::SIZE.checked_sub(octets.len())?;
        serial.get_mut(start..)?.copy_from_slice(octets);
        Some(Self(serial))
    }
}

/// A set of serial numbers: 21 bytes for each, found by binary search.
#[derive(Debug)]
pub(super) struct Serials(Box<[Serial]>);

impl Serials {
    /// The serial numbers in the content of `revokedCertificates` (RFC 5280, 5.1.2.6) for whose
    /// `reasonCode`, if they have one, `counts` returns true.
    ///
    /// # Errors
    /// Returns an error if an entry is not valid DER, has a serial number of more than 20 octets,
    /// or has a critical extension that changes its meaning.
    pub(super) fn parse(
        entries: &[u8],
        counts: impl Fn(Option<u8>) -> bool,
    ) -> Result<Self, CrlError> {
        let mut reader = SliceReader::new(entries)?;
        let mut serials = Vec::new();
        while !reader.is_finished() {
            let (serial, reason) = reader.decode::<AnyRef<'_>>()?.sequence(entry)?;
            serials.extend(counts(reason).then_some(serial));
        }
        serials.sort_unstable();
        serials.dedup();
        Ok(Self(serials.into_boxed_slice()))
    }

    /// Whether the number with these content octets of an INTEGER is in the set.
    pub(super) fn contains(&self, octets: &[u8]) -> bool {
        Serial::from_integer(octets).is_some_and(|serial| self.0.binary_search(&serial).is_ok())
    }

    /// Number of different serial numbers.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The serial number of one entry, and its `reasonCode`. An entry with the reason `removeFromCRL`,
/// which has no meaning in a complete list, counts as revoked.
fn entry(reader: &mut SliceReader<'_>) -> Result<(Serial, Option<u8>), CrlError> {
    let number = extension::content(reader, Tag::Integer)?;
    let date = reader.decode::<AnyRef<'_>>()?;
    if !matches!(date.tag(), Tag::UtcTime | Tag::GeneralizedTime) {
        return Err(date.tag().unexpected_error(Some(Tag::UtcTime)).to_error().into());
    }
    let mut reason = None;
    if !reader.is_finished() {
        reason = reader.decode::<AnyRef<'_>>()?.sequence(entry_extensions)?;
    }
    Ok((Serial::from_integer(number).ok_or(CrlError::LongSerial)?, reason))
}

/// Checks the extensions of an entry, and returns its `reasonCode` (RFC 5280, 5.3.1).
fn entry_extensions(reader: &mut SliceReader<'_>) -> Result<Option<u8>, CrlError> {
    const ENUMERATED: u8 = 0x0a;
    let mut reason = None;
    while !reader.is_finished() {
        let Extension { oid, is_critical, value } = Extension::decode(reader)?;
        match (oid, value) {
            (extension::REASON_CODE, [ENUMERATED, 1, code]) => reason = Some(*code),
            (extension::REASON_CODE | extension::INVALIDITY_DATE, _) => {}
            (extension::CERTIFICATE_ISSUER, _) => return Err(CrlError::Indirect),
            (oid, _) if is_critical => return Err(CrlError::CriticalExtension { oid }),
            _ => {}
        }
    }
    Ok(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(serials: &[&[u8]]) -> Result<Serials, CrlError> {
        let date = b"\x17\x0d260101000000Z";
        let entry = |serial: &&[u8]| {
            let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
            let content = [&[2, length(serial)], *serial, date].concat();
            [&[0x30, length(&content)], content.as_slice()].concat()
        };
        Serials::parse(&serials.iter().flat_map(entry).collect::<Vec<_>>(), |_| true)
    }

    #[test]
    fn numbers_are_found_by_value_whatever_their_order_and_sign() {
        let largest = [&[0], [0xff; 20].as_slice()].concat();
        let serials = parsed(&[&[9], &largest, &[0x80], &[0, 0x80], &[9]]).unwrap();
        assert_eq!(serials.len(), 4);
        for found in [&[9][..], &largest, &[0x80], &[0xff, 0x80], &[0, 0x80], &[0, 9]] {
            assert!(serials.contains(found), "{found:?}");
        }
        for missing in [&[8][..], &[0xff; 20], &[], &[0; 22], &[1, 9], &[0x7f]] {
            assert!(!serials.contains(missing), "{missing:?}");
        }
    }

    #[test]
    fn a_number_of_more_than_20_octets_is_an_error() {
        assert!(matches!(parsed(&[&[1; 22]]), Err(CrlError::LongSerial)));
        assert!(matches!(parsed(&[&[]]), Err(CrlError::LongSerial)));
    }
}
