//! Assertions: their keys, their parts, and `tests/programs/assertion.py`, which verifies and
//! attacks them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use data_encoding::{BASE64, BASE64URL_NOPAD};
use serde_json::{Value, json};

use super::pki::{Party, Pki};
use super::program::python_with;
use super::{output_text, system};

/// The page with the checks of services.
pub fn page() -> String {
    std::fs::read_to_string("docs/assertion.md").unwrap()
}

/// Assertions with the key `now.pem`, as `docs/assertion.md` has them.
pub const POLICY: &str = "policy = { assertion = { issuer = \"https://keygate.example.com\", \
                          signing_keys = [{ file = \"now.pem\" }] } }";

/// Writes a private key: `EC`, the curve P-256, or `ED25519`.
pub fn signing_key(pki: &Pki, name: &str, algorithm: &str) {
    let file = pki.path(name).display().to_string();
    let mut arguments = vec!["genpkey", "-out", &file, "-algorithm", algorithm];
    if algorithm == "EC" {
        arguments.extend(["-pkeyopt", "ec_paramgen_curve:P-256"]);
    }
    assert!(system("openssl", &arguments).status.success());
}

/// The JSON in a part of a JWS.
pub fn part(assertion: &str, index: usize) -> Value {
    let part = assertion.split('.').nth(index).unwrap();
    let text = BASE64URL_NOPAD.decode(part.as_bytes()).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// The code block of the page that begins with this line.
pub fn block(language: &str, first: &str) -> String {
    let start = format!("```{language}\n");
    let page = page();
    let blocks = page.split(&start).skip(1).map(|it| it.split("```").next().unwrap());
    let found = blocks.filter(|it| it.starts_with(first)).last();
    found.unwrap_or_else(|| panic!("no block {first}")).to_owned()
}

/// Fields in place of an assertion, and the outcomes of PyJWT and jwcrypto.
pub struct Attack {
    pub name: String,
    /// The values of the header fields.
    pub fields: Vec<String>,
    /// `ok`, or the error of each library.
    pub results: [String; 2],
}

/// Attacks with `assertion` about the client `leaf`, by a peer that knows the set `keys`; with the
/// private key in `file` also mistakes of a signer. `further` are other attacks, by their names.
/// The first one is no attack. `None` skips the test.
pub fn attacks(
    assertion: &str,
    leaf: &Party,
    keys: &str,
    file: &Path,
    further: &[(&str, &str)],
) -> Option<Vec<Attack>> {
    let python = python_with("jwt, jwcrypto, cryptography")?;
    let mut child = Command::new(python)
        .arg("tests/programs/assertion.py")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let further: Vec<_> = further.iter().map(|(name, it)| json!([name, [it]])).collect();
    let input = json!({
        "assertion": assertion,
        "certificate": BASE64.encode(&leaf.der),
        "keys": keys,
        "private": std::fs::read_to_string(file).unwrap(),
        "further": further,
    });
    child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    let found: Vec<(String, Vec<String>, [String; 2])> =
        serde_json::from_slice(&output.stdout).unwrap();
    let attacks = found.into_iter().map(|(name, fields, results)| Attack { name, fields, results });
    Some(attacks.collect())
}
