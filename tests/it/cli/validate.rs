//! `keygate validate`: warnings, `--strict`, and the ways to name the configuration.

use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use rcgen::CertificateParams;
use serde_json::json;

use crate::support::keygate::{BINARY, Keygate, keygate};
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{MINIMAL, output_text, write_filter};

/// A configuration in the directory of a CA. No upstream listens.
struct Files {
    pki: Pki,
    configuration: Configuration,
}

impl Files {
    fn new() -> Self {
        let pki = Pki::new();
        write_filter(&pki.path("lost.pkbf"), &[b"a key"]);
        Self { pki, configuration: Configuration::new("127.0.0.1:1") }
    }

    fn path(&self) -> String {
        self.pki.path("keygate.toml").to_str().unwrap().to_owned()
    }

    fn validate(&self, arguments: &[&str]) -> Output {
        std::fs::write(self.path(), self.configuration.text()).unwrap();
        keygate(&[&["validate", "--config", &self.path()], arguments].concat())
    }

    /// The warnings, with which `--strict` must fail.
    fn warnings(&self) -> Vec<String> {
        let output = self.validate(&[]);
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let warnings = text.lines().filter_map(|line| line.strip_prefix("warning: "));
        let warnings: Vec<_> = warnings.map(str::to_owned).collect();
        let strict = self.validate(&["--strict"]).status.code();
        assert_eq!(strict, Some(if warnings.is_empty() { 0 } else { 2 }), "{warnings:?}");
        warnings
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// `validate` opens no port: a process may listen on the addresses already.
#[test]
fn an_address_of_another_machine_is_a_warning() {
    let mut files = Files::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    files.configuration = files.configuration.set("admin.listen", taken.as_str());
    assert_eq!(files.warnings(), Vec::<String>::new());

    // 203.0.113.0/24 is reserved for documents (RFC 5737).
    files.configuration = files.configuration.set("admin.listen", "203.0.113.9:9464");
    let warning =
        "203.0.113.9:9464: this machine has no such address, so that `run` cannot listen on it";
    assert_eq!(files.warnings(), [warning]);
}

#[test]
fn each_authorizer_is_shown_with_the_lines_for_its_host() {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[b"a key"]);
    let mut text = "filters = [{ name = \"lost\", path = \"lost.pkbf\" }]\n".to_owned();
    let escaped = "{ header = \"X-Client\", encoding = \"escaped-pem\" }";
    let anchors = "client_auth = { trust_anchors = \"ca.pem\" }\n";
    for (name, listen, protocol, source, more) in [
        ("caddy", "unix:/run/a.sock", "http", "\"client-cert\"", anchors),
        ("nginx", "unix:/run/b.sock", "http", escaped, "address_from = \"X-Client-IP\"\n"),
        ("traefik", "127.0.0.1:9192", "http", "\"traefik\"", ""),
        ("ingress", "127.0.0.1:9193", "http", "\"ingress-nginx\"", ""),
        ("envoy", "127.0.0.1:9194", "ext-authz", "\"attributes\"", ""),
        ("xfcc", "unix:/run/c.sock", "ext-authz", "\"xfcc\"", ""),
        ("haproxy", "unix:/run/d.sock", "spop", "", ""),
    ] {
        let keys = format!("name = {name:?}\nlisten = {listen:?}\nprotocol = {protocol:?}\n");
        let source = match source {
            "" => String::new(),
            source => format!("certificate_from = {source}\n"),
        };
        text += &format!("[[authorizers]]\n{keys}{source}{more}");
    }
    let path = pki.path("keygate.toml");
    std::fs::write(&path, text).unwrap();
    let output = keygate(&["validate", "--config", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let shown = String::from_utf8(output.stdout).unwrap();
    let of = |name: &str| {
        let start = shown.find(&format!("authorizer {name}: ")).unwrap();
        let rest = &shown[start..];
        let next = rest
            .match_indices("\nauthorizer ")
            .find(|(at, line)| !rest[at + line.len()..].starts_with(name));
        &rest[..next.map_or(rest.len(), |(at, _)| at)]
    };
    for (name, parts) in [
        (
            "caddy",
            &[
                "http over unix:/run/a.sock, certificate from client-cert, verified by keygate; listed: reject",
                "forward_auth unix//run/a.sock {",
                "header_up Client-Cert ",
                "header_up -Client-Cert-Chain",
            ][..],
        ),
        (
            "nginx",
            &[
                "x-client (escaped-pem), verified by the host",
                "server unix:/run/b.sock",
                "proxy_set_header x-client   $ssl_client_escaped_cert;",
                "proxy_set_header x-client-ip    $remote_addr;",
                "from deploy/authorizer/envoy-http/envoy.yaml",
                "{ key: x-client, ",
            ],
        ),
        ("traefik", &["forwardAuth", "127.0.0.1:9192"]),
        ("ingress", &["not run by the tests", "auth-tls-secret"]),
        (
            "envoy",
            &[
                "envoy.filters.http.ext_authz",
                "{ address: 127.0.0.1, port_value: 9194 }",
                "envoy.filters.network.ext_authz",
            ],
        ),
        ("xfcc", &["forward_client_cert_details: SANITIZE_SET", "pipe: { path: /run/c.sock }"]),
        ("haproxy", &["certificate from argument cert", "unix@/run/d.sock", "spoe-agent keygate"]),
    ] {
        for part in parts {
            assert!(of(name).contains(part), "no {part:?} for {name} in {}", of(name));
        }
    }
    // The authorizer reads neither of these headers.
    for (name, header) in [("nginx", "X-SSL-Verify"), ("caddy", "X-Real-IP")] {
        assert!(!of(name).contains(header), "{}", of(name));
    }
}

/// Parameters of a server certificate for `localhost` with this validity period.
fn valid(start: SystemTime, end: SystemTime) -> CertificateParams {
    let mut parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
    (parameters.not_before, parameters.not_after) = (start.into(), end.into());
    parameters
}

#[test]
fn a_certificate_outside_of_its_validity_period_is_a_warning_with_the_time() {
    let files = Files::new();
    let now = SystemTime::now();
    let day = |time| humantime::format_rfc3339_seconds(time).to_string()[..10].to_owned();
    assert!(files.warnings().is_empty());
    for (start, end, problem) in [
        (now - 90 * DAY, now - 5 * DAY, format!("expired at {}", day(now - 5 * DAY))),
        (now - 80 * DAY, now + 9 * DAY, format!("expires at {}", day(now + 9 * DAY))),
        (now + 5 * DAY, now + 90 * DAY, format!("is not valid before {}", day(now + 5 * DAY))),
    ] {
        files.pki.server_with("server", valid(start, end));
        let warnings = files.warnings();
        let path = files.pki.path("server.pem");
        let file = format!("service \"test\": tls.certificate {}", path.display());
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.starts_with(&format!("{file}: certificate 1 {problem}")), "{warning}");
    }
}

#[test]
fn a_server_name_that_the_certificate_does_not_cover_is_a_warning() {
    let mut files = Files::new();
    files.pki.server_for("server", &["a.example", "*.b.example"]);
    let names = r#"server_names = ["a.example", "x.b.example", "*.b.example", "*.c.example"]"#;
    files.configuration = files.configuration.service(names);
    let warnings = files.warnings();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("is not valid for server name \"*.c.example\""), "{warning}");
}

#[test]
fn the_warnings_are_in_the_log_of_the_running_proxy() {
    let mut files = Files::new();
    let now = SystemTime::now();
    files.pki.server_with("server", valid(now - 90 * DAY, now - DAY));
    files.configuration = files.configuration.service("server_names = [\"other.example\"]");
    let warnings = files.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let keygate = files.configuration.start(&files.pki);
    for (warning, message) in
        warnings.iter().zip(["certificate is not valid now", "certificate lacks a server name"])
    {
        keygate.wait_for(message, |line| {
            line["message"] == message && line["level"] == "WARN" && line["problem"] == **warning
        });
    }
}

#[test]
fn the_configuration_is_named_by_an_argument_or_an_option() {
    let files = Files::new();
    let path = files.path();
    assert!(files.warnings().is_empty());
    for arguments in [&[path.as_str()][..], &["-c", &path], &["--config", &path]] {
        let output = keygate(&[&["validate"], arguments].concat());
        assert!(output_text(&output).contains(&format!("{path}: valid\n")), "{arguments:?}");
        let output = keygate(&[&["run"], arguments, &["--no-such-option"]].concat());
        assert!(output_text(&output).contains("--no-such-option"), "{}", output_text(&output));
    }
    let both = keygate(&["validate", &path, "--config", &path]);
    assert_eq!(both.status.code(), Some(2), "{}", output_text(&both));
}

/// The words for the error of a file of the service, with which validation must fail.
fn file_error(files: &Files, key: &str) -> String {
    let output = files.validate(&[]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    let text = String::from_utf8(output.stderr).unwrap();
    // The configuration is written with one line for the services.
    let services = files.configuration.text();
    let line = services.lines().position(|line| line.starts_with("services = ")).unwrap() + 1;
    let start = format!("keygate: {}:{line}: service \"test\": {key} ", files.path());
    let start = start + files.pki.directory().to_str().unwrap();
    assert!(text.starts_with(&start), "{start}: {text}");
    for word in ["Error", "Other(", "decode", "rror::", "None", "Some(", "os error"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    text
}

#[test]
fn a_file_without_a_usable_private_key_is_described_with_a_remedy() {
    let files = Files::new();
    let path = |name: &str| files.pki.path(name).to_str().unwrap().to_owned();
    let (key, certificate) = (path("server.key"), path("server.pem"));
    let good = std::fs::read_to_string(&key).unwrap();
    let made = |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|it| it.replace("KEY", &key)).collect();
        let output = Command::new("openssl").args(&arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", output_text(&output));
        output.stdout
    };
    let password = ["-passout", "pass:secret"];
    let pkcs8 = made(&[&["pkcs8", "-topk8", "-in", "KEY"][..], &password].concat());
    let traditional = made(&["ec", "-in", "KEY", "-aes256", "-passout", "pass:secret"]);
    assert!(traditional.windows(9).any(|it| it == b"Proc-Type"));
    let pkcs12 = ["pkcs12", "-export", "-inkey", "KEY", "-in", &certificate];
    let utf16: Vec<u8> = good.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let cases: [(&str, Vec<u8>, &str); 14] = [
        ("PKCS#8, encrypted", pkcs8, "the private key is encrypted: decrypt it first"),
        ("PEM, encrypted", traditional, "the private key is encrypted: decrypt it first"),
        ("DER", made(&["pkey", "-in", "KEY", "-outform", "DER"]), "`openssl pkey -inform DER`"),
        ("PKCS#12", made(&[&pkcs12[..], &password].concat()), "`openssl pkcs12"),
        ("certificate", std::fs::read(&certificate).unwrap(), "private_key swapped?"),
        ("public key", made(&["pkey", "-in", "KEY", "-pubout"]), "no PEM section of this kind"),
        (
            "P-224",
            made(&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-224"]),
            "or of another kind than RSA",
        ),
        ("RSA 1024", made(&["genrsa", "1024"]), "or of another kind than RSA with 2048"),
        ("UTF-16", [&[0xff, 0xfe], &utf16[..]].concat(), "no PEM section of this kind"),
        ("empty", Vec::new(), "it is empty"),
        ("text", b"hunter2\n".to_vec(), "it has no PEM section of this kind"),
        (
            "half",
            good.as_bytes()[..good.len() / 2].to_vec(),
            "-----END PRIVATE KEY-----\" is missing",
        ),
        ("damaged", good.replace('M', "!").into_bytes(), "the base64 of a section is damaged"),
        (
            "other",
            std::fs::read(files.pki.server("other").private_key).unwrap(),
            "does not belong to the certificate",
        ),
    ];
    for (name, content, problem) in cases {
        std::fs::write(&key, content).unwrap();
        let error = file_error(&files, "tls.private_key");
        assert!(error.contains(problem), "{name}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    // `keygate key` has the same words for an encrypted key.
    std::fs::write(&key, made_again(&good, &files)).unwrap();
    let output = keygate(&["key", &key]);
    assert!(output_text(&output).contains("the private key is encrypted: decrypt it first"));
    // The forms that Windows programs write are read.
    let windows = good.replace('\n', "\r\n");
    for text in [windows.clone(), format!("\u{feff}{good}"), format!("\u{feff}{windows}")] {
        std::fs::write(&key, text).unwrap();
        assert!(files.warnings().is_empty());
    }
}

/// A private key that is encrypted.
fn made_again(key: &str, files: &Files) -> Vec<u8> {
    let path = files.pki.path("plain.key");
    std::fs::write(&path, key).unwrap();
    let path = path.to_str().unwrap();
    let arguments = ["pkcs8", "-topk8", "-in", path, "-passout", "pass:secret"];
    Command::new("openssl").args(arguments).output().unwrap().stdout
}

#[test]
fn a_file_without_a_usable_certificate_is_described_with_a_remedy() {
    let files = Files::new();
    let path = files.pki.path("server.pem");
    let good = std::fs::read_to_string(&path).unwrap();
    let key = std::fs::read(files.pki.path("server.key")).unwrap();
    let der = files.pki.server("other").der.to_vec();
    let broken = "-----BEGIN CERTIFICATE-----\nMAMCAQA=\n-----END CERTIFICATE-----\n";
    for (content, problem) in [
        (key, "it has a private key and no certificate; are certificate and private_key swapped?"),
        (der, "`openssl x509 -inform DER`"),
        (Vec::new(), "it is empty"),
        (good.replace("CERTIFICATE", "TRUSTED CERTIFICATE").into(), "no PEM section of this kind"),
        (good.replace("CERTIFICATE", "CERTIFICATE REQUEST").into(), "no PEM section of this kind"),
        (good.replace('M', "!").into(), "the base64 of a section is damaged"),
        (broken.into(), "certificate 1 cannot be used: the certificate is not valid DER"),
    ] {
        std::fs::write(&path, content).unwrap();
        let error = file_error(&files, "tls.certificate");
        assert!(error.contains(problem), "{problem}: {error}");
    }
    std::fs::write(&path, format!("\u{feff}{}", good.replace('\n', "\r\n"))).unwrap();
    assert!(files.warnings().is_empty());
    let old = files.pki.client_of_version_1("server");
    assert_eq!(old.certificate, path);
    let error = file_error(&files, "tls.certificate");
    assert!(error.contains("the certificate is not of X.509 version 3"), "{error}");
    files.pki.server("server");
    std::fs::write(files.pki.path("ca.pem"), broken).unwrap();
    let error = file_error(&files, "client_auth.trust_anchors");
    assert!(
        error.contains("cannot be a trust anchor: the certificate is not valid DER"),
        "{error}"
    );
}

/// A configuration with one authorizer and no service.
fn authorizer(listen: &str, keys: &str) -> Pki {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[b"a key"]);
    let text = format!(
        "admin = {{ listen = \"127.0.0.1:0\" }}\n\
         filters = [{{ name = \"lost\", path = \"lost.pkbf\" }}]\n\
         [[authorizers]]\nname = \"edge\"\nlisten = \"{listen}\"\nprotocol = \"http\"\n\
         certificate_from = \"client-cert\"\n{keys}\n"
    );
    std::fs::write(pki.path("keygate.toml"), text).unwrap();
    pki
}

/// The warnings of `validate`.
fn warnings_of(pki: &Pki) -> Vec<String> {
    let output = keygate(&["validate", pki.path("keygate.toml").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("warning: ")).map(str::to_owned).collect()
}

/// Guard: `unusable_addresses` in `src/listen/check.rs`.
#[test]
fn a_socket_of_an_authorizer_that_cannot_be_bound_is_an_error_of_validate_and_of_a_start() {
    let fails = |pki: &Pki, problem: &str| {
        let directory = pki.directory().display();
        let expected = format!("cannot listen on unix:{directory}/{problem}");
        for command in ["validate", "run"] {
            let output = keygate(&[command, pki.path("keygate.toml").to_str().unwrap()]);
            let text = output_text(&output);
            assert_eq!(output.status.code(), Some(4), "{command}: {text}");
            assert!(text.contains(&expected), "{command}: {expected}: {text}");
        }
    };
    let unknown = "socket_group = \"no-such-group\"";
    fails(
        &authorizer("unix:ask.sock", unknown),
        "ask.sock: socket_group: /etc/group has no group \"no-such-group\"; create it, or give its number",
    );
    let pki = authorizer("unix:run/ask.sock", "");
    let directory = pki.path("run");
    let problem = format!("run/ask.sock: there is no directory {}; create it", directory.display());
    fails(&pki, &problem);
    std::fs::write(&directory, "no directory").unwrap();
    let problem = format!(
        "run/ask.sock: {} is no directory; remove it, or give another path",
        directory.display()
    );
    fails(&pki, &problem);
    let pki = authorizer("unix:/run/no-such-directory/ask.sock", "");
    assert_eq!(
        warnings_of(&pki),
        Vec::<String>::new(),
        "the service manager makes it at the start"
    );
    let pki = authorizer("unix:ask.sock", "");
    std::fs::write(pki.path("ask.sock"), "no socket").unwrap();
    fails(&pki, "ask.sock: the file is no socket; remove it, or give another path");
    std::fs::remove_file(pki.path("ask.sock")).unwrap();
    assert_eq!(warnings_of(&pki), Vec::<String>::new());
}

/// Guard: `open_access` in `src/config/authorizer.rs`.
#[test]
fn an_authorizer_that_is_open_to_other_peers_is_a_warning() {
    let mode = "authorizer \"edge\": socket_mode 0666 lets every user of the machine ask about copied certificates; set askers.uids, or socket_mode = \"0660\" with socket_group";
    let network = |network: &str| {
        format!(
            "authorizer \"edge\": askers.from has {network}, so strangers may ask about copied certificates; name the networks of the hosts, or set tls.client_ca"
        )
    };
    let tls = "tls = { certificate = \"server.pem\", private_key = \"server.key\" }";
    let mutual = "tls = { certificate = \"server.pem\", private_key = \"server.key\", client_ca = \"ca.pem\" }";
    let (unix, any, loopback) = ("unix:ask.sock", "0.0.0.0:9191", "127.0.0.1:9191");
    for (listen, keys, expected) in [
        (unix, "socket_mode = \"0666\"", Some(mode.to_owned())),
        (unix, "socket_mode = \"0666\"\naskers = { uids = [33] }", None),
        (unix, "socket_mode = \"0660\"", None),
        (any, "askers = { from = [\"10.0.0.0/8\", \"0.0.0.0/0\"] }", Some(network("0.0.0.0/0"))),
        (any, "askers = { from = [\"::/0\"] }", Some(network("::/0"))),
        (any, "askers = { from = [\"128.0.0.0/1\"] }", Some(network("128.0.0.0/1"))),
        (any, "askers = { from = [\"10.0.0.0/8\", \"fc00::/7\"] }", None),
        (any, &format!("askers = {{ from = [\"0.0.0.0/0\"] }}\n{mutual}"), None),
        (any, &format!("askers = {{ from = [\"0.0.0.0/0\"] }}\n{tls}"), Some(network("0.0.0.0/0"))),
        (loopback, "askers = { from = [\"0.0.0.0/0\"] }", None),
    ] {
        let pki = authorizer(listen, keys);
        pki.server("server");
        assert_eq!(warnings_of(&pki), Vec::from_iter(expected), "{listen} {keys}");
    }
    // The running process logs it.
    let pki = authorizer(unix, "socket_mode = \"0666\"");
    let text = std::fs::read_to_string(pki.path("keygate.toml")).unwrap();
    let keygate = Keygate::configured(&pki, &text);
    let line = keygate
        .wait_for("the warning", |line| line["message"] == "authorizer is open to other peers");
    assert_eq!(line["problem"], mode);
}

/// Files are read before the log is opened, as by `run`.
#[test]
fn an_unusable_file_determines_the_exit_code_beside_an_unusable_log() {
    let mut files = Files::new();
    let log = files.configuration.clone().set("access_log.path", "gone/access.log");
    files.configuration = log.clone();
    assert_eq!(files.validate(&[]).status.code(), Some(4));
    files.configuration = log.set("state.dir", "/gone/state");
    for options in [&[][..], &["--json"]] {
        let output = files.validate(options);
        assert_eq!(output.status.code(), Some(3), "{options:?}: {}", output_text(&output));
    }
}

#[test]
fn an_unusable_state_directory_is_named_with_a_remedy() {
    let mut files = Files::new();
    let directory = files.pki.path("state");
    files.configuration = files.configuration.set("state.dir", directory.to_str().unwrap());
    let fails = |problem: &str| {
        std::fs::write(files.path(), files.configuration.text()).unwrap();
        for command in ["validate", "run"] {
            let output = keygate(&[command, &files.path()]);
            assert_eq!(output.status.code(), Some(3), "{command}: {}", output_text(&output));
            let text = output_text(&output);
            let expected = format!("state.dir {}: {problem}", directory.display());
            assert!(text.contains(&expected), "{command}: {expected}: {text}");
        }
    };
    fails("no file can be created in the directory: No such file or directory");
    std::fs::write(&directory, "").unwrap();
    fails("no file can be created in the directory: Not a directory");
    std::fs::remove_file(&directory).unwrap();
    std::fs::create_dir(&directory).unwrap();
    assert!(files.warnings().is_empty());
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "validate leaves no file");
    // Root may write anywhere but in a file system that does not take files.
    files.configuration = files.configuration.clone().set("state.dir", "/proc/self");
    let output = files.validate(&[]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    let text = output_text(&output);
    assert!(
        text.contains("state.dir /proc/self: no file can be created in the directory"),
        "{text}"
    );
}

#[test]
fn a_missing_file_with_a_source_is_reported_with_the_command_that_fetches_it() {
    let mut files = Files::new();
    std::fs::remove_file(files.pki.path("lost.pkbf")).unwrap();
    let list = "[[lists]]\nname = \"public\"\nformat = \"badkeys\"\npath = \"blocklist.dat\"\n";
    let without = files.configuration.clone().global(list);
    files.configuration = without
        .clone()
        .set("lists.source.url", "https://lists.example/badkeysdata.json")
        .set("filters.source.url", "https://lists.example/lost.pkbf");
    std::fs::write(files.path(), files.configuration.text()).unwrap();
    let (path, directory) = (files.path(), files.pki.directory().display());
    // The configuration is written with one line for each array of tables.
    let text = files.configuration.text();
    let errors = [
        ("filters", "filter \"lost\"", "lost.pkbf"),
        ("lists", "list \"public\"", "blocklist.dat"),
    ];
    let expected = errors.map(|(table, subject, file)| {
        let start = format!("{table} = ");
        let line = text.lines().position(|line| line.starts_with(&start)).unwrap() + 1;
        format!(
            "keygate: {path}:{line}: {subject}: {directory}/{file} does not exist; run `keygate fetch --config {path}`, which downloads it\n"
        )
    });
    for command in ["validate", "run"] {
        let output = keygate(&[command, &path]);
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        for error in &expected {
            assert!(output_text(&output).contains(error), "{error}: {}", output_text(&output));
        }
    }
    let mut command = Command::new(BINARY);
    let output = command.arg("validate").env("KEYGATE_CONFIG", &path).output().unwrap();
    assert!(output_text(&output).contains(&expected[1]), "{}", output_text(&output));
    // No source: the command would download nothing.
    std::fs::write(files.path(), without.text()).unwrap();
    let output = output_text(&keygate(&["validate", &path]));
    assert!(output.contains("lost.pkbf: No such file"), "{output}");
    assert!(output.contains("blocklist.dat: No such file"), "{output}");
    assert!(!output.contains("keygate fetch"), "{output}");
}

#[test]
fn a_list_without_a_key_is_a_warning_and_one_with_the_fingerprint_of_a_certificate_an_error() {
    let mut files = Files::new();
    let list = "[[lists]]\nname = \"march\"\npath = \"deny.txt\"\n";
    files.configuration = files.configuration.global(list);
    let path = files.pki.path("deny.txt");
    for empty in ["", "# none yet\n"] {
        std::fs::write(&path, empty).unwrap();
        let warnings = files.warnings();
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.starts_with("list \"march\": it has no entries"), "{warning}");
        let keygate = files.configuration.start(&files.pki);
        let message = "the list in use has no entries";
        let line = keygate.wait_for("the warning", |line| line["message"] == message);
        assert_eq!(line["problem"], **warning);
    }
    let leaked = files.pki.client("leaked", Kind::P256);
    let certificate = leaked.certificate.to_str().unwrap();
    let arguments = ["x509", "-noout", "-fingerprint", "-sha256", "-in", certificate];
    let printed = Command::new("openssl").args(arguments).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let (_, fingerprint) = printed.trim().split_once('=').unwrap();
    std::fs::write(&path, format!("# leaked\n{fingerprint}\n")).unwrap();
    let output = files.validate(&[]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    let error =
        "deny.txt: line 2: bytes with colons between them are the fingerprint of a certificate";
    assert!(output_text(&output).contains(error), "{}", output_text(&output));
    assert!(output_text(&output).contains("`keygate key --lists`"), "{}", output_text(&output));
    let lines = keygate(&["key", "--lists", certificate]);
    std::fs::write(&path, lines.stdout).unwrap();
    assert!(files.warnings().is_empty(), "the remedy works");
}

/// The log of a start that ends at once, because its address is taken. On a terminal, `environment`
/// precedes the command.
fn log_of_a_failed_start(environment: Option<&str>) -> String {
    let mut files = Files::new();
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let name = "server_names = [\"other.example\"]";
    files.configuration = files.configuration.service(name).set("services.listen", listen);
    std::fs::write(files.path(), files.configuration.text()).unwrap();
    let Some(environment) = environment else {
        return output_text(&keygate(&["run", &files.path()]));
    };
    let command = format!("{environment} {BINARY} run {}", files.path());
    let output = Command::new("script").args(["-qec", &command, "/dev/null"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_log_is_text_on_a_terminal_and_json_elsewhere() {
    let message = "certificate lacks a server name";
    let line = |log: &str| {
        let line = log.lines().find(|line| line.contains(message));
        line.unwrap_or_else(|| panic!("{log}")).to_owned()
    };
    let text = line(&log_of_a_failed_start(Some("NO_COLOR=")));
    assert!(
        !text.starts_with('{') && text.contains("\u{1b}[33m WARN\u{1b}[0m "),
        "with colour: {text}"
    );
    let plain = line(&log_of_a_failed_start(Some("NO_COLOR=1")));
    assert!(plain.contains(" WARN ") && !plain.contains('\u{1b}'), "without colour: {plain}");
    let json = line(&log_of_a_failed_start(None));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["message"], message);
}

#[test]
fn the_result_as_json_has_each_error_with_its_place_and_each_warning() {
    let mut files = Files::new();
    let parsed = |output: &Output, code: i32| -> serde_json::Value {
        assert_eq!(output.status.code(), Some(code), "{}", output_text(output));
        assert!(output.stderr.is_empty(), "{}", output_text(output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let valid = parsed(&files.validate(&["--json", "--strict"]), 0);
    assert_eq!((&valid["valid"], &valid["file"]), (&true.into(), &files.path().into()));
    assert_eq!((&valid["errors"], &valid["warnings"]), (&json!([]), &json!([])));
    assert_eq!(valid["filters"][0]["name"], "lost");
    assert_eq!(valid["services"][0]["on_probable"], "reject");

    let text = files.configuration.clone().set("workers", "two").text();
    let text = format!("wrokers = 1\n{text}");
    std::fs::write(files.path(), text).unwrap();
    let wrong = parsed(&keygate(&["validate", "--json", &files.path()]), 2);
    let errors = wrong["errors"].as_array().unwrap();
    assert_eq!((&errors[0]["line"], &errors[0]["field"]), (&json!(1), &json!("wrokers")));
    assert!(errors[0]["problem"].as_str().unwrap().contains("did you mean"), "{wrong}");
    assert!(errors.len() > 1 && wrong["valid"] == false && wrong["filters"].is_null(), "{wrong}");

    write_filter(&files.pki.path("lost.pkbf"), &[]);
    // One warning about a filter, and one that only this command makes.
    files.configuration = files.configuration.set("admin.listen", "203.0.113.1:9464");
    let warned = parsed(&files.validate(&["--json"]), 0);
    let rows = warned["warnings"].as_array().unwrap();
    let texts: Vec<_> = rows.iter().map(|row| row["text"].as_str().unwrap()).collect();
    assert_eq!(texts, files.warnings());
    let subjects: Vec<_> = rows.iter().map(|row| (&row["kind"], &row["name"])).collect();
    let of_address = (&json!("configuration"), &json!(null));
    assert_eq!(subjects, [(&json!("filter"), &json!("lost")), of_address]);
    assert_eq!(parsed(&files.validate(&["--json", "--strict"]), 2)["valid"], true);

    std::fs::write(files.pki.path("lost.pkbf"), "no filter").unwrap();
    let unusable = parsed(&files.validate(&["--json"]), 3);
    let text = unusable["errors"].to_string();
    assert!(text.contains("lost.pkbf"), "{text}");
    let missing = keygate(&["validate", "--json", "/nowhere/keygate.toml"]);
    assert!(parsed(&missing, 2)["errors"][0]["problem"].as_str().unwrap().contains("No such file"));
}

/// Guard: `placed` of each error, and `KeyLines` in `src/config/key_lines.rs`.
#[test]
fn every_error_of_what_the_configuration_names_has_the_line_of_its_key() {
    let pki = Pki::new();
    let listed = pki.server("server");
    write_filter(&pki.path("lost.pkbf"), &[b"a key"]);
    write_filter(&pki.path("own.pkbf"), &[&listed.spki]);
    std::fs::write(pki.path("empty.pem"), "").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("listen = \"{}\"", taken.local_addr().unwrap());
    let file = pki.path("keygate.toml");
    let base = MINIMAL.replace("127.0.0.1:8443", "127.0.0.1:0");
    let admin = "admin = { listen = \"127.0.0.1:0\" }\n";
    let with = |tables: &str| format!("{admin}{base}\n{tables}\n");
    let url = "[confirm]\nurl = \"http://127.0.0.1:1\"\n";
    let endpoint = "[traces]\nendpoint = \"http://127.0.0.1:1\"\n";
    let authorizer = "[[authorizers]]\nname = \"edge\"\nprotocol = \"spop\"\n";
    let own = with("").replace("lost.pkbf", "own.pkbf");
    let secure = |table: &str| with(&table.replace("http:", "https:"));
    for (text, key, problem, is_checked) in [
        (with("[confirm]\nproofs = \"gone\""), "proofs =", "confirm.proofs: directory ", true),
        (with(&format!("{url}api_key = \"gone\"")), "api_key =", "confirm.api_key ", true),
        (with(&format!("{url}api_key = \"empty.pem\"")), "api_key =", "confirm.api_key ", true),
        (with(&format!("{url}canary = \"gone\"")), "canary =", "confirm.canary ", true),
        (with(&format!("{url}canary = \"empty.pem\"")), "canary =", "confirm.canary ", true),
        (
            secure(&format!("{url}trust_anchors = \"empty.pem\"")),
            "trust_anchors = \"empty",
            "confirm.trust_anchors ",
            true,
        ),
        (with(&format!("{endpoint}headers = \"gone\"")), "headers =", "traces.headers ", true),
        (
            secure(&format!("{endpoint}trust_anchors = \"empty.pem\"")),
            "trust_anchors = \"empty",
            "traces.trust_anchors ",
            true,
        ),
        (with("[state]\ndir = \"gone\""), "dir =", "state.dir ", true),
        (with("[access_log]\npath = \".\""), "path = \".\"", "access_log.path ", true),
        (with("[access_log]\npath = \"gone/a\""), "path = \"gone", "access_log.path ", true),
        (
            with("").replace(admin, "[admin]\n\nlisten = \"unix:gone/a.sock\"\n"),
            "listen = \"unix:",
            "cannot listen on ",
            true,
        ),
        (
            with(&format!("{authorizer}listen = \"unix:gone/a.sock\"")),
            "listen = \"unix:",
            "cannot listen on ",
            true,
        ),
        (own.clone(), "tls =", "service \"orders\": the key of its server ", true),
        (
            own.replace("lost", "other").replace("ca.pem", "empty.pem"),
            "client_auth =",
            "service \"orders\": client_auth.trust_anchors ",
            true,
        ),
        // `validate` listens on no address.
        (
            with("").replace("listen = \"127.0.0.1:0\"\ntls", &format!("{taken}\ntls")),
            &taken,
            "cannot listen on ",
            false,
        ),
        (with(&format!("{authorizer}{taken}")), &taken, "cannot listen on ", false),
        (
            with("").replace(admin, &format!("[admin]\n{taken}\n")),
            &taken,
            "cannot listen on the admin address ",
            false,
        ),
    ] {
        std::fs::write(&file, &text).unwrap();
        let line = text.lines().position(|line| line.starts_with(key) || line.contains(key));
        let line = line.unwrap() + 1;
        let start = format!("keygate: {}:{line}: {problem}", file.display());
        for command in ["validate", "run"] {
            if command == "validate" && !is_checked {
                continue;
            }
            let output = keygate(&[command, "--config", file.to_str().unwrap()]);
            let printed = output_text(&output);
            assert!(!output.status.success(), "{command}: {printed}");
            assert!(printed.lines().any(|it| it.starts_with(&start)), "{start}: {printed}");
            assert!(!printed.contains("os error"), "{printed}");
        }
        if is_checked {
            let output = keygate(&["validate", "--json", "--config", file.to_str().unwrap()]);
            let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let errors = result["errors"].as_array().unwrap();
            assert!(errors.iter().any(|error| error["line"] == line), "{problem}: {result}");
        }
    }
}

#[test]
fn commands_from_anywhere_are_a_warning_unless_the_address_is_local() {
    let mut files = Files::new();
    let warning = "admin.commands: every peer that reaches 0.0.0.0:9464 can accept filter updates";
    for (listen, commands, is_open) in [
        ("0.0.0.0:9464", "anywhere", true),
        ("0.0.0.0:9464", "local", false),
        ("127.0.0.1:9464", "anywhere", false),
    ] {
        files.configuration = files.configuration.set("admin.listen", listen);
        files.configuration = files.configuration.set("admin.commands", commands);
        let warnings = files.warnings();
        assert_eq!(warnings.iter().any(|it| it.contains(warning)), is_open, "{warnings:?}");
    }
}
