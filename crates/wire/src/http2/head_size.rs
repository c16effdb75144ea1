//! The size of a request head over HTTP/2. A server that gets a larger one than it accepts may end
//! the connection, which clients share.

use hyper::Request;

/// Size of a field without its name and value, in bytes (RFC 9113, section 6.5.2).
const FIELD: usize = 32;

/// Whether the head of a request is larger than `max`, counted as for
/// `SETTINGS_MAX_HEADER_LIST_SIZE`. A byte with a long Huffman code counts as the code, because
/// nginx limits the coded length: 3,000 bytes of 0xf9 take 10,500.
pub fn is_above<B>(max: usize, request: &Request<B>) -> bool {
    let uri = request.uri();
    let pseudo = [
        (":method", request.method().as_str()),
        (":scheme", uri.scheme_str().unwrap_or_default()),
        (":authority", uri.authority().map_or("", |authority| authority.as_str())),
        (":path", uri.path_and_query().map_or("", |target| target.as_str())),
    ];
    let fields = || {
        let pseudo = pseudo.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let fields = request.headers().iter();
        pseudo.chain(fields.map(|(name, value)| (name.as_ref(), value.as_bytes())))
    };
    let (mut overhead, mut bytes, mut is_ascii) = (0_usize, 0_usize, true);
    for (name, value) in fields() {
        overhead += FIELD;
        bytes += name.len() + value.len();
        is_ascii &= value.is_ascii();
    }
    // Most heads are small in any code, so their bytes are not looked up.
    let longest_code = if is_ascii { 3 } else { 4 };
    if overhead + bytes * longest_code <= max {
        return false;
    }
    let coded = |text: &[u8]| text.iter().copied().map(coded_length).sum::<usize>();
    let length: usize = fields().map(|(name, value)| coded(name) + coded(value)).sum();
    overhead + length > max
}

/// Maximum of one byte and the length of its Huffman code (RFC 7541, appendix B), in bytes.
fn coded_length(byte: u8) -> usize {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => 1,
        b' ' | b'%' | b'&' | b'*' | b',' | b'-' | b'.' | b'/' | b':' | b';' | b'=' | b'_' => 1,
        b'\t' | b'\\' => 3,
        b' '..=b'~' => 2,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_counts_as_the_longer_of_its_text_and_its_code() {
        let head = |value: &[u8]| {
            let target = "https://a.example/";
            Request::get(target).header("x", value).body(()).unwrap()
        };
        // 5 fields, `:method` GET, `:scheme` https, `:authority` a.example, `:path` /, `x`.
        let others = 5 * 32 + 10 + 12 + 19 + 6 + 1;
        for (value, length) in [(&[b'a'; 1000], 1000), (&[b'"'; 1000], 2000), (&[0xf9; 1000], 4000)]
        {
            let (size, head) = (others + length, head(value));
            assert!(is_above(size - 1, &head) && !is_above(size, &head), "{length}");
        }
    }
}
