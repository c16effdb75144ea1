//! The name of a request, the same in the access log and at the upstream.

use data_encoding::HEXLOWER;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A longer one is not passed on.
const MAX_LENGTH: usize = 128;

/// Gives a request its name: that of a peer whose names are believed, or a new one.
pub(super) fn set(headers: &mut HeaderMap, is_believed: bool) {
    let mut given = headers.get_all(X_REQUEST_ID).iter();
    let is_usable = match (given.next(), given.next()) {
        (Some(id), None) => is_believed && is_plain(id),
        (Some(_) | None, _) => false,
    };
    if is_usable {
        return;
    }
    // Unique, not secret.
    let mut id = [0; 32];
    HEXLOWER.encode_mut(&fastrand::u128(..).to_be_bytes(), &mut id);
    if let Ok(id) = HeaderValue::from_bytes(&id) {
        headers.insert(X_REQUEST_ID, id);
    }
}

/// The name that was given.
pub(super) fn of(headers: &HeaderMap) -> Option<&str> {
    headers.get(X_REQUEST_ID)?.to_str().ok()
}

fn is_plain(id: &HeaderValue) -> bool {
    let id = id.as_bytes();
    (1..=MAX_LENGTH).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(ids: &[&str], is_believed: bool) -> String {
        let mut headers = HeaderMap::new();
        for id in ids {
            headers.append(X_REQUEST_ID, HeaderValue::from_str(id).unwrap());
        }
        set(&mut headers, is_believed);
        assert_eq!(headers.get_all(X_REQUEST_ID).iter().count(), 1);
        of(&headers).unwrap().to_owned()
    }

    #[test]
    fn a_name_is_kept_from_those_who_are_believed_and_made_for_all_others() {
        assert_eq!(named(&["abc-1"], true), "abc-1");
        let long = "x".repeat(MAX_LENGTH + 1);
        for (ids, is_believed) in [
            (&["abc-1"][..], false),
            (&[], true),
            (&["a b"], true),
            (&[&long], true),
            (&["a", "b"], true),
        ] {
            let made = named(ids, is_believed);
            assert!(
                made.len() == 32 && made.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{made}"
            );
        }
    }
}
