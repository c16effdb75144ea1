//! The arguments of a message: HAProxy's data about a client.
//!
//! HAProxy evaluates the expressions of `args`. A client chooses the content of the values. It
//! cannot choose names, types or number of arguments.

use std::net::IpAddr;

use keygate_wire::spop::value::{BrokenFrame, FrameReader, TypedValue};
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;
use x509_cert::der::{Reader, SliceReader};

use crate::ask::question::{MAX_CERTIFICATES, Presented, Unusable};

/// The arguments that keygate reads. Others are ignored.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a> {
    certificate: Option<&'a [u8]>,
    /// DER after DER, without the leaf.
    chain: Option<&'a [u8]>,
    /// Whether the session has a client certificate.
    used: CertificateUse,
    /// HAProxy's verification of the certificate.
    verification: HostVerification,
    /// The address of the client.
    pub(super) source: Option<IpAddr>,
    /// The server name of the TLS handshake.
    pub(super) server_name: Option<&'a str>,
    /// The first value that cannot be used.
    unusable: Option<&'static str>,
}

impl<'a> Arguments<'a> {
    /// Reads `count` arguments.
    ///
    /// # Errors
    /// Returns an error if the frame has fewer, or a value of no known type.
    pub(super) fn read(frame: &mut FrameReader<'a>, count: u8) -> Result<Self, BrokenFrame> {
        let (mut arguments, mut seen) = (Self::default(), 0_u8);
        for _ in 0..count {
            let (name, value) = (frame.string()?, frame.value()?);
            let Some(argument) = Argument::named(name) else { continue };
            if seen & argument.bit() != 0 {
                arguments.reject("an argument occurs twice");
            }
            seen |= argument.bit();
            arguments.take(argument, value);
        }
        Ok(arguments)
    }

    fn take(&mut self, argument: Argument, value: TypedValue<'a>) {
        match (argument, value) {
            (Argument::Certificate, TypedValue::Binary(der)) => self.certificate = Some(der),
            (Argument::Chain, TypedValue::Binary(der)) => self.chain = Some(der),
            (Argument::Used, TypedValue::Bool(true)) => self.used = CertificateUse::Used,
            (Argument::Used, TypedValue::Bool(false)) => self.used = CertificateUse::Unused,
            // A session without TLS.
            (Argument::Used, TypedValue::Null) => self.used = CertificateUse::NotEvaluated,
            (Argument::Verify, TypedValue::Bool(true)) | (Argument::Verify, X509_V_OK) => {
                self.verification = HostVerification::Passed;
            }
            (Argument::Verify, TypedValue::Bool(false) | TypedValue::Integer(_)) => {
                self.verification = HostVerification::Failed;
            }
            (Argument::Verify, TypedValue::Null) => {
                self.verification = HostVerification::NotEvaluated;
            }
            (Argument::Source, TypedValue::Address(address)) => self.source = Some(address),
            // The client chooses the name, which is for the log alone.
            (Argument::ServerName, TypedValue::String(name)) => {
                self.server_name = str::from_utf8(name).ok();
            }
            // HAProxy could not evaluate the expression.
            (
                Argument::Certificate | Argument::Chain | Argument::Source | Argument::ServerName,
                TypedValue::Null,
            ) => {}
            (Argument::Certificate, _) => self.reject("the argument cert is not binary"),
            (Argument::Chain, _) => self.reject("the argument chain is not binary"),
            (Argument::Used, _) => self.reject("the argument used is not boolean"),
            (Argument::Verify, _) => self.reject("the argument verify is not an integer"),
            (Argument::Source, _) => self.reject("the argument src is not an address"),
            (Argument::ServerName, _) => self.reject("the argument sni is not a string"),
        }
    }

    fn reject(&mut self, reason: &'static str) {
        self.unusable.get_or_insert(reason);
    }

    /// The certificates of the client.
    pub(super) fn presented(&self) -> Presented<'a> {
        match self.chain() {
            Ok(Some(chain)) => Presented::Chain(chain),
            Ok(None) => Presented::None,
            Err(unusable) => Presented::Unusable(unusable),
        }
    }

    fn chain(&self) -> Result<Option<Chain<'a>>, Unusable> {
        if let Some(reason) = self.unusable {
            return Err(Unusable::Malformed(reason));
        }
        if self.verification == HostVerification::Failed {
            return Err(NOT_VERIFIED);
        }
        let Some(leaf) = self.certificate else {
            return match (self.used, self.chain) {
                // HAProxy drops a value that does not fit its buffer (`tune.bufsize`).
                (CertificateUse::Used, _) => Err(LOST_CERTIFICATE),
                (_, Some(_)) => Err(Unusable::Malformed("a chain without the argument cert")),
                (CertificateUse::NotStated, None) => Err(NO_STATEMENT),
                (CertificateUse::NotEvaluated | CertificateUse::Unused, None) => Ok(None),
            };
        };
        if self.used == CertificateUse::Unused {
            return Err(Unusable::Malformed("the argument used is false beside a certificate"));
        }
        if self.verification == HostVerification::NotEvaluated {
            return Err(NOT_VERIFIED);
        }
        let mut chain = Chain::from_iter([CertificateDer::from(leaf)]);
        let mut rest = self.chain.unwrap_or_default();
        while !rest.is_empty() {
            let (der, after) =
                first_element(rest).ok_or(Unusable::Malformed("the argument chain is not DER"))?;
            rest = after;
            if der == leaf {
                continue;
            }
            if chain.len() == MAX_CERTIFICATES {
                return Err(Unusable::Malformed("more than 10 certificates"));
            }
            chain.push(CertificateDer::from(der));
        }
        Ok(Some(chain))
    }
}

type Chain<'a> = SmallVec<[CertificateDer<'a>; 2]>;

const NOT_VERIFIED: Unusable = Unusable::NotVerified("HAProxy did not verify the certificate");
const LOST_CERTIFICATE: Unusable =
    Unusable::Malformed("HAProxy did not send the certificate that the client has");
const NO_STATEMENT: Unusable =
    Unusable::Malformed("neither the argument cert nor the argument used (ssl_c_used)");

/// The first DER element and the bytes after it.
fn first_element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let element = SliceReader::new(der).ok()?.tlv_bytes().ok()?;
    der.split_at_checked(element.len())
}

/// HAProxy's statement whether the session has a client certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum CertificateUse {
    /// The argument is there, without a value.
    NotEvaluated,
    /// There is no argument.
    #[default]
    NotStated,
    Unused,
    Used,
}

/// HAProxy's verification of the certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum HostVerification {
    Failed,
    /// The argument is there, without a value.
    NotEvaluated,
    /// There is no argument.
    #[default]
    NotStated,
    Passed,
}

/// The result of OpenSSL's verification in `ssl_c_verify`.
const X509_V_OK: TypedValue<'_> = TypedValue::Integer(0);

/// An argument that keygate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Argument {
    Certificate,
    Chain,
    ServerName,
    Source,
    Used,
    Verify,
}

impl Argument {
    fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"cert" => Self::Certificate,
            b"chain" => Self::Chain,
            b"sni" => Self::ServerName,
            b"src" => Self::Source,
            b"used" => Self::Used,
            b"verify" => Self::Verify,
            _ => return None,
        })
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate of its own key.
    fn der() -> Vec<u8> {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::default().self_signed(&key).unwrap().der().to_vec()
    }

    fn string(bytes: &[u8]) -> Vec<u8> {
        // Lengths from 240 to 2287 have two bytes.
        let length = match bytes.len() {
            length @ 0..240 => vec![u8::try_from(length).unwrap()],
            length => {
                let rest = length - 240;
                let (low, high) = (rest & 15, rest >> 4);
                let high = match high {
                    0..128 => vec![u8::try_from(high).unwrap()],
                    _ => {
                        let rest = high - 128;
                        vec![
                            128 | u8::try_from(rest & 127).unwrap(),
                            u8::try_from(rest >> 7).unwrap(),
                        ]
                    }
                };
                [vec![240 | u8::try_from(low).unwrap()], high].concat()
            }
        };
        [&length, bytes].concat()
    }

    fn binary(bytes: &[u8]) -> Vec<u8> {
        [vec![0x09], string(bytes)].concat()
    }

    const TRUE: &[u8] = &[0x11];
    const FALSE: &[u8] = &[0x01];
    const NULL: &[u8] = &[0x00];

    /// The certificates in these arguments, as bytes; the debug output of why there are none.
    fn read(arguments: &[(&str, &[u8])]) -> Result<Vec<Vec<u8>>, String> {
        let mut bytes = Vec::new();
        for (name, value) in arguments {
            bytes.extend(string(name.as_bytes()));
            bytes.extend_from_slice(value);
        }
        let count = u8::try_from(arguments.len()).unwrap();
        for end in 0..bytes.len() {
            assert!(Arguments::read(&mut FrameReader::new(&bytes[..end]), count).is_err());
        }
        match Arguments::read(&mut FrameReader::new(&bytes), count).unwrap().presented() {
            Presented::Chain(chain) => Ok(chain.iter().map(|der| der.to_vec()).collect()),
            Presented::None => Ok(Vec::new()),
            Presented::Unusable(unusable) => Err(format!("{unusable:?}")),
        }
    }

    #[test]
    fn the_chain_begins_with_the_leaf_and_has_it_once() {
        let (leaf, issuer, root) = (der(), der(), der());
        let cert: (&str, &[u8]) = ("cert", &binary(&leaf));
        assert_eq!(read(&[cert]), Ok(vec![leaf.clone()]));
        assert_eq!(read(&[cert, ("chain", NULL)]), Ok(vec![leaf.clone()]));
        let chain = binary(&[leaf.as_slice(), &issuer, &root].concat());
        let expected = vec![leaf.clone(), issuer.clone(), root.clone()];
        assert_eq!(read(&[("chain", &chain), cert]), Ok(expected.clone()));
        let chain = binary(&[issuer.as_slice(), &root].concat());
        let others: [(&str, &[u8]); 4] =
            [("used", TRUE), ("verify", &[0x04, 0]), ("more", &[0x08, 0]), ("", NULL)];
        assert_eq!(read(&[&[cert, ("chain", &chain)], &others[..]].concat()), Ok(expected));
    }

    #[test]
    fn at_most_ten_certificates_are_read() {
        let certificates: Vec<_> = (0..11).map(|_| der()).collect();
        let (leaf, rest) = certificates.split_first().unwrap();
        let with = |chain: &[Vec<u8>]| {
            read(&[("cert", &binary(leaf)), ("chain", &binary(&chain.concat()))])
        };
        assert_eq!(with(&rest[..9]).unwrap().len(), 10);
        assert!(with(rest).unwrap_err().contains("more than 10"));
    }

    #[test]
    fn a_value_of_another_type_is_rejected() {
        let leaf = binary(&der());
        let text = [vec![0x08], string(b"text")].concat();
        for name in ["chain", "used", "verify", "src"] {
            let found = read(&[("cert", &leaf), (name, &text)]);
            assert!(found.as_ref().is_err_and(|error| error.contains(name)), "{name}: {found:?}");
        }
        for wrong in [&text[..], TRUE] {
            let found = read(&[("cert", wrong), ("used", FALSE)]).unwrap_err();
            assert!(found.contains("cert is not binary"), "{found}");
        }
        assert!(read(&[("cert", &leaf), ("sni", &binary(b"a"))]).unwrap_err().contains("sni"));
        assert!(read(&[("cert", &leaf), ("used", &[0x04, 1])]).unwrap_err().contains("used"));
    }

    #[test]
    fn an_argument_that_is_there_twice_is_rejected() {
        let (one, other) = (binary(&der()), binary(&der()));
        assert!(read(&[("cert", &one), ("cert", &other)]).unwrap_err().contains("twice"));
        assert!(read(&[("cert", NULL), ("cert", &other)]).unwrap_err().contains("twice"));
        assert!(read(&[("cert", &one), ("verify", &[4, 1]), ("verify", &[4, 0])]).is_err());
        assert!(read(&[("cert", &one), ("more", NULL), ("more", NULL)]).is_ok());
    }

    #[test]
    fn a_chain_that_is_not_der_after_der_is_rejected() {
        let (leaf, issuer) = (der(), der());
        let junk = [issuer.as_slice(), b"junk"].concat();
        for wrong in [&b"text"[..], &issuer[..issuer.len() - 1], &junk] {
            let found = read(&[("cert", &binary(&leaf)), ("chain", &binary(wrong))]);
            assert!(found.is_err(), "{wrong:?}");
        }
        assert!(read(&[("chain", &binary(&issuer))]).is_err(), "a chain alone");
    }

    #[test]
    fn a_certificate_that_did_not_arrive_is_not_taken_for_none() {
        for used in [FALSE, NULL] {
            assert_eq!(read(&[("used", used)]), Ok(vec![]));
            assert_eq!(read(&[("cert", NULL), ("used", used)]), Ok(vec![]));
        }
        for nothing in [&[][..], &[("cert", NULL)], &[("verify", NULL)]] {
            assert_eq!(read(nothing), Err(format!("{NO_STATEMENT:?}")));
        }
        assert_eq!(read(&[("cert", NULL), ("used", TRUE)]), Err(format!("{LOST_CERTIFICATE:?}")));
        assert_eq!(read(&[("used", TRUE)]), Err(format!("{LOST_CERTIFICATE:?}")));
        assert!(read(&[("cert", &binary(&der())), ("used", FALSE)]).is_err());
    }

    #[test]
    fn a_certificate_that_haproxy_did_not_verify_is_rejected() {
        let leaf = binary(&der());
        let verified = |value: &[u8]| read(&[("cert", &leaf), ("verify", value)]);
        for good in [&[0x02, 0][..], &[0x03, 0], &[0x04, 0], &[0x05, 0], TRUE] {
            assert!(verified(good).is_ok(), "{good:?}");
        }
        // -1 in 64 bits.
        let minus_one = [&[0x04, 0xff][..], &[0xf0], &[0xfe; 7], &[0x0e]].concat();
        for bad in [&[0x02, 1][..], &[0x04, 20], &minus_one, FALSE, NULL] {
            assert_eq!(verified(bad), Err(format!("{NOT_VERIFIED:?}")), "{bad:?}");
        }
        assert_eq!(read(&[("used", FALSE), ("cert", NULL), ("verify", NULL)]), Ok(vec![]));
        assert!(read(&[("cert", NULL), ("verify", &[4, 20])]).is_err());
    }
}
