//! DER in base64 with padding, without dashes and line ends. Several certificates are separated by
//! commas, as in Traefik's `X-Forwarded-Tls-Client-Cert` (versions 2.9.4 and later).

use super::{Chain, ChainLength, MalformedValue, decode_base64};

/// The certificates in `value`.
///
/// # Errors
/// Returns an error if a member is not a certificate in base64, or if there are too many.
pub fn read(value: &[u8], length: ChainLength) -> Result<Chain, MalformedValue> {
    let mut chain = Chain::new();
    for member in value.split(|&byte| byte == b',') {
        length.push(&mut chain, decode_base64(member)?)?;
    }
    Ok(chain)
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;

    use super::super::tests::certificates;
    use super::*;
    use keygate_core::tls::MAX_CERTIFICATES;

    #[test]
    fn certificates_are_separated_by_commas() {
        let chain = certificates::<3>();
        let value = chain.each_ref().map(|it| BASE64.encode(it)).join(",");
        assert_eq!(read(value.as_bytes(), ChainLength::Any).unwrap().as_slice(), chain);
        assert_eq!(read(value.as_bytes(), ChainLength::One), Err(MalformedValue::TWO_CERTIFICATES));
    }

    #[test]
    fn at_most_ten_certificates_are_read() {
        let [leaf] = certificates::<1>();
        let member = BASE64.encode(&leaf);
        let value = |count| vec![member.as_str(); count].join(",");
        let ten = read(value(MAX_CERTIFICATES).as_bytes(), ChainLength::Any);
        assert_eq!(ten.unwrap().len(), MAX_CERTIFICATES);
        let eleven = read(value(MAX_CERTIFICATES + 1).as_bytes(), ChainLength::Any);
        assert_eq!(eleven, Err(MalformedValue::TOO_MANY));
    }

    #[test]
    fn a_value_with_anything_else_is_malformed() {
        let [leaf] = certificates::<1>();
        let good = BASE64.encode(&leaf);
        for (value, expected) in [
            (String::new(), MalformedValue::CERTIFICATE),
            (format!("{good},"), MalformedValue::CERTIFICATE),
            (format!(",{good}"), MalformedValue::CERTIFICATE),
            (format!("{good}, {good}"), MalformedValue::BASE64),
            (format!("{good}="), MalformedValue::BASE64),
            (good.replace('+', "-").replace('/', "_") + "-", MalformedValue::BASE64),
            (format!("-----BEGIN CERTIFICATE-----{good}"), MalformedValue::BASE64),
            (BASE64.encode(&[&leaf[..], &[0]].concat()), MalformedValue::CERTIFICATE),
            (BASE64.encode(&leaf[..leaf.len() - 1]), MalformedValue::CERTIFICATE),
        ] {
            assert_eq!(read(value.as_bytes(), ChainLength::Any), Err(expected), "{value}");
        }
    }
}
