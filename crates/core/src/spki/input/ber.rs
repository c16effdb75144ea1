//! Elements of BER (X.690, section 8), in which PKCS #7 and PKCS #12 objects may be written.
//!
//! NSS, macOS and Bouncy Castle write indefinite lengths and constructed strings. The bytes of an
//! element are never changed, so that a certificate keeps its fingerprint.

use std::borrow::Cow;

/// Maximum depth of elements. A PKCS #12 store has 12.
const MAX_DEPTH: u8 = 32;

pub(super) const INTEGER: u8 = 0x02;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OID: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
/// The tag \[0\], constructed.
pub(super) const CONTEXT_0: u8 = 0xa0;

/// The tag \[0\] of a string in one piece.
pub(super) const CONTEXT_0_PRIMITIVE: u8 = 0x80;

/// The bit of the tag of a constructed element.
const CONSTRUCTED: u8 = 0x20;
/// The first length byte of an element that ends with [`END`].
const INDEFINITE: u8 = 0x80;
const END: &[u8] = &[0, 0];

/// An element with a tag of one byte.
#[derive(Debug, Clone, Copy)]
pub(super) struct BerElement<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// Tag, length and content.
    pub(super) whole: &'a [u8],
}

impl<'a> BerElement<'a> {
    /// The element that `input` consists of.
    pub(super) fn only(input: &'a [u8], tag: u8) -> Option<Self> {
        let mut elements = BerElements(input);
        elements.read(tag).filter(|_| elements.0.is_empty())
    }

    /// The first element of `input` and the bytes after it. `depth` is the number of levels that
    /// may still follow.
    fn split(input: &'a [u8], depth: u8) -> Option<(Self, &'a [u8])> {
        let (&tag, after_tag) = input.split_first()?;
        let (&first, after_first) = after_tag.split_first()?;
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (content, rest) = match first {
            INDEFINITE => {
                let is_constructed = tag & CONSTRUCTED != 0;
                is_constructed.then(|| Self::until_end(after_first, depth))??
            }
            0..INDEFINITE => after_first.split_at_checked(usize::from(first))?,
            0x81..=0x84 => {
                let (length, rest) = after_first.split_at_checked(usize::from(first & 0x7f))?;
                let length = length.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
                rest.split_at_checked(usize::try_from(length).ok()?)?
            }
            0x85..=u8::MAX => return None,
        };
        let (whole, _) = input.split_at_checked(input.len().checked_sub(rest.len())?)?;
        Some((Self { tag, content, whole }, rest))
    }

    /// The content of an element with an indefinite length, and the bytes after it.
    fn until_end(input: &'a [u8], depth: u8) -> Option<(&'a [u8], &'a [u8])> {
        let deeper = depth.checked_sub(1)?;
        let mut rest = input;
        while !rest.starts_with(END) {
            rest = Self::split(rest, deeper)?.1;
        }
        let (content, _) = input.split_at_checked(input.len().checked_sub(rest.len())?)?;
        Some((content, rest.strip_prefix(END)?))
    }

    /// The elements in this one.
    pub(super) fn elements(&self) -> BerElements<'a> {
        BerElements(self.content)
    }

    /// Whether this is an OCTET STRING, whole or in pieces.
    pub(super) fn is_octet_string(&self) -> bool {
        self.tag & !CONSTRUCTED == OCTET_STRING
    }

    /// The bytes of an OCTET STRING with any tag. A constructed one has them in pieces.
    pub(super) fn octets(&self) -> Option<Cow<'a, [u8]>> {
        if self.tag & CONSTRUCTED == 0 {
            return Some(self.content.into());
        }
        let mut octets = Vec::new();
        self.append_octets(&mut octets, MAX_DEPTH)?;
        Some(octets.into())
    }

    fn append_octets(&self, octets: &mut Vec<u8>, depth: u8) -> Option<()> {
        let deeper = depth.checked_sub(1)?;
        let mut pieces = self.elements();
        for piece in pieces.by_ref() {
            match piece.tag {
                OCTET_STRING => octets.extend_from_slice(piece.content),
                tag if tag == OCTET_STRING | CONSTRUCTED => piece.append_octets(octets, deeper)?,
                _ => return None,
            }
        }
        pieces.0.is_empty().then_some(())
    }

    /// The value of an INTEGER from 0 to `u32::MAX`.
    pub(super) fn number(&self) -> Option<u32> {
        let is_number = self.tag == INTEGER && self.content.first().is_some_and(|it| *it < 0x80);
        let zeros = self.content.iter().take_while(|byte| **byte == 0).count();
        let value = self.content.get(zeros..).filter(|value| is_number && value.len() <= 4)?;
        Some(value.iter().fold(0, |sum, byte| (sum << 8) | u32::from(*byte)))
    }
}

/// Elements that follow each other. Iteration stops at the end, and before an element that is
/// damaged.
#[derive(Debug, Clone, Copy)]
pub(super) struct BerElements<'a>(pub(super) &'a [u8]);

impl<'a> BerElements<'a> {
    /// Whether no bytes are left.
    pub(super) fn is_finished(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the next element, which must have this tag.
    pub(super) fn read(&mut self, tag: u8) -> Option<BerElement<'a>> {
        self.next().filter(|element| element.tag == tag)
    }

    /// Reads the next element, which must be an OCTET STRING, whole or in pieces.
    pub(super) fn octets(&mut self) -> Option<Cow<'a, [u8]>> {
        self.next().filter(BerElement::is_octet_string)?.octets()
    }

    /// Reads the next element if it has this tag.
    pub(super) fn read_optional(&mut self, tag: u8) -> Option<BerElement<'a>> {
        let mut after = *self;
        let element = after.read(tag)?;
        *self = after;
        Some(element)
    }
}

impl<'a> Iterator for BerElements<'a> {
    type Item = BerElement<'a>;

    fn next(&mut self) -> Option<BerElement<'a>> {
        let (element, rest) = BerElement::split(self.0, MAX_DEPTH)?;
        self.0 = rest;
        Some(element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_definite_in_any_form_or_indefinite() {
        for input in [
            &b"\x30\x03\x02\x01\x05"[..],
            b"\x30\x81\x03\x02\x01\x05",
            b"\x30\x84\x00\x00\x00\x03\x02\x01\x05",
            b"\x30\x80\x02\x01\x05\x00\x00",
        ] {
            let element = BerElement::only(input, SEQUENCE).unwrap();
            assert_eq!((element.content, element.whole), (&b"\x02\x01\x05"[..], input));
            assert_eq!(element.elements().read(INTEGER).unwrap().number(), Some(5));
            for length in 0..input.len() {
                assert!(BerElement::only(&input[..length], SEQUENCE).is_none(), "{length}");
            }
        }
        for input in [
            &b"\x04\x80\x02\x01\x05\x00\x00"[..], // indefinite and primitive
            b"\x3f\x03\x02\x01\x05",              // a tag of several bytes
            b"\x30\x85\x00\x00\x00\x00\x03\x02\x01\x05",
            b"\x30\xff",
            b"",
        ] {
            assert!(BerElements(input).next().is_none(), "{input:?}");
        }
    }

    #[test]
    fn the_octets_of_a_constructed_string_are_those_of_its_pieces() {
        let octets = |input: &[u8]| BerElements(input).next()?.octets().map(Cow::into_owned);
        assert_eq!(octets(b"\x04\x02ab").unwrap(), b"ab");
        assert_eq!(octets(b"\x24\x80\x04\x01a\x24\x03\x04\x01b\x00\x00").unwrap(), b"ab");
        assert_eq!(octets(b"\xa0\x80\x04\x01a\x04\x01b\x00\x00").unwrap(), b"ab");
        assert_eq!(octets(b"\x24\x03\x02\x01a"), None);
        assert_eq!(octets(b"\x24\x02\x04\x01"), None);
    }

    #[test]
    fn elements_have_a_maximum_depth() {
        let nested = |depth: usize| [b"\x30\x80".repeat(depth), b"\x00\x00".repeat(depth)].concat();
        assert!(BerElement::only(&nested(32), SEQUENCE).is_some());
        assert!(BerElement::only(&nested(33), SEQUENCE).is_none());
        assert!(BerElement::only(&nested(100_000), SEQUENCE).is_none());
        let mut string = b"\x04\x01a".to_vec();
        for _ in 0..33 {
            string = [&[0x24, u8::try_from(string.len()).unwrap()], &string[..]].concat();
        }
        assert!(BerElements(&string).next().unwrap().octets().is_none());
    }

    #[test]
    fn numbers_have_at_most_four_bytes() {
        let number = |input: &[u8]| BerElements(input).next()?.number();
        assert_eq!(number(b"\x02\x05\x00\xff\xff\xff\xff"), Some(u32::MAX));
        assert_eq!(number(b"\x02\x01\x00"), Some(0));
        for input in
            [&b"\x02\x01\x80"[..], b"\x02\x00", b"\x02\x05\x01\x00\x00\x00\x00", b"\x04\x01\x01"]
        {
            assert_eq!(number(input), None, "{input:?}");
        }
    }
}
