//! `keygate status`: what needs attention, and what is in use.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use keygate_core::spki::Fingerprint;
use rcgen::SanType;
use serde_json::{Value, json};

use crate::support::keygate::{BINARY, Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::program::reserved_address;
use crate::support::proxy::{Configuration, Configure, Proxy};
use crate::support::{output_text, system, wait_for, write_filter};

/// Time that a command waits for the admin address.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `command` for the proxy with this admin address.
fn run(pki: &Pki, admin: &str, command: &[&str]) -> Output {
    let file = pki.path("admin.toml");
    std::fs::write(&file, format!("admin.listen = \"{admin}\"\n")).unwrap();
    let arguments = [command, &["--config", file.to_str().unwrap()]].concat();
    wait_for("the admin address", || {
        let (began, output) = (Instant::now(), keygate(&arguments));
        assert_ne!(output.status.code(), None, "{}", output_text(&output));
        // A command whose time has passed, because the machine has paused, is repeated.
        let has_paused = began.elapsed() >= TIMEOUT && output.status.code() != Some(0);
        if has_paused { Err(output_text(&output)) } else { Ok(output) }
    })
}

fn text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", output_text(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Level, subject and the beginning of the problem of each condition.
fn conditions(status: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let items = status["attention"].as_array().unwrap().iter();
    items.map(|it| (text(&it["level"]), text(&it["subject"]), text(&it["problem"]))).collect()
}

#[test]
fn the_status_has_what_the_page_shows_and_begins_with_what_needs_attention() {
    let proxy = Proxy::new().start();
    proxy.rejects(&proxy.lost);
    let admin = proxy.admin_address().to_string();
    let calm = text(&run(&proxy.pki, &admin, &["status"]));
    assert!(calm.starts_with("nothing needs attention\n"), "{calm}");
    for part in [
        ", ready, up ",
        ", snapshot 1, ",
        "\nfilter lost: in use\n",
        "\nservice test: 127.0.0.1:0 for any other\n  connections 0 of 10000, requests a minute ",
        "\n  rejections 1, failed handshakes compromised: 1\n",
        "\n  server http://127.0.0.1:",
        ": unused, last check none, connections ",
        "\nweak keys: invalid, small-factors, roca, fermat, wiener, rsapoly, shared-primes\n",
        "\n  verdict probable: ",
        "\n  action reject: ",
        ": certificate of test\n",
        "\nrejected and flagged clients: 1\n",
        ": CN=lost, times 1, from 127.0.0.1\n",
        "\n    service test: probable, reject, in lost\n",
    ] {
        assert!(calm.contains(part), "{part:?} is not in {calm}");
    }

    std::fs::write(proxy.pki.path("keygate.toml"), "wrokers = 2\nadmin = 1").unwrap();
    std::fs::write(proxy.pki.path("lost.pkbf"), "no filter").unwrap();
    run(&proxy.pki, &admin, &["reload"]);
    run(&proxy.pki, &admin, &["drain"]);
    let shown = text(&run(&proxy.pki, &admin, &["status"]));
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "needs attention: 3 (2 red, 1 amber)", "{shown}");
    assert!(lines[1].starts_with("  red: configuration: rejected: "), "{shown}");
    assert!(lines[1].contains("did you mean \"workers\"?"), "the whole reason: {shown}");
    let (file, configuration) = (proxy.pki.path("lost.pkbf"), proxy.pki.path("keygate.toml"));
    let validate = format!("keygate validate --config {}", configuration.display());
    assert_eq!(lines[2], format!("    run: {validate}"));
    let rejected = format!("  red: filter lost: rejected (marker): {}: ", file.display());
    assert!(lines[3].starts_with(&rejected), "{shown}");
    let info = format!("keygate filter info {}", file.display());
    assert_eq!(lines[4], format!("    run: {info}"));
    assert_eq!(lines[5], "  amber: this instance: not ready: drained by an operator");
    let undo = format!("keygate drain --undo --config {}", configuration.display());
    assert_eq!(lines[6], format!("    run: {undo}"));
    assert!(shown.contains(", not ready, up "), "{shown}");
    assert!(shown.contains("\n  last check rejected "), "{shown}");
    let (_, page) = proxy.admin("/");
    for shown in [&shown, &page] {
        assert!(!shown.contains("refused"), "the state is rejected everywhere: {shown}");
    }

    let status: Value =
        serde_json::from_str(&text(&run(&proxy.pki, &admin, &["status", "--json"]))).unwrap();
    for key in ["attention", "drained", "filters", "host", "since"] {
        assert_eq!(status[key], proxy.status()[key], "{key}");
    }
    assert_eq!(conditions(&status).len(), 3);
    let commands = [0, 1, 2].map(|index| &status["attention"][index]["command"]);
    assert_eq!(commands, [&validate, &info, &undo]);
    for command in [validate, info] {
        assert!(page.matches(&format!("<code>{command}</code>")).count() == 2, "{command}: {page}");
    }
}

#[test]
fn paths_in_commands_are_absolute_after_a_start_with_a_relative_path() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[b"a key"]);
    std::fs::write(pki.path("deny.txt"), "0".repeat(64)).unwrap();
    let configuration = Configuration::new(origin.address())
        .global("[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\n");
    let relative =
        format!("cd \"$(dirname \"$3\")\" && exec '{BINARY}' \"$1\" \"$(basename \"$3\")\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &relative, "sh"]);
    let keygate = Keygate::run_by(shell, &pki, &configuration.text());
    let directory = pki.directory().canonicalize().unwrap();
    let path = |name: &str| directory.join(name).display().to_string();
    for name in ["lost.pkbf", "deny.txt", "ca.pem", "keygate.toml"] {
        std::fs::write(pki.path(name), "of no use").unwrap();
    }
    let status = keygate.wait_for_status("four rejections", |status| {
        status["attention"].as_array().unwrap().len() == 4
    });
    assert_eq!(status["configuration_path"], path("keygate.toml"));
    let validate = format!("keygate validate --config {}", path("keygate.toml"));
    let conditions = status["attention"].as_array().unwrap().iter();
    let commands: Vec<_> = conditions.map(|it| (&it["row"], &it["command"])).collect();
    let [configuration, filter, list, service] =
        ["configuration", "filter-lost", "list-deny", "service-test"].map(|row| json!(row));
    let info = ["filter info", "list info"].map(|command| format!("keygate {command} "));
    let [of_filter, of_list] =
        [info[0].clone() + &path("lost.pkbf"), info[1].clone() + &path("deny.txt")]
            .map(|command| json!(command));
    let validate = json!(validate);
    let expected = [
        (&configuration, &validate),
        (&filter, &of_filter),
        (&list, &of_list),
        (&service, &validate),
    ];
    assert_eq!(commands, expected);
    let (_, page) = keygate.admin("/");
    let in_rows = [&validate, &of_filter, &of_list, &validate];
    for command in in_rows {
        let shown = format!("<br>\nCheck it: <code>{}</code>", command.as_str().unwrap());
        let shown =
            [shown, format!("Look at the file: <code>{}</code>", command.as_str().unwrap())];
        assert!(shown.iter().any(|shown| page.contains(shown)), "{command}: {page}");
    }
}

#[test]
fn servers_that_are_down_and_dates_that_come_soon_need_attention() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[b"a key"]);
    let until = humantime::format_rfc3339_seconds(
        std::time::SystemTime::now() + std::time::Duration::from_secs(86_400),
    );
    let fingerprint = "0".repeat(64);
    let keygate = Configuration::new(origin.address())
        .global(&format!(
            "[[exceptions]]\nfingerprint = \"{fingerprint}\"\nuntil = {until}\nreason = \"later\"\n"
        ))
        .servers(&[format!("http://{}", origin.address()), "http://127.0.0.1:9".to_owned()])
        .upstream("health_check = { path = \"/\", interval = \"200ms\" }")
        .start(&pki);
    let status = keygate.wait_for_status("a server that is down", |status| {
        conditions(status).iter().any(|(_, subject, _)| subject == "service test")
    });
    let (_, text) = keygate.admin("/status.txt");
    let line = text.lines().find(|line| line.contains(":9: unhealthy")).unwrap();
    assert!(line.contains(" since 2") && line.contains("Connection refused"), "{line}");
    let found = conditions(&status);
    let expected = [
        ("amber", "service test", "upstream server http://127.0.0.1:9 is unhealthy"),
        ("amber", "exception of later (000", "expires at 2"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((level, subject, problem), expected) in found.iter().zip(expected) {
        assert_eq!(level, expected.0, "{found:?}");
        assert!(subject.starts_with(expected.1), "{found:?}");
        assert!(problem.starts_with(expected.2), "{found:?}");
    }

    // Without a server that is left, nobody is served.
    let all_down = Configuration::new("127.0.0.1:9")
        .upstream("health_check = { path = \"/\", interval = \"200ms\" }");
    let down = Pki::new();
    write_filter(&down.path("lost.pkbf"), &[b"a key"]);
    let keygate = all_down.start(&down);
    let status =
        keygate.wait_for_status("a service that is down", |status| !conditions(status).is_empty());
    assert_eq!(conditions(&status)[0].0, "red");
}

#[test]
fn a_waiting_update_needs_attention_with_the_command_that_accepts_it() {
    let proxy = Proxy::new().start();
    let several: Vec<_> = (0..4).map(|at| proxy.pki.client(&format!("{at}"), Kind::P256)).collect();
    let keys: Vec<_> = several.iter().map(|it| it.spki.as_slice()).collect();
    write_filter(&proxy.pki.path("lost.pkbf"), &keys);
    let admin = proxy.admin_address().to_string();
    assert!(run(&proxy.pki, &admin, &["reload"]).status.success());
    write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    let reloaded = run(&proxy.pki, &admin, &["reload"]);
    assert_eq!(reloaded.status.code(), Some(1), "{}", output_text(&reloaded));
    let shown = String::from_utf8_lossy(&reloaded.stdout).into_owned();
    let accept = |file: &str| {
        format!("keygate filter accept lost --config {}", proxy.pki.path(file).display())
    };
    let line = format!("\n  to let it through: {}\n", accept("admin.toml"));
    assert!(shown.contains(&line), "{shown}");
    let status = proxy.status();
    let [condition] = conditions(&status).try_into().unwrap();
    assert_eq!((&*condition.0, &*condition.1), ("amber", "filter lost"));
    assert!(condition.2.starts_with("an update waits (shrunk): "), "{condition:?}");
    assert_eq!(status["attention"][0]["command"], json!(accept("keygate.toml")));
    let (_, page) = proxy.admin("/");
    assert!(page.contains("<section id=\"attention\" class=\"warn\">"), "{page}");
}

/// The issuer chooses the subject. A line break in it would forge a line of the output.
#[test]
fn the_subject_of_a_client_forges_no_line_and_controls_no_terminal() {
    let proxy = Proxy::new();
    let evil = proxy.pki.client("evil\n  red, forged\u{1b}[31m", Kind::P256);
    write_filter(&proxy.pki.path("lost.pkbf"), &[&evil.spki]);
    let proxy = proxy.start();
    proxy.rejects(&evil);
    let admin = proxy.admin_address().to_string();
    for command in ["status", "report"] {
        let shown = text(&run(&proxy.pki, &admin, &[command]));
        assert!(shown.contains("forged"), "{shown}");
        assert!(!shown.contains('\u{1b}') && !shown.contains("\n  red, forged"), "{shown}");
    }
    let (_, page) = proxy.admin("/status.txt");
    assert!(!page.contains('\u{1b}') && !page.contains("\n  red, forged"), "{page}");
}

/// The right-to-left override would show `gro.elpmaxe` as `example.org`.
#[test]
fn characters_that_change_the_order_of_a_text_are_escaped() {
    let proxy = Proxy::new();
    let evil = proxy.pki.client("\u{202e}gro.elpmaxe", Kind::P256);
    write_filter(&proxy.pki.path("lost.pkbf"), &[&evil.spki]);
    let proxy = proxy.start();
    proxy.rejects(&evil);
    let admin = proxy.admin_address().to_string();
    let shown = ["status", "report"].map(|it| text(&run(&proxy.pki, &admin, &[it])));
    for shown in shown.into_iter().chain(["/", "/status.txt"].map(|path| proxy.admin(path).1)) {
        assert!(
            shown.contains("CN=\\u{202e}gro.elpmaxe") && !shown.contains('\u{202e}'),
            "{shown}"
        );
    }
}

#[test]
fn a_client_is_shown_with_its_names_the_rules_and_the_lines_that_admit_it() {
    let rules = "uri = [\"spiffe://example.org/orders/*\"], dns = [\"a.example\"]";
    let proxy = Proxy::new();
    let names = [SanType::URI("spiffe://example.org/stock/b".try_into().unwrap())];
    let other = proxy.pki.workload("other", &names);
    let client_auth =
        format!("client_auth = {{ trust_anchors = \"ca.pem\", allow = {{ {rules} }} }}");
    let proxy = proxy.service(&client_auth).start();
    proxy.rejects(&other);
    proxy.rejects(&proxy.lost);
    let admin = proxy.admin_address().to_string();
    let (status, report) =
        (text(&run(&proxy.pki, &admin, &["status"])), text(&run(&proxy.pki, &admin, &["report"])));
    let in_use = "\n  rules by name: 2: dns \"a.example\", uri \"spiffe://example.org/orders/*\"\n";
    assert!(status.contains(in_use), "{status}");
    let exception = format!(
        "\n      [[exceptions]]\n      fingerprint = \"{}\"\n      until = 2",
        Fingerprint::of(&proxy.lost.spki)
    );
    let rule = "\n      client_auth.allow: uri = [\"spiffe://example.org/stock/b\"]\n";
    for shown in [&status, &report] {
        assert!(shown.contains(rule) && shown.contains(&exception), "{shown}");
    }
    for shown in [&status, &report] {
        assert!(shown.contains("\n    names spiffe://example.org/stock/b\n"), "{shown}");
    }
    let page = proxy.admin("/").1;
    for part in ["names spiffe://example.org/stock/b", "rules by name: 2: dns", "[[exceptions]]"] {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
}

#[test]
fn the_status_of_one_service_leaves_out_the_others() {
    let second = reserved_address();
    let mut proxy = Proxy::new();
    let more = format!("listen = \"{second}\"");
    proxy.configuration = proxy.configuration.second_service(&more);
    let proxy = proxy.start();
    proxy.rejects(&proxy.lost);
    let status: Value = proxy.status();
    let names: Vec<_> = status["services"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    let [first, other] = names[..] else { panic!("{names:?}") };
    let admin = proxy.admin_address().to_string();
    for (name, absent, clients) in [(first, other, 1), (other, first, 0)] {
        let shown = text(&run(&proxy.pki, &admin, &["status", "--service", name]));
        assert!(shown.contains(&format!("\nservice {name}: ")), "{shown}");
        assert!(!shown.contains(&format!("\nservice {absent}: ")), "{shown}");
        assert!(shown.contains(&format!("\nrejected and flagged clients: {clients}")), "{shown}");
        let json = text(&run(&proxy.pki, &admin, &["status", "--service", name, "--json"]));
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["services"].as_array().unwrap().len(), 1, "{json}");
        let (code, page) = proxy.admin(&format!("/?service={name}"));
        assert_eq!((code, page.contains(&format!("id=\"service-{absent}\""))), (200, false));
    }
    assert_eq!(proxy.admin("/status?service=none").0, 404);
    let unknown = run(&proxy.pki, &admin, &["status", "--service", "none"]);
    assert_ne!(unknown.status.code(), Some(0));
    assert!(output_text(&unknown).contains("no service or authorizer is \"none\""));
}

/// The arguments of `command`, as `sh` reads them.
fn arguments(pki: &Pki, command: &str) -> Vec<String> {
    let program = pki.path("bin/keygate");
    std::fs::create_dir_all(pki.path("bin")).unwrap();
    std::fs::write(&program, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = in_shell(&pki.path("bin"), command);
    assert!(output.status.success(), "{command}: {}", output_text(&output));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Runs `command` with the program `keygate` in `directory`.
fn in_shell(directory: &Path, command: &str) -> Output {
    system("sh", &["-c", &format!("PATH={}:$PATH; {command}", directory.display())])
}

#[test]
fn every_command_that_is_shown_can_be_pasted_into_a_shell() {
    let proxy = Proxy::new().global("[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\n");
    let (pki, list) = (&proxy.pki, proxy.pki.path("deny.txt"));
    let filter = pki.path("lost.pkbf");
    let several: Vec<_> = (0..4).map(|at| pki.client(&format!("{at}"), Kind::P256)).collect();
    let keys: Vec<_> = several.iter().map(|it| it.spki.as_slice()).collect();
    write_filter(&filter, &keys);
    std::fs::write(&list, "").unwrap();
    // The directory of all files under another name.
    let odd = pki.path("it's $HOME & co");
    symlink(".", &odd).unwrap();
    let path = |name: &str| odd.join(name).to_str().unwrap().to_owned();
    let config = path("keygate.toml");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$PROGRAM\" run \"$CONFIG\""]);
    command.env("PROGRAM", BINARY).env("CONFIG", &config);
    let running = Keygate::run_by(command, pki, &proxy.configuration.text());
    assert!(!running.curl(&several[0], &[]).status.success(), "a client for the report");
    write_filter(&filter, &[]);
    std::fs::write(&list, "no fingerprint").unwrap();
    std::fs::write(pki.path("keygate.toml"), "wrokers = 2").unwrap();

    // The broken file names no admin address, so that the commands have one of their own.
    let admin = format!("admin.listen = \"{}\"\n", running.admin_address());
    let own = path("admin.toml");
    std::fs::write(&own, admin).unwrap();
    let printed = |arguments: &[&str]| {
        let output = keygate(&[arguments, &["--config", &own]].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let reloaded = printed(&["reload"]);
    let preview = printed(&["filter", "accept", "lost"]);
    printed(&["drain"]);
    let (_, page) = running.admin("/");
    let page = page.replace("&#39;", "'").replace("&#38;", "&");
    // Within a sentence, a command is named without its arguments.
    let on_page = page.split(": <code>").skip(1).map(|rest| rest.split("</code>").next().unwrap());
    let status = printed(&["status"]);
    let texts = [&reloaded, &preview, &status].map(|text| text.lines());
    let in_texts = texts.into_iter().flatten().filter_map(|line| {
        let starts = ["  to let it through: ", "accept it with: ", "    run: "];
        starts.iter().find_map(|start| line.strip_prefix(start))
    });
    let commands = on_page.filter(|text| text.starts_with("keygate ")).chain(in_texts);
    let found: BTreeSet<_> = commands.map(|command| arguments(pki, command)).collect();
    let digest = preview.lines().find_map(|line| line.strip_prefix("SHA-256: ")).unwrap();
    let expected = [
        &["validate", "--config", &config][..],
        &["drain", "--undo", "--config", &config],
        &["filter", "accept", "lost", "--config", &config],
        &["filter", "accept", "lost", "--config", &own],
        &["filter", "accept", "lost", "--sha256", digest, "--config", &own],
        &["filter", "info", &path("lost.pkbf")],
        &["list", "info", &path("deny.txt")],
        &["report", "--config", &config],
    ];
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let expected: BTreeSet<_> = expected.into_iter().map(owned).collect();
    assert_eq!(found, expected, "{page}\n{reloaded}\n{preview}\n{status}");

    let command = preview.lines().find_map(|line| line.strip_prefix("accept it with: ")).unwrap();
    let accepted = in_shell(Path::new(BINARY).parent().unwrap(), command);
    assert!(accepted.status.success(), "{command}: {}", output_text(&accepted));
}
