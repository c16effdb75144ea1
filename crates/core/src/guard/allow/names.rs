//! The names in a certificate, borrowed from it.

use rustls::pki_types::CertificateDer;

use super::subject::SubjectText;
use crate::spki::{CertificateFields, Element, OID, SEQUENCE};

/// A name that a rule can name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CertificateName<'a> {
    /// A common name of the subject.
    CommonName(SubjectText<'a>),
    /// A DNS name, as the certificate has it.
    Dns(&'a [u8]),
    /// An email address, as the certificate has it.
    Email(&'a [u8]),
    /// An organizational unit of the subject.
    OrganizationalUnit(SubjectText<'a>),
    /// A URI, as the certificate has it.
    Uri(&'a [u8]),
}

/// Maximum number of attributes and alternative names, 1024. With more, none of them counts. A
/// certificate of 64 KiB has room for 20,000.
const MAX_NAMES: usize = 1024;

const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATIONAL_UNIT: &[u8] = &[0x55, 4, 11];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 29, 17];

const SET: u8 = 0x31;
/// Context-specific tags of a GeneralName (RFC 5280, section 4.2.1.6).
const RFC822_NAME: u8 = 0x81;
const DNS_NAME: u8 = 0x82;
const URI: u8 = 0x86;

/// Calls `visit` with each common name and organizational unit of the subject, and with each DNS
/// name, email address and URI among the alternative names. Returns `None` if subject or extensions
/// are not DER, if there are two extensions of alternative names, or more than [`MAX_NAMES`].
pub(super) fn for_each<'a>(
    certificate: &'a CertificateDer<'_>,
    visit: impl FnMut(CertificateName<'a>),
) -> Option<()> {
    let fields = CertificateFields::new(certificate).ok()?;
    let mut names = NameVisitor { visit, left: MAX_NAMES };
    names.of_subject(fields.subject)?;
    let mut found = None;
    fields.for_each_extension(|extension| {
        let is_second =
            extension.oid == SUBJECT_ALT_NAME && found.replace(extension.value).is_some();
        (!is_second).then_some(())
    })?;
    found.map_or(Some(()), |value| names.of_alternative_names(value))
}

struct NameVisitor<V> {
    visit: V,
    /// The number of names that may follow.
    left: usize,
}

impl<'a, V: FnMut(CertificateName<'a>)> NameVisitor<V> {
    fn count(&mut self) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        Some(())
    }

    fn of_subject(&mut self, subject: &'a [u8]) -> Option<()> {
        let mut sets = Element::only(subject)?.content;
        while !sets.is_empty() {
            let mut attributes = Element::next(&mut sets, SET)?.content;
            while !attributes.is_empty() {
                self.count()?;
                let mut attribute = Element::next(&mut attributes, SEQUENCE)?.content;
                let kind = Element::next(&mut attribute, OID)?.content;
                let value = Element::only(attribute)?;
                let text = SubjectText { tag: value.tag, content: value.content };
                match kind {
                    COMMON_NAME => (self.visit)(CertificateName::CommonName(text)),
                    ORGANIZATIONAL_UNIT => (self.visit)(CertificateName::OrganizationalUnit(text)),
                    _ => {}
                }
            }
        }
        Some(())
    }

    fn of_alternative_names(&mut self, names: &'a [u8]) -> Option<()> {
        let names = Element::only(names)?;
        let mut names = (names.tag == SEQUENCE).then_some(names.content)?;
        while !names.is_empty() {
            self.count()?;
            let name = Element::take(&mut names)?;
            match name.tag {
                DNS_NAME => (self.visit)(CertificateName::Dns(name.content)),
                RFC822_NAME => (self.visit)(CertificateName::Email(name.content)),
                URI => (self.visit)(CertificateName::Uri(name.content)),
                // otherName, x400Address, directoryName, ediPartyName, iPAddress, registeredID
                0xa0 | 0xa3 | 0xa4 | 0xa5 | 0x87 | 0x88 => {}
                _ => return None,
            }
        }
        Some(())
    }
}
