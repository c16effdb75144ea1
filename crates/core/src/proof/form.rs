//! The form of a proof: JSON with base64url in it, in exactly one spelling.

use std::fmt;

use data_encoding::BASE64URL_NOPAD;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::error::Category;

use super::{BadProof, MAX_BODY, MAX_PAYLOAD, TEXT};

/// The parts of a proof that is not verified yet.
pub(super) struct ProofForm {
    /// `alg`, as written.
    pub(super) algorithm: String,
    /// `kid`, as written.
    pub(super) key_id: String,
    pub(super) payload: Vec<u8>,
    pub(super) signature: Vec<u8>,
    /// The JWS signing input (RFC 7515, section 2): header and payload in base64url.
    pub(super) signed: String,
}

impl ProofForm {
    pub(super) fn parse(body: &[u8]) -> Result<Self, BadProof> {
        if body.len() > MAX_BODY {
            return Err(BadProof::Size);
        }
        let [payload, header, signature] = strings(body, ["payload", "protected", "signature"])
            .map_err(|error| match error.classify() {
                Category::Data => BadProof::Members,
                Category::Eof | Category::Io | Category::Syntax => BadProof::Json,
            })?;
        let signed = format!("{header}.{payload}");
        let [payload, header, signature] =
            [decode(&payload)?, decode(&header)?, decode(&signature)?];
        let [algorithm, key_id] = strings(&header, ["alg", "kid"]).map_err(|_| BadProof::Header)?;
        Ok(Self { algorithm, key_id, payload, signature, signed })
    }

    /// Checks the size and the words of the statement.
    pub(super) fn check_payload(&self) -> Result<(), BadProof> {
        if self.payload.len() > MAX_PAYLOAD {
            return Err(BadProof::Payload);
        }
        let has_text = self.payload.windows(TEXT.len()).any(|window| window == TEXT.as_bytes());
        if has_text { Ok(()) } else { Err(BadProof::Text) }
    }
}

/// Decodes base64url. Padding, line breaks and set bits after the last byte are rejected, because
/// they would be further spellings of one signature.
fn decode(text: &str) -> Result<Vec<u8>, BadProof> {
    BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| BadProof::Base64)
}

/// The values of the members with these names in `json`, an object of just these members. Each
/// member is a string and occurs once. A derived struct would also accept a JSON array.
fn strings<const N: usize>(
    json: &[u8],
    names: [&'static str; N],
) -> Result<[String; N], serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let values = Members(names).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(values)
}

struct Members<const N: usize>([&'static str; N]);

impl<'de, const N: usize> DeserializeSeed<'de> for Members<N> {
    type Value = [String; N];

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Members<N> {
    type Value = [String; N];

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an object of the strings {}", self.0.join(", "))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut values = [const { None }; N];
        while let Some(name) = members.next_key::<String>()? {
            let known = self.0.iter().zip(&mut values).find(|(known, _)| **known == name);
            let Some((_, value)) = known else {
                return Err(A::Error::custom("an unknown member"));
            };
            if value.replace(members.next_value::<String>()?).is_some() {
                return Err(A::Error::custom("a member occurs twice"));
            }
        }
        if values.iter().any(Option::is_none) {
            return Err(A::Error::custom("a member is missing"));
        }
        Ok(values.map(Option::unwrap_or_default))
    }
}
