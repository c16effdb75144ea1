//! The order of the lists of one issuer: by CRL number, then by `thisUpdate`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use crate::unix_time::utc;

/// A CRL number: up to 20 octets (RFC 5280, 5.2.3), padded at the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CrlNumber([u8; Self::SIZE]);

impl CrlNumber {
    /// Size in bytes.
    const SIZE: usize = 20;

    /// The number with these content octets of an INTEGER; `None` if it is negative or too large.
    pub(super) fn from_integer(octets: &[u8]) -> Option<Self> {
        if octets.first()? & 0x80 != 0 {
            return None;
        }
        let is_sign = |octet: &u8| *octet == 0;
        let octets = octets.get(octets.iter().take_while(|octet| is_sign(octet)).count()..)?;
        let mut number = [0; Self::SIZE];
        number.get_mut(Self::SIZE.checked_sub(octets.len())?..)?.copy_from_slice(octets);
        Some(Self(number))
    }
}

impl fmt::Display for CrlNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (high, low) = self.0.split_at(Self::SIZE - 8);
        match <[u8; 8]>::try_from(low) {
            Ok(low) if high.iter().all(|octet| *octet == 0) => {
                write!(formatter, "{}", u64::from_be_bytes(low))
            }
            Ok(_) | Err(_) => write!(formatter, "0x{}", String::from(*self)),
        }
    }
}

impl From<CrlNumber> for String {
    /// The number in lower-case hex, without leading zeros.
    fn from(number: CrlNumber) -> Self {
        let text = HEXLOWER.encode(&number.0);
        let digits = text.trim_start_matches('0');
        if digits.is_empty() { "0".to_owned() } else { digits.to_owned() }
    }
}

impl TryFrom<String> for CrlNumber {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digits = format!("{text:0>40}");
        let octets = HEXLOWER.decode(digits.as_bytes()).ok();
        let octets = octets.and_then(|octets| octets.try_into().ok());
        octets.map(Self).ok_or("a CRL number in lower-case hex is expected, of at most 40 digits")
    }
}

/// The version of a list. Every list of the same issuer, key and distribution point has one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrlVersion {
    /// The CRL number, if the list has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<CrlNumber>,
    /// `thisUpdate`, in seconds since the Unix epoch.
    pub this_update: u64,
}

impl CrlVersion {
    /// Whether the list is older than `other`. `thisUpdate` decides between equal numbers, and if a
    /// list has no number.
    #[must_use]
    pub fn is_older_than(&self, other: &Self) -> bool {
        match (self.number, other.number) {
            (Some(number), Some(known)) if number != known => number < known,
            (Some(_) | None, _) => self.this_update < other.this_update,
        }
    }
}

impl fmt::Display for CrlVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(number) = self.number {
            write!(formatter, "number {number}, ")?;
        }
        write!(formatter, "issued {}", utc(self.this_update))
    }
}

/// The newest list of an issuer that was in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrlMark {
    /// Distinguished name of the issuer; empty if it is no CA of the service.
    pub issuer: String,
    /// SHA-256 of issuer and key, in hex; empty in a state file without it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ca: String,
    /// The file with the list, while the list is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The version of the list.
    #[serde(flatten)]
    pub version: CrlVersion,
}

/// The marks of a service, by the SHA-256 of issuer, key and distribution point in hex.
pub type CrlMarks = BTreeMap<String, CrlMark>;

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: Option<&[u8]>, this_update: u64) -> CrlVersion {
        let number = number.map(|octets| CrlNumber::from_integer(octets).unwrap());
        CrlVersion { number, this_update }
    }

    #[test]
    fn the_number_decides_before_the_date() {
        assert!(version(Some(&[9]), 20).is_older_than(&version(Some(&[1, 0]), 10)));
        assert!(!version(Some(&[1, 0]), 10).is_older_than(&version(Some(&[9]), 20)));
        assert!(version(Some(&[9]), 10).is_older_than(&version(Some(&[0, 9]), 11)));
        assert!(!version(Some(&[9]), 10).is_older_than(&version(Some(&[9]), 10)));
        assert!(version(None, 10).is_older_than(&version(Some(&[9]), 11)));
    }

    #[test]
    fn the_mark_of_an_issuer_that_no_file_names_any_more_is_dropped() {
        let mark = |ca: &str| CrlMark {
            issuer: String::new(),
            ca: ca.to_owned(),
            file: None,
            version: version(None, 1),
        };
        let marks = [("unused", mark("")), ("of a CA without a name", mark("1f"))];
        let mut marks: CrlMarks = marks.map(|(id, mark)| (id.to_owned(), mark)).into();
        crate::tls::Crls::default().raise(&mut marks);
        assert_eq!(marks.keys().collect::<Vec<_>>(), ["of a CA without a name"]);
    }

    #[test]
    fn numbers_of_20_octets_survive_the_state_file() {
        let largest = [&[0], [0xfe; 20].as_slice()].concat();
        for octets in [&[0][..], &[1], &[0, 0x80], &largest] {
            let number = CrlNumber::from_integer(octets).unwrap();
            assert_eq!(CrlNumber::try_from(String::from(number)), Ok(number));
        }
        assert_eq!(CrlNumber::from_integer(&[1, 0]).unwrap().to_string(), "256");
        for octets in [&[][..], &[0x80], &[1; 21]] {
            assert_eq!(CrlNumber::from_integer(octets), None);
        }
        assert!(CrlNumber::try_from("1".repeat(41)).is_err());
        assert!(CrlNumber::try_from("é".to_owned()).is_err());
    }
}
