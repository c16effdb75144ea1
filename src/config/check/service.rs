//! A service: what its protocol, its upstream and its policy say together.

use keygate_core::guard::{Decision, Policy, RejectWith};

use super::servers::server_forms;
use super::{Input, quoted};
use crate::config::{
    ClientAuthMode, Protocol, Scheme, SendProxy, ServerAddress, ServiceConfig, TlsConfig,
    UpstreamConfig, UpstreamHttp,
};

/// Maximum number of servers.
const MAX_SERVERS: usize = 1000;

impl ServiceConfig {
    /// Checks the service, and adds the rules by name to its policy.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        let auth = &self.client_auth;
        if !auth.has_cas() {
            let problem = "the key is missing; name a file with the CAs of the clients, or add [[services.client_auth.cas]]";
            input.report_at("client_auth.trust_anchors", problem);
        }
        self.policy.decisions.allow.clone_from(&auth.allow);
        optional_clients(input, auth.mode, &self.policy.decisions);
        servers_of_protocol(input, &mut self.upstream, self.protocol);
        match self.protocol {
            Protocol::Http if self.forward.send_proxy != SendProxy::Off => {
                let problem = "\"v2\" needs protocol = \"tcp\"; remove it, because HTTP upstreams get headers";
                input.report_at("forward.send_proxy", problem);
            }
            Protocol::Http => {}
            Protocol::Tcp => {
                without_http(input, &self.policy.decisions);
                self.policy.assertion = None;
                self.tls.alpn.clear();
            }
        }
    }
}

/// Checks that clients without a certificate can be admitted if the mode is `optional`.
pub(super) fn optional_clients(input: &Input<'_>, mode: ClientAuthMode, policy: &Policy) {
    if mode == ClientAuthMode::Required {
        return;
    }
    if policy.on_unchecked == Decision::Reject {
        let problem = "\"optional\" admits clients without a certificate, but on_unchecked = \"reject\" rejects them; set on_unchecked to \"flag\" or \"header\"";
        input.report_at("client_auth.mode", problem);
    }
    if policy.allow.is_some() {
        let problem = "names clients by their certificates, but mode = \"optional\" admits clients without one; set mode to \"required\"";
        input.report_at("client_auth.allow", problem);
    }
}

/// Checks that the servers have the protocol of the service.
fn servers_of_protocol(input: &Input<'_>, upstream: &mut UpstreamConfig, protocol: Protocol) {
    for (index, server) in upstream.servers.iter_mut().enumerate() {
        match (&server.address, protocol) {
            (ServerAddress::Unix(_), Protocol::Tcp) => server.scheme = Scheme::Tcp,
            (ServerAddress::Unix(_), Protocol::Http) => {}
            (ServerAddress::Tcp { .. }, Protocol::Http | Protocol::Tcp) => {
                if server.scheme.is_http() != (protocol == Protocol::Http) {
                    let (server, forms) = (quoted(&server.to_string()), server_forms(protocol));
                    let problem = format!("{server} is not an upstream; write {forms}");
                    input.report_at(&format!("upstream.servers[{index}]"), problem);
                }
            }
        }
    }
}

/// Rejects settings for HTTP of a TCP service.
fn without_http(input: &Input<'_>, policy: &Policy) {
    for key in ["tls.alpn", "upstream.health_check.path", "policy.assertion"] {
        if input.sets(key) {
            input.report_at(key, "has no effect with protocol = \"tcp\"; remove it");
        }
    }
    if policy.reject_with == RejectWith::Http403 {
        let problem = "\"http-403\" needs HTTP requests, but protocol is \"tcp\"; write \"alert\"";
        input.report_at("policy.reject_with", problem);
    }
    for (key, action) in [
        ("on_cleared", policy.on_cleared),
        ("on_confirmed", policy.on_confirmed),
        ("on_listed", policy.on_listed),
        ("on_probable", policy.on_probable),
        ("on_unchecked", policy.on_unchecked),
        ("on_weak", policy.on_weak),
    ] {
        if action == Decision::Annotate {
            let problem = "\"header\" needs HTTP requests, but protocol is \"tcp\"; write \"flag\" for a log line";
            input.report_at(&format!("policy.{key}"), problem);
        }
    }
}

impl TlsConfig {
    /// Checks that a protocol is offered.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        if self.alpn.is_empty() {
            input.report_at("alpn", "empty; give \"h2\", \"http/1.1\" or both");
        }
    }
}

impl UpstreamConfig {
    /// Checks the servers of an upstream.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        let servers = &self.servers;
        if !(1..=MAX_SERVERS).contains(&servers.len()) {
            let problem = format!("{} servers; give 1 to {MAX_SERVERS}", servers.len());
            input.report_at("servers", problem);
        }
        if let Some(secure) = servers.iter().find(|server| server.scheme.is_secure())
            && self.tls.is_none()
        {
            let problem = format!("{secure} needs CAs: give tls = {{ trust_anchors = \"...\" }}");
            input.report_at("tls", problem);
        }
        if let Some(h2c) = servers.iter().find(|server| server.scheme == Scheme::H2c)
            && self.http == UpstreamHttp::Http1
        {
            let problem = format!("{h2c} speaks HTTP/2 only; remove http, or write http://");
            input.report_at("http", problem);
        }
    }
}
