//! The names in a certificate, borrowed from it.

use rustls::pki_types::CertificateDer;

use super::subject::SubjectText;
use crate::spki::{CertificateFields, Element, SEQUENCE};

/// A name that a rule can name.
pub(super) enum CertificateName<'a> {
    CommonName(SubjectText<'a>),
    Dns(&'a [u8]),
    Email(&'a [u8]),
    OrganizationalUnit(SubjectText<'a>),
    Uri(&'a [u8]),
}

/// Maximum number of attributes and alternative names, 1024. With more, none of them counts. A
/// certificate of 64 KiB has room for 20,000.
const MAX_NAMES: usize = 1024;

const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATIONAL_UNIT: &[u8] = &[0x55, 4, 11];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 29, 17];

const BOOLEAN: u8 = 0x01;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const SET: u8 = 0x31;
/// Context-specific tags of a TBSCertificate (RFC 5280, section 4.1).
const ISSUER_UNIQUE_ID: u8 = 0x81;
const SUBJECT_UNIQUE_ID: u8 = 0x82;
const EXTENSIONS: u8 = 0xa3;
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
    let fields = CertificateFields::of(certificate).ok()?;
    let mut names = NameVisitor { visit, left: MAX_NAMES };
    names.of_subject(fields.subject)?;
    names.of_extensions(fields.rest)
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

    fn of_extensions(&mut self, mut fields: &'a [u8]) -> Option<()> {
        let mut found = None;
        while !fields.is_empty() {
            let field = Element::take(&mut fields)?;
            match field.tag {
                ISSUER_UNIQUE_ID | SUBJECT_UNIQUE_ID => {}
                EXTENSIONS if fields.is_empty() => {
                    let extensions = Element::only(field.content)?;
                    found = alternative_names((extensions.tag == SEQUENCE).then_some(extensions)?)?;
                }
                _ => return None,
            }
        }
        found.map_or(Some(()), |names| self.of_alternative_names(names))
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

/// The content of the extension with the alternative names, if there is one. `None` if there are
/// two, or if an extension is not DER.
#[expect(clippy::option_option, reason = "the outer one is for `?`")]
fn alternative_names<'a>(extensions: Element<'a>) -> Option<Option<&'a [u8]>> {
    let mut found = None;
    let mut extensions = extensions.content;
    while !extensions.is_empty() {
        let mut extension = Element::next(&mut extensions, SEQUENCE)?.content;
        let kind = Element::next(&mut extension, OID)?.content;
        if extension.first() == Some(&BOOLEAN) {
            Element::next(&mut extension, BOOLEAN)?;
        }
        let value = Element::only(extension)?;
        let value = (value.tag == OCTET_STRING).then_some(value.content)?;
        if kind == SUBJECT_ALT_NAME && found.replace(value).is_some() {
            return None;
        }
    }
    Some(found)
}
