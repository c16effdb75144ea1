//! Scans lines of text: single keys, or PEM sections with explanatory text between them.

use data_encoding::{BASE64_NOPAD, HEXLOWER_PERMISSIVE};

use super::pem::{self, Boundary, Section};
use super::{Damage, Finding, InputError, KeyResults, LIMIT, ber, object, ssh};
use crate::spki::Fingerprint;

/// The state of the scan between two lines.
#[derive(Debug, Default)]
pub(super) struct Text {
    /// Number of the current line, counted from 1.
    pub(super) number: u64,
    section: Option<Section>,
    prose: Prose,
    has_finding: bool,
}

/// Maximum number of unknown lines that wait for a decision between PEM and a list of keys.
const UNEXPLAINED: usize = 4096;
/// Length from which a word of base64 outside a section counts as a section without its beginning.
const LOST_BASE64: usize = 40;

/// How to treat unknown lines outside PEM sections.
#[derive(Debug)]
enum Prose {
    /// Ignored: text around sections, such as the output of `openssl x509 -text`.
    Ignored,
    /// Undecided; the numbers of the unknown lines so far.
    Kept(Vec<u64>),
    /// Reported as errors, because the input is a list of keys.
    Reported,
}

impl Default for Prose {
    fn default() -> Self {
        Self::Kept(Vec::new())
    }
}

impl Text {
    pub(super) fn line(&mut self, line: &[u8], found: &mut impl FnMut(Finding)) {
        match (pem::boundary(line), &mut self.section) {
            (Some(Boundary::Begin(label)), open) => {
                let next = Section::new(label, self.number);
                if let Some(unfinished) = open.replace(next) {
                    self.report(unfinished.line, Err(unfinished.without_end()), found);
                }
                if !matches!(self.prose, Prose::Reported) {
                    self.prose = Prose::Ignored;
                }
            }
            (Some(Boundary::End(label)), Some(_)) => {
                let Some(section) = self.section.take() else { return };
                let at = section.line;
                // A section may have no key, such as the section of a CRL.
                let keys = section.keys(&label).unwrap_or_else(|error| vec![Err(error)]);
                keys.into_iter().for_each(|key| self.report(at, key, found));
            }
            (Some(Boundary::Broken | Boundary::End(_)), None) => {
                let reason = "a damaged BEGIN line, or an END line without one".to_owned();
                let error = InputError::Broken { what: "PEM", source: Damage::Text(reason) };
                self.report(self.number, Err(error), found);
            }
            (Some(Boundary::Broken) | None, Some(section)) => section.push(line),
            (None, None) => self.outside(line, found),
        }
    }

    /// Scans a line outside PEM sections.
    fn outside(&mut self, line: &[u8], found: &mut impl FnMut(Finding)) {
        if line.is_empty() || line.starts_with(b"#") {
            return;
        }
        match keys_in_line(line) {
            Ok(keys) => {
                self.become_list(found);
                keys.into_iter().for_each(|key| self.report(self.number, key, found));
            }
            // A damaged key is an error even in text around sections.
            Err(error) if error != InputError::Line || is_lost_base64(line) => {
                self.report(self.number, Err(error), found);
            }
            Err(error) => match &mut self.prose {
                Prose::Ignored => {}
                Prose::Kept(lines) => {
                    lines.push(self.number);
                    if lines.len() > UNEXPLAINED {
                        self.become_list(found);
                    }
                }
                Prose::Reported => self.report(self.number, Err(error), found),
            },
        }
    }

    pub(super) fn too_long(&mut self, found: &mut impl FnMut(Finding)) {
        match &mut self.section {
            Some(section) => section.overflow(),
            None => {
                let error = InputError::TooLarge { what: "a line", limit: LIMIT };
                self.report(self.number, Err(error), found);
            }
        }
    }

    /// Treats the input as a list of keys from here on, unless it has PEM sections.
    fn become_list(&mut self, found: &mut impl FnMut(Finding)) {
        if let Prose::Kept(lines) = &mut self.prose {
            let lines = std::mem::take(lines);
            self.prose = Prose::Reported;
            for line in lines {
                self.report(line, Err(InputError::Line), found);
            }
        }
    }

    fn report(
        &mut self,
        line: u64,
        key: Result<Vec<u8>, InputError>,
        found: &mut impl FnMut(Finding),
    ) {
        self.has_finding = true;
        found(Finding { line: Some(line), key });
    }

    pub(super) fn end(mut self, found: &mut impl FnMut(Finding)) {
        if let Some(section) = self.section.take() {
            self.report(section.line, Err(section.without_end()), found);
        }
        self.become_list(found);
        if !self.has_finding {
            found(Finding { line: None, key: Err(InputError::NoKey) });
        }
    }
}

/// The keys in a line: an OpenSSH key, or one word of hex or base64.
fn keys_in_line(line: &[u8]) -> Result<KeyResults, InputError> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let is_hex = first.len() == 64 && first.iter().all(u8::is_ascii_hexdigit);
    let text = if is_hex { std::str::from_utf8(first).ok() } else { None };
    if let Some(fingerprint) = text.and_then(Fingerprint::parse) {
        return Err(InputError::Fingerprint(fingerprint));
    }
    if words.next().is_some() {
        return ssh::key_in_line(line).map(|key| vec![Ok(key)]);
    }
    let hex = || HEXLOWER_PERMISSIVE.decode(first).ok();
    let unpadded = first.strip_suffix(b"==").or(first.strip_suffix(b"=")).unwrap_or(first);
    let base64 = || BASE64_NOPAD.decode(unpadded).ok();
    let decoded = [hex(), base64()].into_iter().flatten();
    let mut objects = decoded.filter(|bytes| bytes.first() == Some(&ber::SEQUENCE));
    let object = objects.next().ok_or(InputError::Line)?;
    match <[_; 1]>::try_from(object::keys_in(&object)) {
        Ok([Ok(key)]) => Ok(vec![Ok(key)]),
        Ok([Err(InputError::NoKey)]) => Err(InputError::Line),
        Ok([Err(error)]) => Err(error),
        Err(keys) => Ok(keys),
    }
}

fn is_lost_base64(line: &[u8]) -> bool {
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    line.len() >= LOST_BASE64 && line.iter().all(is_base64)
}
