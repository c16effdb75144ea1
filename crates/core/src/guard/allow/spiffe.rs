//! Rules for SPIFFE IDs, with wildcards for path segments. Format: SPIFFE-ID.md, section 2, of
//! <https://github.com/spiffe/spiffe>.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::AllowRuleError;
use super::dns::lower_case;

/// Maximum length of a SPIFFE ID and of its trust domain, in bytes.
const MAX_ID: usize = 2048;
const MAX_TRUST_DOMAIN: usize = 255;

const SCHEME: &[u8] = b"spiffe://";
/// Stands for one segment.
const ONE: &str = "*";
/// Stands for one or more segments.
const REST: &str = "**";

/// SPIFFE IDs by trust domain, in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SpiffeRules(HashMap<Box<str>, PathPatterns>);

/// The paths below one segment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PathPatterns {
    /// By the next segment.
    named: HashMap<Box<str>, PathPatterns>,
    /// Behind any next segment.
    any: Option<Box<PathPatterns>>,
    /// A rule ends here.
    ends: bool,
    /// A rule names all paths with further segments.
    rest: bool,
}

impl SpiffeRules {
    pub(super) fn add(&mut self, rule: &str) -> Result<(), AllowRuleError> {
        let mut buffer = [0; MAX_TRUST_DOMAIN];
        let id = split(rule.as_bytes()).ok_or(AllowRuleError::Uri)?;
        let trust_domain = trust_domain(id.trust_domain, &mut buffer).ok_or(AllowRuleError::Uri)?;
        let mut segments: SmallVec<[&str; 16]> = SmallVec::new();
        for segment in id.segments().ok_or(AllowRuleError::Uri)? {
            let is_allowed = [ONE, REST].contains(&segment) || is_segment(segment);
            if segments.last() == Some(&REST) || !is_allowed {
                return Err(AllowRuleError::Uri);
            }
            segments.push(segment);
        }
        let mut rules = self.0.entry(trust_domain.into()).or_default();
        for segment in segments {
            rules = match segment {
                REST => {
                    rules.rest = true;
                    return Ok(());
                }
                ONE => rules.any.get_or_insert_default(),
                segment => rules.named.entry(segment.into()).or_default(),
            };
        }
        rules.ends = true;
        Ok(())
    }

    /// Whether a rule names this URI, which must be a SPIFFE ID.
    pub(super) fn contains(&self, uri: &[u8]) -> bool {
        !self.0.is_empty() && self.find(uri).unwrap_or(false)
    }

    fn find(&self, uri: &[u8]) -> Option<bool> {
        let mut buffer = [0; MAX_TRUST_DOMAIN];
        let id = split(uri)?;
        let rules = self.0.get(trust_domain(id.trust_domain, &mut buffer)?)?;
        // The whole path is checked, also behind the segments that decide.
        if !id.segments()?.all(is_segment) {
            return None;
        }
        // The rules that name the path so far. Each is reached once, because rules are a tree.
        let mut reached: SmallVec<[&PathPatterns; 8]> = SmallVec::new();
        reached.push(rules);
        for segment in id.segments()? {
            if reached.iter().any(|rules| rules.rest) {
                return Some(true);
            }
            let mut next = SmallVec::new();
            for rules in reached {
                next.extend(rules.named.get(segment));
                next.extend(rules.any.as_deref());
            }
            reached = next;
        }
        Some(reached.iter().any(|rules| rules.ends))
    }
}

/// The result of `check` for the trust domain of a SPIFFE ID, in lower case; `None` if the URI is not
/// a SPIFFE ID.
pub(super) fn trust_domain_of_id<T>(uri: &[u8], check: impl FnOnce(&str) -> T) -> Option<T> {
    let mut buffer = [0; MAX_TRUST_DOMAIN];
    let id = split(uri)?;
    let name = trust_domain(id.trust_domain, &mut buffer)?;
    id.segments()?.all(is_segment).then(|| check(name))
}

/// The name of a trust domain, in lower case.
pub(super) fn trust_domain_of_rule(name: &str) -> Result<Box<str>, AllowRuleError> {
    let mut buffer = [0; MAX_TRUST_DOMAIN];
    let name = trust_domain(name.as_bytes(), &mut buffer).ok_or(AllowRuleError::TrustDomain)?;
    Ok(name.into())
}

/// Whether a URI has another scheme (RFC 3986, section 3.1) than a SPIFFE ID. A text that is no URI
/// has none.
pub(super) fn is_of_other_scheme(uri: &[u8]) -> bool {
    let scheme = uri.split(|byte| *byte == b':').next().unwrap_or_default();
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    scheme.len() < uri.len()
        && scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(is_letter)
        && uri.iter().all(u8::is_ascii_graphic)
        && !scheme.eq_ignore_ascii_case(b"spiffe")
}

/// The parts of a SPIFFE ID, unchecked.
struct SpiffeId<'a> {
    trust_domain: &'a [u8],
    /// Empty, or with its first `/`.
    path: &'a [u8],
}

impl<'a> SpiffeId<'a> {
    /// The segments of the path; `None` if it is not UTF-8.
    fn segments(&self) -> Option<impl Iterator<Item = &'a str> + use<'a>> {
        Some(str::from_utf8(self.path).ok()?.split('/').skip(1))
    }
}

/// Splits a SPIFFE ID, whose scheme has no case (section 2.4).
fn split(id: &[u8]) -> Option<SpiffeId<'_>> {
    let (scheme, rest) = id.split_at_checked(SCHEME.len())?;
    if !scheme.eq_ignore_ascii_case(SCHEME) || id.len() > MAX_ID {
        return None;
    }
    let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let (trust_domain, path) = rest.split_at_checked(end)?;
    Some(SpiffeId { trust_domain, path })
}

/// The trust domain in lower case, without user and port. It has no case (section 2.4).
fn trust_domain<'a>(name: &[u8], buffer: &'a mut [u8]) -> Option<&'a str> {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_valid = !name.is_empty() && name.iter().all(is_letter);
    lower_case(name, buffer).filter(|_| is_valid)
}

/// Whether a path may have this segment. There is no percent-encoding, query or fragment, and no
/// segment that a parser of URIs would remove.
fn is_segment(segment: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !matches!(segment, "" | "." | "..") && segment.bytes().all(is_letter)
}
