//! `X-Forwarded-Client-Cert`, Envoy's form: `key=value` pairs separated by semicolons.
//!
//! Envoy writes `URI=` and `DNS=` without quotes, and the holder of a certificate may have chosen
//! them: `spiffe://x,Cert="..."` makes a second element. So there is one element, and each key once
//! except these two and `By`, which Envoy repeats for several names. It writes the client's names
//! after the certificate, so a certificate after a name is one that the client has written.

use std::fmt::Write;

use aws_lc_rs::digest::{SHA256, digest};
use keygate_core::tls::CertificateSummary;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use super::{Chain, ChainLength, MalformedValue, escaped_pem};

/// Maximum number of pairs in an element. Envoy has seven keys.
const MAX_PAIRS: usize = 16;

/// One element: the certificate, its digest and its names.
pub(crate) fn write(leaf: &CertificateDer<'_>) -> String {
    let summary = CertificateSummary::new(leaf);
    let hash = data_encoding::HEXLOWER.encode(digest(&SHA256, leaf).as_ref());
    let subject = summary.subject.replace('\\', "\\\\").replace('"', "\\\"");
    let certificate = escaped_pem::write(leaf);
    let mut element = format!("Hash={hash};Cert=\"{certificate}\";Subject=\"{subject}\"");
    let names = summary.uris.iter().map(|uri| ("URI", uri));
    for (key, name) in names.chain(summary.dns_names.iter().map(|name| ("DNS", name))) {
        // A name with a separator would read as several; a backslash may escape one.
        if name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;=\\".contains(&byte)) {
            let _ = write!(element, ";{key}={name}"); // a String never fails
        }
    }
    element
}

/// The certificates in the one element of `value`: all of `Chain`, which begins with the leaf, or
/// the certificate of `Cert`. No other key is read.
///
/// # Errors
/// Returns an error if `value` is not one element with each key once, except `By`, `DNS` and `URI`, if
/// it has neither `Cert` nor `Chain` before these, or if either has anything but certificates.
pub fn read(value: &[u8]) -> Result<Chain, MalformedValue> {
    let (mut leaf, mut chain, mut has_names) = (None, None, false);
    let is = |pair: &Pair<'_>, key: &str| pair.key.eq_ignore_ascii_case(key.as_bytes());
    let mut keys = SmallVec::<[&[u8]; MAX_PAIRS]>::new();
    let mut rest = Some(value);
    while let Some(pairs) = rest {
        let pair = Pair::first(pairs)?;
        rest = pair.rest;
        if is(&pair, "By") {
            continue;
        }
        let is_certificate = is(&pair, "Cert") || is(&pair, "Chain");
        if is(&pair, "URI") || is(&pair, "DNS") {
            has_names = true;
            continue;
        }
        if is_certificate && has_names {
            return Err(MalformedValue::CERTIFICATE_AFTER_NAME);
        }
        if keys.iter().any(|key| key.eq_ignore_ascii_case(pair.key)) {
            return Err(MalformedValue::REPEATED_KEY);
        }
        if keys.len() == MAX_PAIRS {
            return Err(MalformedValue::XFCC_SYNTAX);
        }
        keys.push(pair.key);
        if is(&pair, "Cert") {
            leaf = Some(pair.value);
        } else if is_certificate {
            chain = Some(pair.value);
        }
    }
    let leaf = leaf.map(|value| escaped_pem::read(value, ChainLength::One)).transpose()?;
    let chain = chain.map(|value| escaped_pem::read(value, ChainLength::Any)).transpose()?;
    match (leaf, chain) {
        (Some(leaf), Some(chain)) if leaf.first() != chain.first() => {
            Err(MalformedValue::CHAIN_OF_ANOTHER)
        }
        (_, Some(chain)) => Ok(chain),
        (Some(leaf), None) => Ok(leaf),
        (None, None) => Err(MalformedValue::NO_CERTIFICATE),
    }
}

/// A `key=value` pair.
struct Pair<'a> {
    key: &'a [u8],
    /// Without its quotes. Escapes are left in place: no certificate has any.
    value: &'a [u8],
    /// The pairs after the semicolon; `None` at the end of the element.
    rest: Option<&'a [u8]>,
}

impl<'a> Pair<'a> {
    /// The first pair of `pairs`.
    fn first(pairs: &'a [u8]) -> Result<Self, MalformedValue> {
        let letters = pairs.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let (key, rest) = pairs.split_at_checked(letters).ok_or(MalformedValue::XFCC_SYNTAX)?;
        let rest = rest.strip_prefix(b"=").filter(|_| !key.is_empty());
        let rest = rest.ok_or(MalformedValue::XFCC_SYNTAX)?;
        let (value, rest) = match rest.strip_prefix(b"\"") {
            Some(quoted) => quoted_value(quoted)?,
            None => {
                let end = rest.iter().position(|byte| b"\",;=".contains(byte));
                rest.split_at_checked(end.unwrap_or(rest.len()))
                    .ok_or(MalformedValue::XFCC_SYNTAX)?
            }
        };
        match rest.split_first() {
            None => Ok(Self { key, value, rest: None }),
            Some((b';', rest)) => Ok(Self { key, value, rest: Some(rest) }),
            Some((b',', _)) => Err(MalformedValue::SECOND_ELEMENT),
            Some(_) => Err(MalformedValue::XFCC_SYNTAX),
        }
    }
}

/// Splits after the opening quote: the value up to the closing quote, and the bytes after that one.
/// A backslash escapes the next byte.
fn quoted_value(quoted: &[u8]) -> Result<(&[u8], &[u8]), MalformedValue> {
    let mut is_escaped = false;
    let end = quoted.iter().position(|&byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    let (value, rest) =
        end.and_then(|end| quoted.split_at_checked(end)).ok_or(MalformedValue::XFCC_SYNTAX)?;
    Ok((value, rest.strip_prefix(b"\"").unwrap_or(rest)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::certificates;
    use super::*;

    fn cert(certificate: &CertificateDer<'_>) -> String {
        format!("Cert=\"{}\"", escaped_pem::write(certificate))
    }

    fn chain(certificates: &[&CertificateDer<'_>]) -> String {
        let pem: String = certificates.iter().map(|it| escaped_pem::write(it)).collect();
        format!("Chain=\"{pem}\"")
    }

    #[test]
    fn a_certificate_is_read_as_it_was_written() {
        for certificate in certificates::<3>() {
            assert_eq!(read(write(&certificate).as_bytes()).unwrap().as_slice(), [certificate]);
        }
    }

    /// All pairs of an element, which is well-formed.
    fn pairs(element: &str) -> Vec<(&str, &str)> {
        let (mut pairs, mut rest) = (Vec::new(), Some(element.as_bytes()));
        while let Some(left) = rest {
            let pair = Pair::first(left).unwrap_or_else(|_| panic!("{element}"));
            pairs.push((str::from_utf8(pair.key).unwrap(), str::from_utf8(pair.value).unwrap()));
            rest = pair.rest;
        }
        pairs
    }

    /// Other readers may take the last `Cert`, or the `Cert` of the last element.
    #[test]
    fn no_subject_and_no_name_adds_a_pair_or_an_element() {
        let forged = [r#"a";Cert="forged"#, r#"a",Cert="forged"#, r#"a\";Cert="forged"#];
        for name in forged.into_iter().chain([r"a\", r"\", "\"", r#"\"x\\"#, "a;b", "a,b", "a=b"]) {
            let mut parameters = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
            parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
            parameters.subject_alt_names.push(rcgen::SanType::URI(name.try_into().unwrap()));
            let key = rcgen::KeyPair::generate().unwrap();
            let leaf = parameters.self_signed(&key).unwrap().der().clone();
            let element = write(&leaf);
            let [("Hash", _), ("Cert", _), ("Subject", subject)] = pairs(&element)[..] else {
                panic!("{element}");
            };
            let mut left = subject.chars();
            let unescaped = std::iter::from_fn(|| match left.next()? {
                '\\' => left.next(),
                other => Some(other),
            });
            let unescaped: String = unescaped.collect();
            assert_eq!(unescaped, CertificateSummary::new(&leaf).subject, "{element}");
            assert_eq!(read(element.as_bytes()).unwrap().as_slice(), [leaf]);
        }
    }

    #[test]
    fn a_chain_is_read_with_and_without_the_leaf_beside_it() {
        let [leaf, issuer] = certificates::<2>();
        let expected = [leaf.clone(), issuer.clone()];
        let alone = chain(&[&leaf, &issuer]);
        for value in [
            alone.clone(),
            format!("{};{alone}", cert(&leaf)),
            format!("Hash=ab;{};chain{}", cert(&leaf), alone.strip_prefix("Chain").unwrap()),
        ] {
            assert_eq!(read(value.as_bytes()).unwrap().as_slice(), expected, "{value}");
        }
        let other = format!("{};{alone}", cert(&issuer));
        assert_eq!(read(other.as_bytes()), Err(MalformedValue::CHAIN_OF_ANOTHER));
    }

    #[test]
    fn separators_in_quotes_belong_to_the_value() {
        let [leaf] = certificates::<1>();
        for subject in [r#"CN=a\",Cert=b;"#, r"CN=a\\", r#"O=\"x, y\";CN=z"#, ""] {
            let value =
                format!("By=spiffe://a;By=spiffe://b;Subject=\"{subject}\";{}", cert(&leaf));
            assert_eq!(
                read(value.as_bytes()).unwrap().as_slice(),
                std::slice::from_ref(&leaf),
                "{value}"
            );
        }
    }

    #[test]
    fn names_may_repeat_because_envoy_repeats_them() {
        let [leaf] = certificates::<1>();
        let names =
            ";URI=spiffe://a;URI=spiffe://b;DNS=a.example".to_owned() + &";DNS=b".repeat(40);
        let value = format!("By=spiffe://x;Hash=ab;{}{names}", cert(&leaf));
        assert_eq!(read(value.as_bytes()).unwrap().as_slice(), [leaf]);
    }

    #[test]
    fn an_injected_name_never_chooses_the_certificate() {
        let [own, copied] = certificates::<2>();
        let (own, copied_cert) = (cert(&own), cert(&copied));
        for (value, expected) in [
            (format!("{own};URI=spiffe://x,{copied_cert}"), MalformedValue::SECOND_ELEMENT),
            (format!("URI=spiffe://x,{copied_cert};{own}"), MalformedValue::SECOND_ELEMENT),
            (format!("{own};URI=spiffe://x;{copied_cert}"), MalformedValue::CERTIFICATE_AFTER_NAME),
            (
                format!("{own};DNS=x;{}", copied_cert.replacen('C', "c", 1)),
                MalformedValue::CERTIFICATE_AFTER_NAME,
            ),
            (format!("{own};URI=x;{}", chain(&[&copied])), MalformedValue::CERTIFICATE_AFTER_NAME),
            (format!("URI=spiffe://x;{copied_cert}"), MalformedValue::CERTIFICATE_AFTER_NAME),
            (format!("{own};{copied_cert}"), MalformedValue::REPEATED_KEY),
            (format!("Hash=a;Hash=b;{own}"), MalformedValue::REPEATED_KEY),
            (format!("{own};URI=x\",{copied_cert}"), MalformedValue::XFCC_SYNTAX),
            (format!("{own};URI=\"x\"{copied_cert}"), MalformedValue::XFCC_SYNTAX),
        ] {
            assert_eq!(read(value.as_bytes()), Err(expected), "{value}");
        }
    }

    #[test]
    fn a_value_with_anything_else_is_malformed() {
        let [leaf] = certificates::<1>();
        let good = cert(&leaf);
        let many: Vec<_> = (0..MAX_PAIRS).map(|index| format!("k{index}=v")).collect();
        for (value, expected) in [
            (String::new(), MalformedValue::XFCC_SYNTAX),
            ("By=a;Hash=b".to_owned(), MalformedValue::NO_CERTIFICATE),
            (format!("{good};"), MalformedValue::XFCC_SYNTAX),
            (format!(";{good}"), MalformedValue::XFCC_SYNTAX),
            (format!("{good},"), MalformedValue::SECOND_ELEMENT),
            (format!("{good} ;By=a"), MalformedValue::XFCC_SYNTAX),
            (format!("={good}"), MalformedValue::XFCC_SYNTAX),
            (format!("{good};URI=a=b"), MalformedValue::XFCC_SYNTAX),
            (good.strip_suffix('"').unwrap().to_owned(), MalformedValue::XFCC_SYNTAX),
            (format!("{good}\""), MalformedValue::XFCC_SYNTAX),
            ("Cert=\"\"".to_owned(), MalformedValue::PEM),
            (good.replace("--%0A\"", "--%0A\\\"\""), MalformedValue::PEM),
            (format!("{};{good}", many.join(";")), MalformedValue::XFCC_SYNTAX),
        ] {
            assert_eq!(read(value.as_bytes()), Err(expected), "{value}");
        }
    }
}
