//! URLs of upstream servers.

use hyper::Uri;

use super::{Input, Taken, quoted};
use crate::config::form::Form;
use crate::config::keys::takes;
use crate::config::texts::socket_path;
use crate::config::upstream::{ServerUrl, WeightedServer};
use crate::config::{Protocol, Scheme, ServerAddress, ServerConfig, SourceUrl};

takes! {
    ServerUrl => (Scheme, ServerAddress), Form::Text, |input| server(input, input.text::<Self>()?);
    ServerConfig => Self, WeightedServer::form().or_text(), |input| {
        if !input.is_table() {
            let (scheme, address) = server(input, input.text::<Self>()?)?;
            return Ok(Self { scheme, address, weight: 1 });
        }
        let WeightedServer { url: (scheme, address), weight } = WeightedServer::take(input)?;
        Ok(Self { scheme, address, weight })
    };
}

/// The URLs of servers of a service with this protocol.
pub(super) fn server_forms(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => {
            "\"http://HOST:PORT\", \"https://HOST:PORT\", \"h2c://HOST:PORT\" or \"unix:/PATH\""
        }
        Protocol::Tcp => "\"HOST:PORT\", \"tls://HOST:PORT\" or \"unix:/PATH\"",
    }
}

/// The address of a server. A Unix socket has the scheme of HTTP servers.
fn server(input: &Input<'_>, url: &str) -> Taken<(Scheme, ServerAddress)> {
    if let Some(path) = url.strip_prefix("unix:")
        && !url.contains("://")
    {
        return Ok((Scheme::Http, ServerAddress::Unix(socket_path(input, path)?)));
    }
    tcp_server(url).ok_or_else(|| {
        input.report(format!(
            "{} is not an upstream; write {}, or with protocol = \"tcp\" {}",
            quoted(&SourceUrl::without_credentials(url)),
            server_forms(Protocol::Http),
            server_forms(Protocol::Tcp)
        ))
    })
}

fn tcp_server(url: &str) -> Option<(Scheme, ServerAddress)> {
    let (scheme, rest) = match url.split_once("://") {
        Some(("h2c", rest)) => (Scheme::H2c, rest),
        Some(("http", rest)) => (Scheme::Http, rest),
        Some(("https", rest)) => (Scheme::Https, rest),
        Some(("tls", rest)) => (Scheme::Tls, rest),
        None => (Scheme::Tcp, url),
        Some(_) => return None,
    };
    let uri: Uri = format!("http://{rest}").parse().ok()?;
    let (Some(authority), "/", None) = (uri.authority(), uri.path(), uri.query()) else {
        return None;
    };
    // A port above 65535 must not become the default.
    let has_port = authority.as_str().rsplit(']').next().is_some_and(|it| it.contains(':'));
    let port = match scheme {
        _ if has_port => authority.port_u16(),
        Scheme::Http | Scheme::H2c => Some(80),
        Scheme::Https => Some(443),
        Scheme::Tcp | Scheme::Tls => None,
    };
    let (Some(port), false) = (port, url.contains('@')) else { return None };
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    Some((scheme, ServerAddress::Tcp { host, port }))
}
