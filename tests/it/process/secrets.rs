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

/// A file of secrets, which an operator gives as the configuration by mistake. Guard:
/// `Document::parse` in `src/config/document.rs`.
#[test]
fn no_content_of_a_file_that_is_not_a_configuration_is_printed_or_logged() {
    let (pki, origin) = scene();
    let pem = std::fs::read_to_string(pki.path("server.key")).unwrap();
    let body: Vec<&str> = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let configuration = Configuration::new(origin.address()).text();
    let pasted = |value: String| {
        let (from, to) = ("private_key = \"server.key\"", format!("private_key = {value}"));
        configuration.replace(from, &to)
    };
    let secrets = pieces(&pki);
    let path = pki.path("wrong.toml");
    let running = Configuration::new(origin.address()).start(&pki);
    let is_secret = |text: &str| {
        text.contains("hunter2") || secrets.iter().any(|piece| text.contains(piece.as_str()))
    };
    let files = [
        pem.clone(),
        format!("\u{feff}{}", pem.replace('\n', "\r\n")),
        body.join("\n"),
        format!("workers = 2\n{}\n", body.join("\n")),
        format!("{configuration}\n{}\n", body.join("\n")),
        pasted(format!("\"\"\"{pem}\"\"\"")),
        pasted(format!("\"\"\"{pem}")),
        pasted(format!("\"{pem}\"")),
        pasted(format!("\"{}", pem.replace('\n', "\\n"))),
        pasted(format!("{pem:?}")),
        "hunter2\n".to_owned(),
        "correct hunter2 staple\n".to_owned(),
        "hunter2=\n".to_owned(),
        "hunter2 = 5\n".to_owned(),
        "[hunter2]\n".to_owned(),
        "[[hunter2\n".to_owned(),
        "TOKEN=hunter2\nOTHER=hunter2\n".to_owned(),
        "{ \"token\": \"hunter2\" }\n".to_owned(),
        "{\n  \"access_token\": \"hunter2\",\n  \"expires\": 3600,\n}\n".to_owned(),
        "[ \"hunter2\" ]\n".to_owned(),
        "token: hunter2\n".to_owned(),
        "---\n- hunter2\n".to_owned(),
        "machine a.example login b password hunter2\n".to_owned(),
        "{ \"api_key\": \"hunter2\" }\n".to_owned(),
        "api_key: hunter2\n".to_owned(),
        "api_key = hunter2\n".to_owned(),
        "headers = { authorization = hunter2 }\n".to_owned(),
        "url = https://user:hunter2@a.example\n".to_owned(),
        format!("{{\n  \"type\": \"service_account\",\n  \"private_key\": {pem:?}\n}}\n"),
        format!("{{\n  \"name\": {pem:?},\n  \"workers\": 2\n}}\n"),
        format!("name = {}\n", body.concat()),
        format!("hunter2\n{configuration}"),
        format!("{configuration}\nhunter2 hunter2\n"),
        format!("{configuration}\nhunter2 = hunter2\n"),
    ];
    for (number, content) in files.iter().enumerate() {
        std::fs::write(&path, content).unwrap();
        for command in [&["validate"][..], &["validate", "--json"], &["run"], &["config", "show"]] {
            let output = keygate(&[command, &["--config", path.to_str().unwrap()]].concat());
            let printed = output_text(&output);
            assert_eq!(output.status.code(), Some(2), "{number} {command:?}: {printed}");
            assert!(!is_secret(&printed), "{number} {command:?}: {printed}");
            assert!(printed.contains("wrong.toml"), "{number} {command:?}: {printed}");
        }
    }
    let healthcheck = ["healthcheck", "--config", path.to_str().unwrap()];
    for content in files.iter().filter(|it| !it.contains("[[services]]") && !it.contains('=')) {
        std::fs::write(&path, content).unwrap();
        let printed = output_text(&keygate(&healthcheck));
        assert!(printed.contains("wrong.toml") && !is_secret(&printed), "{printed}");
    }
    for content in [&pem, "hunter2\n"] {
        std::fs::write(pki.path("keygate.toml"), content).unwrap();
        running.signal("HUP");
        let line = running.wait_for("the rejection", |line| {
            line["message"] == "configuration rejected, keeping the one in use"
                && line["problem"]
                    .as_str()
                    .is_some_and(|problem| problem.contains("not valid TOML: "))
        });
        assert!(!is_secret(&line.to_string()), "{line}");
    }
}
