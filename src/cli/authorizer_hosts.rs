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

/// A file of a host, and the first words of the parts about keygate.
struct HostFile {
    host: &'static str,
    path: &'static str,
    text: &'static str,
    parts: &'static [&'static str],
}

macro_rules! host_file {
    ($host:literal, $path:literal, $parts:expr) => {
        HostFile {
            host: $host,
            path: concat!("deploy/authorizer/", $path),
            text: include_str!(concat!("../../deploy/authorizer/", $path)),
            parts: &$parts,
        }
    };
}

const NGINX: HostFile = host_file!(
    "nginx",
    "nginx/nginx.conf",
    [
        "upstream keygate {",
        "map $http_upgrade ",
        "map $upgrade ",
        "auth_request ",
        "auth_request_set ",
        "proxy_set_header Client-Key-Status ",
        "proxy_set_header Upgrade ",
        "proxy_set_header Connection ",
        "location = /keygate {"
    ]
);
const CADDY: HostFile = host_file!(
    "Caddy",
    "caddy/Caddyfile",
    ["@no-websocket ", "request_header ", "forward_auth ", "reverse_proxy "]
);
const TRAEFIK: HostFile =
    host_file!("Traefik", "traefik/dynamic.yaml", ["upgrades:", "client-certificate:", "keygate:"]);
const TRAEFIK_ENTRY_POINT: HostFile =
    host_file!("Traefik (entry point)", "traefik/traefik.yaml", ["http:"]);
const ENVOY: HostFile = host_file!(
    "Envoy",
    "envoy/envoy.yaml",
    [
        "upgrade_configs:",
        "- name: envoy.filters.http.header_mutation",
        "- name: envoy.filters.http.ext_authz",
        "- name: keygate"
    ]
);
const ENVOY_NETWORK: HostFile = host_file!(
    "Envoy (network filter)",
    "envoy-network/envoy.yaml",
    ["- name: envoy.filters.network.ext_authz"]
);
const ENVOY_XFCC: HostFile = host_file!(
    "Envoy",
    "envoy-xfcc/envoy.yaml",
    [
        "forward_client_cert_details:",
        "set_current_client_cert_details:",
        "upgrade_configs:",
        "- name: envoy.filters.http.header_mutation",
        "- name: envoy.filters.http.ext_authz",
        "- name: keygate"
    ]
);
const ENVOY_HTTP: HostFile = host_file!(
    "Envoy (HTTP)",
    "envoy-http/envoy.yaml",
    [
        "upgrade_configs:",
        "- name: envoy.filters.http.header_mutation",
        "- name: envoy.filters.http.ext_authz",
        "- name: keygate"
    ]
);

const INGRESS_NGINX: HostFile = host_file!(
    "ingress-nginx, not run by the tests",
    "snippets/ingress-nginx.yaml",
    ["annotations:"]
);
const HAPROXY: HostFile =
    host_file!("HAProxy", "haproxy/haproxy.cfg", ["frontend edge", "backend keygate"]);
const HAPROXY_ENGINE: HostFile = host_file!(
    "HAProxy (engine)",
    "haproxy/keygate.spoe",
    ["[keygate]", "spoe-agent keygate", "spoe-message keygate-request", "spoe-group request"]
);
const HAPROXY_TCP: HostFile =
    host_file!("HAProxy (connections)", "haproxy-tcp/haproxy.cfg", ["frontend edge"]);
const HAPROXY_TCP_ENGINE: HostFile = host_file!(
    "HAProxy (engine for connections)",
    "haproxy-tcp/keygate.spoe",
    ["[keygate]", "spoe-agent keygate", "spoe-message keygate-connection", "spoe-group connection"]
);

/// The lines for the host of an authorizer, each part with the name of the host and its file.
pub(super) fn snippets(config: &AuthorizerConfig) -> Vec<(String, String)> {
    let files: &[HostFile] = match (config.protocol, &config.certificate_from) {
        (AuthorizerProtocol::ExtAuthz, CertificateSource::Xfcc) => &[ENVOY_XFCC],
        (AuthorizerProtocol::ExtAuthz, _) => &[ENVOY, ENVOY_NETWORK],
        (AuthorizerProtocol::Spop, _) => {
            &[HAPROXY, HAPROXY_ENGINE, HAPROXY_TCP, HAPROXY_TCP_ENGINE]
        }
        (AuthorizerProtocol::Http, source) => match source {
            CertificateSource::ClientCert => &[CADDY],
            // Only nginx has a value for `verify`.
            CertificateSource::Header {
                encoding: HeaderEncoding::EscapedPem,
                verify: Some(_),
                ..
            } => &[NGINX],
            CertificateSource::Header {
                encoding: HeaderEncoding::EscapedPem,
                verify: None,
                ..
            } => &[ENVOY_HTTP, NGINX],
            CertificateSource::Header {
                encoding: HeaderEncoding::Rfc9440, verify: None, ..
            } => &[CADDY],
            CertificateSource::IngressNginx => &[INGRESS_NGINX],
            CertificateSource::Traefik => &[TRAEFIK_ENTRY_POINT, TRAEFIK],
            CertificateSource::Argument
            | CertificateSource::Attributes
            | CertificateSource::Header { .. }
            | CertificateSource::Xfcc => &[],
        },
    };
    let files = files.iter().map(|file| {
        let parts = file.parts.iter().filter_map(|start| part(file.text, start));
        let parts = parts.collect::<Vec<_>>().join("\n");
        let parts = with_names(&at_address(&parts, &config.listen), config);
        (format!("{} (from {})", file.host, file.path), parts)
    });
    files.collect()
}

/// The part that begins with `start`: its line, the deeper lines below, and a closing bracket.
fn part(text: &str, start: &str) -> Option<String> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with(start));
    let first = lines.next()?;
    let indent = depth(first);
    let mut part = vec![first.trim_start().to_owned()];
    for line in lines {
        let is_inside = line.trim().is_empty() || depth(line) > indent;
        let is_end = depth(line) == indent && line.trim_start().starts_with('}');
        if !is_inside && !is_end {
            break;
        }
        part.push(line.get(indent..).unwrap_or_default().to_owned());
        if is_end {
            break;
        }
    }
    while part.last().is_some_and(String::is_empty) {
        part.pop();
    }
    Some(part.join("\n") + "\n")
}

/// `text` with the address of an authorizer.
fn at_address(text: &str, listen: &ListenAddress) -> String {
    match listen {
        ListenAddress::Tcp(address) => text
            .replace(&format!("unix:{SOCKET}"), &address.to_string())
            .replace(&format!("unix/{SOCKET}"), &address.to_string())
            .replace(&format!("unix@{SOCKET}"), &address.to_string())
            .replace(
                &format!("pipe: {{ path: {SOCKET} }}"),
                &format!(
                    "socket_address: {{ address: {}, port_value: {} }}",
                    address.ip(),
                    address.port()
                ),
            )
            .replace(TCP, &address.to_string()),
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
    let mut names = vec![(STATUS_HEADER, Some(&config.status_header))];
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

    const FILES: [HostFile; 13] = [
        NGINX,
        CADDY,
        TRAEFIK,
        TRAEFIK_ENTRY_POINT,
        ENVOY,
        ENVOY_NETWORK,
        ENVOY_XFCC,
        ENVOY_HTTP,
        HAPROXY,
        HAPROXY_ENGINE,
        HAPROXY_TCP,
        HAPROXY_TCP_ENGINE,
        INGRESS_NGINX,
    ];

    #[test]
    fn every_part_is_found_and_whole() {
        for file in FILES {
            for start in file.parts {
                let part = part(file.text, start).unwrap_or_else(|| panic!("{start}"));
                let count = |bracket: char| part.matches(bracket).count();
                assert_eq!(count('{'), count('}'), "{}: {part}", file.path);
            }
        }
        let nginx = part(NGINX.text, "location = /keygate {").unwrap();
        assert!(nginx.ends_with("}\n") && nginx.contains("proxy_pass_request_headers off;"));
    }

    /// The cluster, the server or the backend of keygate is printed once for two hooks.
    #[test]
    fn every_line_about_keygate_is_in_a_part() {
        let parts = FILES
            .iter()
            .flat_map(|file| file.parts.iter().filter_map(|start| part(file.text, start)));
        let printed: Vec<String> = parts.collect();
        let lines: HashSet<_> =
            printed.iter().flat_map(|part| part.lines().map(str::trim)).collect();
        for file in FILES {
            for line in file.text.lines().map(str::trim) {
                // Envoy passes on the upgrades that it lists.
                let is_list =
                    ["upgrade_configs:", "- upgrade_type:"].iter().any(|it| line.starts_with(it));
                let lower = line.to_ascii_lowercase().replace(['_', '.'], "-");
                let is_about_keygate = ["keygate", "key-status", "alias", "upgrade"]
                    .iter()
                    .any(|word| lower.contains(word));
                let is_comment = line.starts_with('#');
                assert!(
                    is_comment || is_list || !is_about_keygate || lines.contains(line),
                    "{}: {line}",
                    file.path
                );
            }
        }
    }

    #[test]
    fn a_part_has_the_address_of_the_authorizer() {
        let path = ListenAddress::Unix("/run/other.sock".into());
        let text = at_address(&part(CADDY.text, "forward_auth ").unwrap(), &path);
        assert!(text.starts_with("forward_auth unix//run/other.sock {"), "{text}");
        let tcp = ListenAddress::Tcp("127.0.0.1:7".parse().unwrap());
        let text = at_address(&part(ENVOY.text, "- name: keygate").unwrap(), &tcp);
        assert!(text.contains("{ address: 127.0.0.1, port_value: 7 }"), "{text}");
    }

    #[test]
    fn a_part_has_the_header_names_of_the_authorizer() {
        let snippets_of = |keys: &str| {
            let text = format!(
                "[[filters]]\nname = \"lost\"\npath = \"lost.pkbf\"\n[[authorizers]]\n\
                 name = \"edge\"\nlisten = \"127.0.0.1:9191\"\n{keys}"
            );
            let config = Config::parse(Path::new("keygate.toml"), &text).unwrap();
            let snippets = snippets(&config.authorizers[0]).into_iter();
            snippets.map(|(_, text)| text).collect::<Vec<_>>()
        };
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
