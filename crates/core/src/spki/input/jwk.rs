//! JSON Web Keys and sets of them: the public key of each.
//!
//! Members of a private key are skipped. Sources: RFC 7517 (keys and sets), RFC 7518, section 6
//! (RSA and elliptic curves), RFC 8037 (Edwards and Montgomery curves), RFC 8812 (secp256k1),
//! RFC 9964 (ML-DSA).

use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::{Damage, Finding, InputError, shown};
use crate::spki::MlDsa;
use crate::spki::related::{der_integer, ec_spki, rsa_spki};

/// The members that a public key needs. Each may occur once.
#[derive(Deserialize)]
struct JsonKey {
    kty: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    alg: Option<String>,
    #[serde(rename = "pub")]
    public: Option<String>,
    /// The keys of a set, which are decoded one by one.
    keys: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct JsonKeySet<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

/// Calls `found` with the key of each JWK in `text`: objects that follow each other. A damaged key
/// does not hide those after it.
pub(super) fn find(text: &[u8], found: &mut impl FnMut(Finding)) {
    let mut objects = serde_json::Deserializer::from_slice(text).into_iter::<&RawValue>();
    let mut lines = LineCounter { text, offset: 0, line: 1 };
    loop {
        let line = Some(lines.of_value_after(objects.byte_offset()));
        match objects.next() {
            None => return,
            Some(Err(error)) => {
                // The text after an error may be anything.
                let problem = match error.classify() {
                    Category::Eof => "it ends too early",
                    Category::Data | Category::Io | Category::Syntax => "not JSON",
                };
                let key = Err(broken(format!("{problem}, line {}", error.line())));
                return found(Finding { line, key });
            }
            Some(Ok(object)) => find_in_object(object, &mut |object, key| {
                let line = Some(lines.of_value_after(offset_in(text, object)));
                found(Finding { line, key });
            }),
        }
    }
}

/// The offset of a value that was read from `text`.
fn offset_in(text: &[u8], value: &RawValue) -> usize {
    value.get().as_ptr().addr().saturating_sub(text.as_ptr().addr())
}

/// Reports the key of a JWK, or the keys of a set, each with its object.
fn find_in_object<'a>(
    object: &'a RawValue,
    report: &mut impl FnMut(&'a RawValue, Result<Vec<u8>, InputError>),
) {
    match decode(object, "") {
        Ok(JsonKey { kty: None, keys: Some(_), .. }) => {
            let set = serde_json::from_str(object.get());
            let keys = set.map_or_else(|_| Vec::new(), |set: JsonKeySet| set.keys);
            for (index, key) in keys.iter().enumerate() {
                let decoded = decode(key, &format!("keys[{index}]."));
                report(key, decoded.and_then(|key| spki(&key)));
            }
            if keys.is_empty() {
                report(object, Err(InputError::NoKey));
            }
        }
        key => report(object, key.and_then(|key| spki(&key))),
    }
}

/// Decodes a key. `prefix` is its place in the paths of its members. The error has no value, which
/// may be of a private key.
fn decode(key: &RawValue, prefix: &str) -> Result<JsonKey, InputError> {
    let text = key.get();
    // serde decodes an array as well, in the order of the members.
    if !text.starts_with('{') {
        return Err(broken("it is not an object".to_owned()));
    }
    let deserializer = &mut serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = error.path();
        let member = match path.iter().next() {
            Some(_) => format!("the member {prefix}{path}"),
            None => "a member".to_owned(),
        };
        broken(format!("{member} has another type, or occurs twice"))
    })
}

/// Counts the lines before a value, in one pass over the text.
struct LineCounter<'a> {
    text: &'a [u8],
    offset: usize,
    line: u64,
}

impl LineCounter<'_> {
    /// The line of the value after `offset`.
    fn of_value_after(&mut self, offset: usize) -> u64 {
        let rest = self.text.get(offset..).unwrap_or_default();
        let offset = self.text.len() - rest.trim_ascii_start().len();
        let passed = self.text.get(self.offset..offset).unwrap_or_default();
        let lines = passed.iter().filter(|byte| **byte == b'\n').count();
        self.line += u64::try_from(lines).unwrap_or(u64::MAX);
        self.offset = offset;
        self.line
    }
}

/// The SubjectPublicKeyInfo (DER) of a key.
fn spki(key: &JsonKey) -> Result<Vec<u8>, InputError> {
    let Some(kty) = key.kty.as_deref() else {
        return Err(broken("the member kty is missing".to_owned()));
    };
    match kty {
        "RSA" => {
            let [n, e] = [number("n", key.n.as_ref())?, number("e", key.e.as_ref())?];
            rsa_spki(&n, &e).ok_or_else(|| broken("n and e are not positive".to_owned()))
        }
        "EC" => {
            let name = curve(key)?;
            let (curve, size) = match name {
                "P-256" => ("p256", 32),
                "P-384" => ("p384", 48),
                "P-521" => ("p521", 66),
                "secp256k1" => ("secp256k1", 32),
                _ => return Err(unsupported("curve", name)),
            };
            let [x, y] = [bytes("x", key.x.as_ref())?, bytes("y", key.y.as_ref())?];
            if x.len() != size || y.len() != size {
                return Err(broken(format!("x and y of {name} have {size} bytes each")));
            }
            ec_spki(curve, &[&[4], &x[..], &y].concat())
                .ok_or_else(|| broken("x and y are no point".to_owned()))
        }
        "OKP" => {
            let name = curve(key)?;
            let (last, size) = match name {
                "X25519" => (110, 32),
                "X448" => (111, 56),
                "Ed25519" => (112, 32),
                "Ed448" => (113, 57),
                _ => return Err(unsupported("curve", name)),
            };
            let x = bytes("x", key.x.as_ref())?;
            if x.len() != usize::from(size) {
                return Err(broken(format!("x of {name} has {size} bytes")));
            }
            // 1.3.101.110 to 113 (RFC 8410).
            let start = [0x30, size + 10, 0x30, 5, 0x06, 3, 0x2b, 0x65, last, 0x03, size + 1, 0];
            Ok([&start[..], &x].concat())
        }
        "AKP" => {
            let missing = || broken("the member alg is missing".to_owned());
            let name = key.alg.as_deref().ok_or_else(missing)?;
            let is_upper = name.to_ascii_uppercase() == name; // RFC 9964; names have a case
            let parameters = MlDsa::named(&name.to_ascii_lowercase()).filter(|_| is_upper);
            let parameters = parameters.ok_or_else(|| unsupported("algorithm", name))?;
            let spki = parameters.spki(&bytes("pub", key.public.as_ref())?);
            spki.ok_or_else(|| broken(format!("pub is no key of {name}")))
        }
        "oct" => Err(InputError::Unsupported {
            what: "a symmetric JSON Web Key".to_owned(),
            hint: ": it has no public key",
        }),
        other => Err(unsupported("key type", other)),
    }
}

fn curve(key: &JsonKey) -> Result<&str, InputError> {
    key.crv.as_deref().ok_or_else(|| broken("the member crv is missing".to_owned()))
}

/// The bytes of a member in base64url. Padding, line breaks and the alphabet of base64 are damage.
fn bytes(name: &str, member: Option<&String>) -> Result<Vec<u8>, InputError> {
    let text = member.ok_or_else(|| broken(format!("the member {name} is missing")))?;
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes());
    bytes.map_err(|_| broken(format!("the member {name} is not base64url without padding")))
}

/// The INTEGER (DER) of a member. RFC 7518 forbids leading zeros, but known implementations write
/// them (section 6.3.1.1).
fn number(name: &str, member: Option<&String>) -> Result<Vec<u8>, InputError> {
    let bytes = bytes(name, member)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    Ok(der_integer(bytes.get(zeros..).unwrap_or_default()))
}

fn broken(reason: String) -> InputError {
    InputError::Broken { what: "a JSON Web Key", source: Damage::Text(reason) }
}

fn unsupported(what: &str, name: &str) -> InputError {
    let what = format!("a JSON Web Key of the {what} {}", shown(name.as_bytes()));
    InputError::Unsupported { what, hint: "" }
}
