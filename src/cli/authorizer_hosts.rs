//! The configuration of the hosts that ask an authorizer: the parts about keygate of the files in
//! `deploy/authorizer`, which the tests run with the real programs.

use hyper::header::HeaderName;

use crate::config::{
    AuthorizerConfig, AuthorizerProtocol, CertificateSource, HeaderEncoding, ListenAddress,
};

/// The address of the authorizer in the files: a Unix socket, or TCP for hosts that have none.
const SOCKET: &str = "/run/keygate/ask.sock";
const TCP: &str = "127.0.0.1:9191";

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
    ["upstream keygate {", "location = /keygate {", "location / {"]
);
const CADDY: HostFile = host_file!("Caddy", "caddy/Caddyfile", ["forward_auth "]);
const TRAEFIK: HostFile =
    host_file!("Traefik", "traefik/dynamic.yaml", ["client-certificate:", "keygate:"]);
const ENVOY: HostFile = host_file!(
    "Envoy",
    "envoy/envoy.yaml",
    ["- name: envoy.filters.http.ext_authz", "- name: keygate"]
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
        "- name: envoy.filters.http.ext_authz",
        "- name: keygate"
    ]
);
const ENVOY_HTTP: HostFile = host_file!(
    "Envoy (HTTP)",
    "envoy-http/envoy.yaml",
    ["- name: envoy.filters.http.ext_authz", "- name: keygate"]
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

/// The lines for the host of an authorizer, each part with the name of the host and its file.
pub(super) fn snippets(config: &AuthorizerConfig) -> Vec<(String, String)> {
    let files: &[HostFile] = match (config.protocol, &config.certificate_from) {
        (AuthorizerProtocol::ExtAuthz, CertificateSource::Xfcc) => &[ENVOY_XFCC],
        (AuthorizerProtocol::ExtAuthz, _) => &[ENVOY, ENVOY_NETWORK],
        (AuthorizerProtocol::Spop, _) => &[HAPROXY, HAPROXY_ENGINE],
        (AuthorizerProtocol::Http, source) => match source {
            CertificateSource::ClientCert => &[CADDY],
            CertificateSource::Header { encoding: HeaderEncoding::EscapedPem, .. } => {
                &[NGINX, ENVOY_HTTP]
            }
            CertificateSource::Header { encoding: HeaderEncoding::Rfc9440, .. } => &[CADDY],
            CertificateSource::IngressNginx => &[INGRESS_NGINX],
            CertificateSource::Traefik => &[TRAEFIK],
            CertificateSource::Argument
            | CertificateSource::Attributes
            | CertificateSource::Header { encoding: HeaderEncoding::Base64Der, .. }
            | CertificateSource::Xfcc => &[],
        },
    };
    let files = files.iter().map(|file| {
        let parts = file.parts.iter().filter_map(|start| part(file.text, start));
        let parts = parts.collect::<Vec<_>>().join("\n");
        let parts = with_header_names(&at_address(&parts, &config.listen), config);
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
        ListenAddress::Unix(path) => text.replace(SOCKET, &path.display().to_string()),
    }
}

/// `text` with the names of the headers that an authorizer reads, and without those that it does not.
fn with_header_names(text: &str, config: &AuthorizerConfig) -> String {
    let (certificate, verify) = match &config.certificate_from {
        CertificateSource::Header { header, verify, .. } => (Some(header), verify.as_ref()),
        CertificateSource::Argument
        | CertificateSource::Attributes
        | CertificateSource::ClientCert
        | CertificateSource::IngressNginx
        | CertificateSource::Traefik
        | CertificateSource::Xfcc => (None, None),
    };
    let address = config.address_from.as_ref();
    let lines = text.lines().filter_map(|line| {
        let line = renamed(line, "X-SSL-Verify", verify)?;
        let line = renamed(&line, "X-Real-IP", address)?;
        match certificate {
            None => Some(line),
            Some(_) if line.contains("-Client-Cert-Chain") => Some(line),
            Some(_) => renamed(&line, "X-SSL-Cert", certificate)
                .and_then(|line| renamed(&line, "Client-Cert", certificate)),
        }
    });
    lines.map(|line| line + "\n").collect()
}

/// A line with another header name; `None` if it is about a header that the authorizer does not
/// read. Names in the files are in their usual spelling or in lower case.
fn renamed(line: &str, usual: &str, name: Option<&HeaderName>) -> Option<String> {
    let lower = usual.to_ascii_lowercase();
    let found = [usual, lower.as_str()].into_iter().find(|name| line.contains(name));
    match (found, name) {
        (None, _) => Some(line.to_owned()),
        (Some(_), None) => None,
        (Some(_), Some(name)) if *name == lower.as_str() => Some(line.to_owned()),
        (Some(found), Some(name)) => Some(line.replace(found, name.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_found_and_whole() {
        for file in [
            NGINX,
            CADDY,
            TRAEFIK,
            ENVOY,
            ENVOY_NETWORK,
            ENVOY_XFCC,
            ENVOY_HTTP,
            HAPROXY,
            HAPROXY_ENGINE,
            INGRESS_NGINX,
        ] {
            for start in file.parts {
                let part = part(file.text, start).unwrap_or_else(|| panic!("{start}"));
                let count = |bracket: char| part.matches(bracket).count();
                assert_eq!(count('{'), count('}'), "{}: {part}", file.path);
            }
        }
        let nginx = part(NGINX.text, "location = /keygate {").unwrap();
        assert!(nginx.ends_with("}\n") && nginx.contains("proxy_pass_request_headers off;"));
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
}
