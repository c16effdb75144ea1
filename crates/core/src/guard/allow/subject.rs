//! Rules for attributes of the subject, and their string types (RFC 5280, section 4.1.2.4).

use std::collections::HashSet;

use super::AllowRuleError;

/// Maximum length of an attribute that can be named, in bytes of UTF-8.
const MAX_LENGTH: usize = 1024;

const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const BMP_STRING: u8 = 0x1e;

/// The value of an attribute: its tag and content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubjectText<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
}

/// Values of one attribute, which are compared character for character.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SubjectRules(HashSet<Box<str>>);

impl SubjectRules {
    pub(super) fn add(&mut self, rule: &str) -> Result<(), AllowRuleError> {
        if !is_comparable(rule) {
            return Err(AllowRuleError::Subject);
        }
        self.0.insert(rule.into());
        Ok(())
    }

    /// Whether a rule names this value.
    pub(super) fn contains(&self, text: SubjectText<'_>) -> bool {
        let mut buffer = [0; MAX_LENGTH];
        !self.0.is_empty()
            && text
                .decode(&mut buffer)
                .is_some_and(|text| is_comparable(text) && self.0.contains(text))
    }
}

impl<'a> SubjectText<'a> {
    /// The text. `None` for a string that its type does not permit, and for types whose characters
    /// are ambiguous (TeletexString) or that no CA uses (UniversalString).
    fn decode(self, buffer: &'a mut [u8]) -> Option<&'a str> {
        match self.tag {
            UTF8_STRING => str::from_utf8(self.content).ok(),
            PRINTABLE_STRING | IA5_STRING => {
                str::from_utf8(self.content).ok().filter(|text| text.is_ascii())
            }
            BMP_STRING => from_bmp(self.content, buffer),
            _ => None,
        }
    }
}

/// Decodes big-endian UCS-2, which has no surrogates.
fn from_bmp<'a>(content: &[u8], buffer: &'a mut [u8]) -> Option<&'a str> {
    let (units, []) = content.as_chunks() else { return None };
    let mut length: usize = 0;
    for unit in units {
        let letter = char::from_u32(u16::from_be_bytes(*unit).into())?;
        let end = length.checked_add(letter.len_utf8())?;
        letter.encode_utf8(buffer.get_mut(length..end)?);
        length = end;
    }
    str::from_utf8(buffer.get(..length)?).ok()
}

/// Whether a text can be compared. Control characters, NUL among them, end a string in some
/// programs and are invisible in logs.
fn is_comparable(text: &str) -> bool {
    (1..=MAX_LENGTH).contains(&text.len()) && !text.contains(char::is_control)
}
