//! The `Date` of an answer that has none (RFC 9110, section 6.6.1).

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use hyper::header::HeaderValue;

thread_local! {
    /// The second that it was written for.
    static PRESENT: RefCell<Option<(SystemTime, HeaderValue)>> = const { RefCell::new(None) };
}

/// The present time, in the words of HTTP: written once a second.
pub(super) fn now() -> Option<HeaderValue> {
    let now = SystemTime::now();
    PRESENT.with_borrow_mut(|present| {
        if let Some((began, value)) = present
            && now.duration_since(*began).is_ok_and(|age| age < Duration::from_secs(1))
        {
            return Some(value.clone());
        }
        let value = HeaderValue::from_str(&httpdate::fmt_http_date(now)).ok()?;
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(since_epoch.as_secs());
        *present = Some((began, value.clone()));
        Some(value)
    })
}
