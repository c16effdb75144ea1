//! The configuration of the hosts that ask an authorizer: the parts about keygate of the files in
//! `deploy/authorizer`, which the tests run with the real programs.

use hyper::header::HeaderName;

use crate::config::{
    AuthorizerConfig, AuthorizerProtocol, CertificateSource, HeaderEncoding, ListenAddress,
};

/// The address of the authorizer in the files: a Unix socket, or TCP for hosts that have none.
const SOCKET: &str = "/run/keygate/ask.sock";
const TCP: &str = "127.0.0.1:9191";

/// The headers in the files.
const STATUS_HEADER: &str = "Client-Key-Status";
const CERTIFICATE_HEADER: &str = "X-SSL-Cert";
const VERIFY_HEADER: &str = "X-SSL-Verify";
const ADDRESS_HEADER: &str = "X-Real-IP";

/// A file of a host: the name of the host, the path, and the text. The parts about keygate are
/// between lines with the comments [`BEGIN`] and [`END`].
type HostFile = (&'static str, &'static str, &'static str);

const BEGIN: &str = "# keygate: begin";
const END: &str = "# keygate: end";

macro_rules! host_file {
    ($host:literal, $path:literal) => {
        (
            $host,
            concat!("deploy/authorizer/", $path),
            include_str!(concat!("../../deploy/authorizer/", $path)),
        )
    };
}

const CADDY: HostFile = host_file!("Caddy", "caddy/Caddyfile");
const ENVOY: HostFile = host_file!("Envoy", "envoy/envoy.yaml");
const ENVOY_HTTP: HostFile = host_file!("Envoy (HTTP)", "envoy-http/envoy.yaml");
const ENVOY_NETWORK: HostFile = host_file!("Envoy (network filter)", "envoy-network/envoy.yaml");
const ENVOY_XFCC: HostFile = host_file!("Envoy", "envoy-xfcc/envoy.yaml");
const HAPROXY: [HostFile; 4] = [
    host_file!("HAProxy", "haproxy/haproxy.cfg"),
    host_file!("HAProxy (engine)", "haproxy/keygate.spoe"),
    host_file!("HAProxy (connections)", "haproxy-tcp/haproxy.cfg"),
    host_file!("HAProxy (engine for connections)", "haproxy-tcp/keygate.spoe"),
];
const INGRESS_NGINX: HostFile =
    host_file!("ingress-nginx, not run by the tests", "snippets/ingress-nginx.yaml");
const NGINX: HostFile = host_file!("nginx", "nginx/nginx.conf");
const STEP_CA: HostFile = host_file!("step-ca, not run by the tests", "snippets/step-ca.sh");
const TRAEFIK: [HostFile; 2] = [
    host_file!("Traefik (entry point)", "traefik/traefik.yaml"),
    host_file!("Traefik", "traefik/dynamic.yaml"),
];

/// The lines for the host of an authorizer, each part with the name of the host and its file.
pub(super) fn snippets(config: &AuthorizerConfig) -> Vec<(String, String)> {
    use HeaderEncoding::{EscapedPem, Rfc9440};
    let files: &[HostFile] = match (config.protocol, &config.certificate_from) {
        (AuthorizerProtocol::ExtAuthz, CertificateSource::Xfcc) => &[ENVOY_XFCC],
        (AuthorizerProtocol::ExtAuthz, _) => &[ENVOY, ENVOY_NETWORK],
        (AuthorizerProtocol::Spop, _) => &HAPROXY,
        (AuthorizerProtocol::StepCa, _) => &[STEP_CA],
        // The manifests are in deploy/kubernetes/admission.
        (AuthorizerProtocol::Admission, _) => &[],
        (AuthorizerProtocol::Http, source) => match source {
            CertificateSource::ClientCert
            | CertificateSource::Header { encoding: Rfc9440, verify: None, .. } => &[CADDY],
            // Only nginx has a value for `verify`.
            CertificateSource::Header { encoding: EscapedPem, verify: Some(_), .. } => &[NGINX],
            CertificateSource::Header { encoding: EscapedPem, verify: None, .. } => {
                &[ENVOY_HTTP, NGINX]
            }
            CertificateSource::IngressNginx => &[INGRESS_NGINX],
            CertificateSource::Traefik => &TRAEFIK,
            CertificateSource::Argument
            | CertificateSource::Attributes
            | CertificateSource::Body
            | CertificateSource::Header { .. }
            | CertificateSource::Xfcc => &[],
        },
    };
    let files = files.iter().map(|(host, path, text)| {
        let mut parts = with_names(&at_address(&parts(text), &config.listen), config);
        if let Some(assertion) = &config.policy.assertion {
            let name = assertion.header.as_str();
            parts += &format!("# The lines for {name}: docs/assertion.md, \"Authorizers\"\n");
        }
        (format!("{host} (from {path})"), parts)
    });
    files.collect()
}

/// The parts of a file that are about keygate, each without the indent of its markers.
fn parts(text: &str) -> String {
    let mut parts = Vec::new();
    let mut indent = None;
    for line in text.lines() {
        match line.trim_start() {
            BEGIN => indent = Some(line.len() - BEGIN.len()),
            END => {
                indent = None;
                parts.push("");
            }
            _ => parts.extend(indent.map(|indent| line.get(indent..).unwrap_or_default())),
        }
    }
    parts.join("\n")
}

/// `text` with the address of an authorizer.
fn at_address(text: &str, listen: &ListenAddress) -> String {
    match listen {
        ListenAddress::Tcp(address) => {
            let pipe = format!("pipe: {{ path: {SOCKET} }}");
            let (ip, port) = (address.ip(), address.port());
            let socket = format!("socket_address: {{ address: {ip}, port_value: {port} }}");
            let forms = ["unix:", "unix/", "unix@"].map(|scheme| format!("{scheme}{SOCKET}"));
            let forms = forms.iter().map(String::as_str).chain([TCP]);
            forms.fold(text.replace(&pipe, &socket), |text, form| {
                text.replace(form, &address.to_string())
            })
        }
        ListenAddress::Unix(path) => {
            // The host has another working directory.
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            text.replace(SOCKET, &absolute.display().to_string())
        }
    }
}

/// `text` with the header names of an authorizer. Lines for a header that it does not read are left
/// out.
fn with_names(text: &str, config: &AuthorizerConfig) -> String {
    let mut names = vec![(STATUS_HEADER, Some(&config.policy.header))];
    if config.protocol == AuthorizerProtocol::Http {
        names.push((ADDRESS_HEADER, config.address_from.as_ref()));
        if let CertificateSource::Header { header, encoding, verify } = &config.certificate_from {
            let is_caddy = *encoding == HeaderEncoding::Rfc9440;
            // Caddy has one line that removes the chain of the client, which nothing reads here.
            names.extend(is_caddy.then_some(("Client-Cert-Chain", None)));
            names.push((if is_caddy { "Client-Cert" } else { CERTIFICATE_HEADER }, Some(header)));
            names.push((VERIFY_HEADER, verify.as_ref()));
        }
    }
    let renamed = |text: String, (name, wanted): (&str, Option<&HeaderName>)| match wanted {
        Some(wanted) if wanted.as_str().eq_ignore_ascii_case(name) => text,
        Some(wanted) => renamed(&text, name, wanted.as_str()),
        None => without_lines(&text, name),
    };
    names.into_iter().fold(text.to_owned(), renamed)
}

/// `text` with another name for the header `name`: as it is, and in lower case. The files have the
/// status header as a variable of nginx and as a regular expression of HAProxy, too.
fn renamed(text: &str, name: &str, wanted: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let with_separator = |text: String, separator: &str| {
        text.replace(&lower.replace('-', separator), &wanted.replace('-', separator))
    };
    let separators: &[&str] = if name == STATUS_HEADER { &["-", "_", "."] } else { &["-"] };
    separators.iter().copied().fold(text.replace(name, wanted), with_separator)
}

/// `text` without the lines that contain `name` in any case.
fn without_lines(text: &str, name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let has_name = |line: &&str| !line.to_ascii_lowercase().contains(&name);
    text.split_inclusive('\n').filter(has_name).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    const FILES: [HostFile; 8] =
        [NGINX, CADDY, ENVOY, ENVOY_NETWORK, ENVOY_XFCC, ENVOY_HTTP, INGRESS_NGINX, STEP_CA];

    fn files() -> impl Iterator<Item = HostFile> {
        FILES.into_iter().chain(HAPROXY).chain(TRAEFIK)
    }

    #[test]
    fn every_part_is_whole() {
        for (_, path, text) in files() {
            let part = parts(text);
            let count = |bracket: char| part.matches(bracket).count();
            assert!(!part.is_empty() && count('{') == count('}'), "{path}: {part}");
            assert_eq!(text.matches(BEGIN).count(), text.matches(END).count(), "{path}");
        }
        let nginx = parts(NGINX.2);
        assert!(nginx.contains("\n}\n") && nginx.contains("\n    proxy_pass_request_headers off;"));
    }

    /// The cluster, the server or the backend of keygate is printed once for two hooks.
    #[test]
    fn every_line_about_keygate_is_in_a_part() {
        let printed: Vec<String> = files().map(|(_, _, text)| parts(text)).collect();
        let lines: HashSet<_> =
            printed.iter().flat_map(|part| part.lines().map(str::trim)).collect();
        for (_, path, text) in files() {
            for line in text.lines().map(str::trim) {
                let lower = line.to_ascii_lowercase().replace(['_', '.'], "-");
                let is_about_keygate = ["keygate", "key-status", "alias", "upgrade"]
                    .iter()
                    .any(|word| lower.contains(word));
                let is_comment = line.starts_with('#');
                assert!(is_comment || !is_about_keygate || lines.contains(line), "{path}: {line}");
            }
        }
    }

    #[test]
    fn a_part_has_the_address_of_the_authorizer() {
        let path = ListenAddress::Unix("/run/other.sock".into());
        let text = at_address(&parts(CADDY.2), &path);
        assert!(text.contains("\nforward_auth unix//run/other.sock {"), "{text}");
        let tcp = ListenAddress::Tcp("127.0.0.1:7".parse().unwrap());
        let text = at_address(&parts(ENVOY.2), &tcp);
        assert!(text.contains("{ address: 127.0.0.1, port_value: 7 }"), "{text}");
    }

    /// Each part with its host and file, for an authorizer with these keys.
    fn parts_for(keys: &str) -> Vec<(String, String)> {
        let text = format!(
            "[[filters]]\nname = \"lost\"\npath = \"lost.pkbf\"\n[[authorizers]]\n\
             name = \"edge\"\nlisten = \"127.0.0.1:9191\"\n{keys}"
        );
        let config = Config::parse(Path::new("keygate.toml"), &text).unwrap();
        snippets(&config.authorizers[0])
    }

    /// Envoy over HTTP has no value for `verify`. The engine of HAProxy for connections asks
    /// another question than the one for requests.
    #[test]
    fn the_files_of_each_host_come_in_order() {
        let escaped = "protocol = \"http\"\n\
                       certificate_from = { header = \"X-A\", encoding = \"escaped-pem\" }\n";
        for (keys, expected) in [
            (escaped, &["envoy-http/envoy.yaml", "nginx/nginx.conf"][..]),
            (
                "protocol = \"spop\"\n",
                &[
                    "haproxy/haproxy.cfg",
                    "haproxy/keygate.spoe",
                    "haproxy-tcp/haproxy.cfg",
                    "haproxy-tcp/keygate.spoe",
                ],
            ),
        ] {
            let parts = parts_for(keys);
            assert_eq!(parts.len(), expected.len());
            for ((host, text), file) in parts.iter().zip(expected) {
                assert!(host.ends_with(&format!("(from deploy/authorizer/{file})")), "{host}");
                let of_connections = file.contains("-tcp/keygate.spoe");
                assert_eq!(
                    text.contains("spoe-message keygate-connection"),
                    of_connections,
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_part_names_the_lines_for_assertions() {
        let keys = "protocol = \"spop\"\npolicy = { assertion = { issuer = \"a\", \
                    signing_keys = [{ file = \"a.key\" }] } }\n";
        for (_, text) in parts_for(keys) {
            assert!(text.ends_with(
                "# The lines for keygate-assertion: docs/assertion.md, \"Authorizers\"\n"
            ));
        }
        let without = parts_for("protocol = \"spop\"\n");
        assert!(without.iter().all(|(_, text)| !text.contains("assertion")));
    }

    #[test]
    fn a_part_has_the_header_names_of_the_authorizer() {
        let snippets_of =
            |keys: &str| parts_for(keys).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        let http = |source: &str| format!("protocol = \"http\"\ncertificate_from = {source}\n");
        let all = "{ header = \"X-A\", encoding = \"escaped-pem\", verify = \"X-B\" }";
        let all = http(all) + "address_from = \"X-C\"\npolicy = { header = \"X-Key-D\" }\n";
        let [nginx] = &snippets_of(&all)[..] else { panic!("only nginx has a value for verify") };
        for line in [
            "proxy_set_header x-a   $ssl_client_escaped_cert;",
            "proxy_set_header x-b $ssl_client_verify;",
            "proxy_set_header x-c    $remote_addr;",
            "$upstream_http_x_key_d;",
            "proxy_set_header x-key-d $key_status;",
        ] {
            assert!(nginx.contains(line), "{line}: {nginx}");
        }
        let two = snippets_of(&http("{ header = \"X-A\", encoding = \"escaped-pem\" }"));
        for (text, line) in two.iter().zip(["x-real-ip", "X-SSL-Verify"]) {
            assert!(!text.contains(line) && text.contains("x-a"), "{text}");
        }
        assert_eq!(two.len(), 2);
        let caddy = &snippets_of(&http("{ header = \"X-A\", encoding = \"rfc9440\" }"))[0];
        assert!(caddy.contains("header_up x-a \":{") && !caddy.contains("Client-Cert"), "{caddy}");
        let haproxy = snippets_of("protocol = \"spop\"\npolicy = { header = \"X-Key-D\" }\n");
        for line in ["del-header ^x.key.d$ ", "set-header x-key-d %[var(txn.keygate.status)]"] {
            assert!(haproxy[0].contains(line), "{haproxy:?}");
        }
    }
}
