use super::*;

#[test]
fn fields_that_connection_names_are_removed() {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close, X-Hop , ,bad name"));
    headers.append(header::CONNECTION, HeaderValue::from_static("x-other"));
    headers.append(header::CONNECTION, HeaderValue::from_bytes(b"\xff, x-latin").unwrap());
    for name in ["x-hop", "x-other", "x-latin", "te", "upgrade", "keep-alive", "x-stays"] {
        headers.insert(name, HeaderValue::from_static("1"));
    }
    remove_hop_by_hop(&mut headers);
    assert_eq!(headers.keys().collect::<Vec<_>>(), ["x-stays"]);
}

#[test]
fn a_content_length_becomes_one_field_in_canonical_form() {
    let of = |values: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::CONTENT_LENGTH, HeaderValue::from_static(value));
        }
        let length = normalize_content_length(&mut headers);
        let left = headers.get_all(header::CONTENT_LENGTH).iter().cloned().collect::<Vec<_>>();
        (length, left)
    };
    assert_eq!(of(&[]), (Ok(None), Vec::new()));
    for values in [&["5"][..], &["5, 5"], &["5", "5"], &["5,5", "05"], &["0005"]] {
        assert_eq!(of(values), (Ok(Some(5)), vec!["5".parse().unwrap()]), "{values:?}");
    }
    for (value, length) in [("0", 0), ("00", 0), ("9223372036854775807", i64::MAX as u64)] {
        assert_eq!(of(&[value]), (Ok(Some(length)), vec![length.into()]), "{value}");
    }
    for values in
        [&["5, 6"][..], &["5", "6"], &["5", ""], &["5,"], &["+5"], &["9223372036854775808"]]
    {
        assert_eq!(of(values).0, Err(InvalidContentLength), "{values:?}");
    }
}

#[test]
fn cookies_of_http2_are_joined() {
    let mut headers = HeaderMap::new();
    headers.append(header::COOKIE, HeaderValue::from_static("a=1"));
    headers.append(header::COOKIE, HeaderValue::from_static("b=2"));
    headers.append(header::COOKIE, HeaderValue::from_static("c=3"));
    join_cookies(&mut headers);
    assert_eq!(headers.get_all(header::COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
}

#[test]
fn empty_cookies_are_left_out_of_the_joined_one() {
    for (cookies, joined) in
        [(["", "a=1", ""], "a=1"), (["a=1", "", "b=2"], "a=1; b=2"), ([""; 3], "")]
    {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(header::COOKIE, HeaderValue::from_static(cookie));
        }
        join_cookies(&mut headers);
        assert!(headers.get_all(header::COOKIE).iter().eq([joined]), "{headers:?}");
    }
}

#[test]
fn padded_trailers_are_removed() {
    let mut trailers = HeaderMap::new();
    for (name, value) in [("x-a", " 1"), ("x-b", "1\t"), ("x-c", "1 2"), ("x-d", "")] {
        trailers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    remove_forbidden_trailers(&mut trailers);
    let left: std::collections::BTreeSet<_> = trailers.keys().map(HeaderName::as_str).collect();
    assert!(left.into_iter().eq(["x-c", "x-d"]), "{trailers:?}");
}

#[test]
fn the_date_is_formatted_again_in_another_second() {
    DATE.set((1, Some(HeaderValue::from_static("of an earlier second"))));
    let first = date_now().unwrap();
    let date = httpdate::parse_http_date(first.to_str().unwrap()).unwrap();
    assert!(date.elapsed().unwrap().as_secs() <= 2, "{first:?}");
    DATE.with_borrow_mut(|(second, date)| {
        (*second, *date) = (*second + 60, Some(HeaderValue::from_static("of a later second")));
    });
    assert_ne!(date_now().unwrap(), "of a later second");
}
