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

/// The names of the arguments that keygate reads. Others are ignored.
const NAMES: [&[u8]; 6] = [b"cert", b"chain", b"sni", b"src", b"used", b"verify"];

/// The values of the arguments that keygate reads, in the order of [`NAMES`]. Null is the value of an
/// expression that HAProxy could not evaluate.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a> {
    values: [Option<TypedValue<'a>>; NAMES.len()],
    /// Whether one of them occurs twice.
    is_repeated: bool,
}

impl<'a> Arguments<'a> {
    /// Reads `count` arguments.
    ///
    /// # Errors
    /// Returns an error if the frame has fewer, or a value of no known type.
    pub(super) fn read(frame: &mut FrameReader<'a>, count: u8) -> Result<Self, BrokenFrame> {
        let mut arguments = Self::default();
        for _ in 0..count {
            let (name, value) = (frame.string()?, frame.value()?);
            let place = NAMES.iter().position(|known| *known == name);
            if let Some(known) = place.and_then(|place| arguments.values.get_mut(place)) {
                arguments.is_repeated |= known.replace(value).is_some();
            }
        }
        Ok(arguments)
    }

    /// The address of the client.
    pub(super) fn source(&self) -> Option<IpAddr> {
        let [_, _, _, Some(TypedValue::Address(address)), _, _] = self.values else { return None };
        Some(address)
    }

    /// The server name of the TLS handshake. The client chooses it, and it is for the log alone.
    pub(super) fn server_name(&self) -> Option<&'a str> {
        let [_, _, Some(TypedValue::String(name)), _, _, _] = self.values else { return None };
        str::from_utf8(name).ok()
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
        if self.is_repeated {
            return Err(Unusable::Malformed("an argument occurs twice"));
        }
        let [certificate, chain, name, source, used, verify] = self.values;
        let certificate = binary(certificate, "the argument cert is not binary")?;
        let chain = binary(chain, "the argument chain is not binary")?;
        if !matches!(name, None | Some(TypedValue::Null | TypedValue::String(_))) {
            return Err(Unusable::Malformed("the argument sni is not a string"));
        }
        if !matches!(source, None | Some(TypedValue::Null | TypedValue::Address(_))) {
            return Err(Unusable::Malformed("the argument src is not an address"));
        }
        // Null is a session without TLS.
        if !matches!(used, None | Some(TypedValue::Null | TypedValue::Bool(_))) {
            return Err(Unusable::Malformed("the argument used is not boolean"));
        }
        let is_verified = match verify {
            None => true,
            Some(TypedValue::Bool(is_verified)) => is_verified,
            Some(TypedValue::Integer(result)) => result == X509_V_OK,
            Some(TypedValue::Null) => certificate.is_none(),
            Some(TypedValue::Address(_) | TypedValue::Binary(_) | TypedValue::String(_)) => {
                return Err(Unusable::Malformed("the argument verify is not an integer"));
            }
        };
        if !is_verified {
            return Err(NOT_VERIFIED);
        }
        let Some(leaf) = certificate else {
            return match (used, chain) {
                // HAProxy drops a value that does not fit its buffer (`tune.bufsize`).
                (Some(TypedValue::Bool(true)), _) => Err(LOST_CERTIFICATE),
                (_, Some(_)) => Err(Unusable::Malformed("a chain without the argument cert")),
                (None, None) => Err(NO_STATEMENT),
                (Some(_), None) => Ok(None),
            };
        };
        if used == Some(TypedValue::Bool(false)) {
            return Err(Unusable::Malformed("the argument used is false beside a certificate"));
        }
        let mut chain_of_leaf = Chain::from_iter([CertificateDer::from(leaf)]);
        let mut rest = chain.unwrap_or_default();
        while !rest.is_empty() {
            let (der, after) =
                first_element(rest).ok_or(Unusable::Malformed("the argument chain is not DER"))?;
            rest = after;
            if der == leaf {
                continue;
            }
            if chain_of_leaf.len() == MAX_CERTIFICATES {
                return Err(Unusable::Malformed("more than 10 certificates"));
            }
            chain_of_leaf.push(CertificateDer::from(der));
        }
        Ok(Some(chain_of_leaf))
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

/// The bytes of a value.
fn binary<'a>(
    value: Option<TypedValue<'a>>,
    problem: &'static str,
) -> Result<Option<&'a [u8]>, Unusable> {
    match value {
        None | Some(TypedValue::Null) => Ok(None),
        Some(TypedValue::Binary(der)) => Ok(Some(der)),
        Some(_) => Err(Unusable::Malformed(problem)),
    }
}

/// The result of OpenSSL's verification in `ssl_c_verify`.
const X509_V_OK: u64 = 0;

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
            Presented::NoKey => Err("no key".to_owned()),
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
