//! Private keys: files readable by others are reported, and no part of a key is ever shown.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

use data_encoding::{BASE64, HEXLOWER};

use crate::support::keygate::keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, write_filter};

fn scene() -> (Pki, Origin) {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[b"some key"]); // an empty one causes a warning
    (pki, origin)
}

fn set_mode(pki: &Pki, mode: u32) {
    set_permissions(pki.path("server.key"), Permissions::from_mode(mode)).unwrap();
}

const LOOSE: &str = "private key file has unsafe permissions";

#[test]
fn a_key_readable_by_others_is_a_warning_at_start_reload_and_validation() {
    let (pki, origin) = scene();
    set_mode(&pki, 0o640);
    let keygate_ = Configuration::new(origin.address()).start(&pki);
    assert!(keygate_.lines(LOOSE).is_empty());
    let config = pki.path("keygate.toml");
    let validate = || output_text(&keygate(&["validate", "--config", config.to_str().unwrap()]));
    assert!(!validate().contains("warning"), "{}", validate());

    let path = pki.path("server.key");
    set_mode(&pki, 0o644);
    let problem = format!(
        "everybody can read the private key in {} (mode 0644): chmod 0640 if a group must read it, else 0600",
        path.display()
    );
    keygate_.wait_for("the warning", |line| {
        line["message"] == LOOSE && line["level"] == "WARN" && line["problem"] == problem.as_str()
    });
    assert!(validate().contains(&format!("\nwarning: {problem}\n")), "{}", validate());
    assert!(validate().contains(": valid, with 1 warning\n"), "{}", validate());
}

/// Pieces of a key as they might be written somewhere: every line of its PEM, and its secret
/// numbers.
fn pieces(pki: &Pki) -> Vec<String> {
    let pem = std::fs::read_to_string(pki.path("server.key")).unwrap();
    let lines: Vec<&str> = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = BASE64.decode(lines.concat().as_bytes()).unwrap();
    // PKCS#8 of P-256: 36 bytes of framing, then the number.
    let number = &der[36..68];
    let listed: Vec<_> = number.iter().map(u8::to_string).collect();
    let mut pieces: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    pieces.retain(|piece| piece.len() > 8);
    pieces.extend([HEXLOWER.encode(number), BASE64.encode(number), listed.join(", ")]);
    pieces
}

#[test]
fn no_part_of_a_private_key_is_in_the_log_the_status_or_an_error() {
    let (pki, origin) = scene();
    let client = pki.client("client", Kind::P256);
    let pieces = pieces(&pki);
    let hides = |place: &str, text: &str| {
        for piece in &pieces {
            assert!(!text.contains(piece), "{piece} is in {place}: {text}");
        }
    };
    let text = Configuration::new(origin.address()).global("log = { level = \"trace\" }");
    let keygate_ = text.start(&pki);
    assert_eq!(keygate_.curl(&client, &[]).stdout, b"hello\n");

    // Another key, a broken one, and the certificate where the key should be.
    let key = std::fs::read_to_string(pki.path("server.key")).unwrap();
    let (begin, end) = key.split_at(key.len() / 2);
    let broken = [begin, "!", end].concat();
    let cut = format!("{begin}\n-----END PRIVATE KEY-----\n");
    let mixed = key.replace("PRIVATE KEY", "CERTIFICATE");
    for (count, text) in (1..).zip([broken, cut, mixed]) {
        std::fs::write(pki.path("server.key"), text).unwrap();
        let refused = "certificate update rejected, keeping those in use";
        keygate_.wait_for_lines("a refusal", count, |line| line["message"] == refused);
        let config = pki.path("keygate.toml");
        let validated = keygate(&["validate", "--config", config.to_str().unwrap()]);
        assert_eq!(validated.status.code(), Some(3), "{}", output_text(&validated));
        hides("an error", &output_text(&validated));
    }
    for page in ["/status", "/metrics"] {
        hides(page, &keygate_.admin(page).1);
    }
    let log = keygate_.wait_for_lines("all lines", 1, |_| true);
    assert!(log.len() > 20, "there is more than usual: {log:#?}");
    let log: Vec<_> = log.iter().map(ToString::to_string).collect();
    hides("the log", &log.join("\n"));
}
