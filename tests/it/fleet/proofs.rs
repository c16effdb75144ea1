//! `deploy/fleet/proofs-cache.conf`: nginx in front of the source of proofs.

use std::fs::{create_dir, read_to_string, write};
use std::process::Command;

use crate::support::keygate::Keygate;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::{Program, reserved_address};
use crate::support::proof_source::{ProofSource, fingerprint, respond};
use crate::support::proxy::{Configuration, Configure, Proxy};
use crate::support::{output_text, skip, wait_until, write_filter};

/// Starts nginx with the file of the example. Returns the URL.
fn cache(pki: &Pki, source: &ProofSource) -> (String, Program) {
    let address = reserved_address();
    let text = |name: &str| pki.path(name).display().to_string();
    let mut server = read_to_string("deploy/fleet/proofs-cache.conf").unwrap();
    for (documented, used) in [
        ("listen 443 ssl", format!("listen {address} ssl")),
        ("proxy_pass https://v1.pwnedkeys.com", format!("proxy_pass {}", source.url())),
        ("/var/cache/nginx/proofs", text("cache")),
        ("/etc/nginx/proofs.pem", text("server.pem")),
        ("/etc/nginx/proofs.key", text("server.key")),
        ("/etc/nginx/proofs.secret", text("proofs.secret")),
        ("allow 10.0.0.0/8", "allow 127.0.0.0/8".to_owned()),
        ("proxy_cache_valid 404 1h", "proxy_cache_valid 404 1s".to_owned()),
    ] {
        assert!(server.contains(documented), "{documented}");
        server = server.replace(documented, &used);
    }
    write(pki.path("proofs.secret"), "proxy_set_header Authorization \"Bearer of-the-fleet\";\n")
        .unwrap();
    write(
        pki.path("nginx.conf"),
        format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;\nevents {{}}\n\
             http {{ access_log off; client_body_temp_path b; proxy_temp_path p;\n\
             fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;\n{server}}}\n"
        ),
    )
    .unwrap();
    let mut nginx = Command::new("nginx");
    nginx.arg("-p").arg(pki.directory()).arg("-c").arg(pki.path("nginx.conf"));
    (format!("https://{address}"), Program::start(&mut nginx).listening_on(address))
}

/// The questions about a key that the source got, by their heads.
fn questions(heads: &[(String, String)], party: &Party) -> usize {
    heads.iter().filter(|(asked, _)| *asked == fingerprint(party)).count()
}

#[test]
fn the_fleet_asks_each_question_once_with_one_key_and_a_404_expires() {
    if skip::without("nginx") {
        return;
    }
    let proxy = Proxy::new();
    let proved = proxy.pki.client("proved", Kind::P256);
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki, &proved.spki]);
    let source = ProofSource::start();
    let settings = source.settings(&proxy.pki, "1h");
    source.prove(&proved);
    let (url, _nginx) = cache(&proxy.pki, &source);
    let settings = settings.replace(&source.url(), &url);
    let proxy = proxy.global(&settings).add("confirm", "trust_anchors = \"ca.pem\"");
    let instance = |name: &str, configuration: &Configuration| {
        let directory = proxy.pki.path(name);
        create_dir(&directory).unwrap();
        for entry in std::fs::read_dir(proxy.pki.directory()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
            }
        }
        let keygate = Keygate::in_directory(&directory, &configuration.text());
        source.wait_for_canary(&keygate);
        keygate
    };
    let instances = ["one", "two", "three"].map(|name| instance(name, &proxy.configuration));
    for keygate in &instances {
        assert_eq!(keygate.curl(&proxy.lost, &[]).stdout, b"hello\n", "cleared");
        assert_ne!(keygate.curl(&proved, &[]).stdout, b"hello\n", "confirmed");
    }
    let asked = |source: &ProofSource| -> Vec<_> {
        source.taken().into_iter().map(|it| (it.fingerprint, it.head)).collect()
    };
    let heads = asked(&source);
    assert_eq!(questions(&heads, &proved), 1, "{heads:#?}");
    for (_, head) in &heads {
        let head = head.to_ascii_lowercase();
        assert!(head.contains("authorization: bearer of-the-fleet\r\n"), "{head}");
        assert!(!head.contains("user-agent"), "{head}");
    }
    // Another spelling of a page is not asked about, and leaves the cache as it is.
    for path in [format!("/{}?x", fingerprint(&proved)), format!("//{}", fingerprint(&proved))] {
        let page = format!("{url}{path}");
        let mut curl = Command::new("curl");
        curl.args(["-s", "--path-as-is", "-w", "%{http_code}", "--cacert"]);
        let output = curl.arg(proxy.pki.path("ca.pem")).arg(page).output().unwrap();
        assert!(output.stdout.ends_with(b"404"), "{path}: {}", output_text(&output));
        assert!(asked(&source).is_empty(), "{path}");
    }
    // An expired 404 is asked again, and not used while the source fails.
    source.reply(&proxy.lost, respond("503 Service Unavailable", "", ""));
    let page = format!("{url}/{}", fingerprint(&proxy.lost));
    let code = || {
        let ca = proxy.pki.path("ca.pem");
        let arguments = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"];
        let output = Command::new("curl").args(arguments).arg(ca).arg(&page).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    wait_until("the end of the cached 404", || code() == "503");
    // A proof is in the cache while the source fails.
    source.reply(&proved, respond("503 Service Unavailable", "", ""));
    let fourth = instance("four", &proxy.configuration);
    assert_ne!(fourth.curl(&proved, &[]).stdout, b"hello\n");
    fourth.wait_for_metric("keygate_confirmations_total{result=\"confirmed\"}", 1.0);
    assert_eq!(questions(&asked(&source), &proved), 0);
}
