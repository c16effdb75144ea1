//! Checks an authorizer: address, source of the certificate, askers, verification and policy.

mod askers;
mod certificate_source;

use std::collections::HashSet;
use std::time::Duration;

use hyper::header::HeaderName;
use keygate_core::guard::{Decision, Policy};

use super::super::{
    AskersConfig, AuthorizerConfig, AuthorizerLimits, AuthorizerProtocol, AuthorizerTls,
    ClientAuthMode, ClientChecks, ListenAddress, ServiceConfig, raw,
};
use super::Checker;
use super::service::merge;

/// Maximum number of hyphens and underscores in the status header with `ext-authz`. Each answer
/// names every spelling of it for Envoy to remove: 63 with six hyphens.
const MAX_SEPARATORS: usize = 6;

impl Checker<'_> {
    /// Checks the authorizer at `path`.
    pub(super) fn authorizer(
        &self,
        path: &str,
        authorizer: raw::RawAuthorizer,
        policy: &raw::RawPolicy,
    ) -> AuthorizerConfig {
        let at = |key: &str| format!("{path}.{key}");
        let protocol = authorizer.protocol;
        let listen = self.listen_address(&at("listen"), &authorizer.listen);
        let auth = &authorizer.client_auth;
        let allow = self.allow(&at("client_auth"), auth.mode, auth.allow.as_ref());
        let merged = Policy { allow, ..merge(policy, &authorizer.policy.0) };
        if authorizer.client_auth.mode == ClientAuthMode::Optional
            && merged.on_unchecked == Decision::Reject
        {
            let problem = "\"optional\" admits clients without a certificate, but on_unchecked = \"reject\" rejects them; set on_unchecked to \"flag\" or \"header\"";
            self.conflict(at("client_auth.mode"), problem);
        }
        let source = self.certificate_source(path, protocol, authorizer.certificate_from.as_ref());
        let client_auth = self.client_checks(&at("client_auth"), authorizer.client_auth);
        self.judged_chain(path, &merged, &client_auth);
        let (socket_mode, socket_group) = self.socket_owner(
            path,
            &listen,
            authorizer.socket_mode.as_deref(),
            authorizer.socket_group,
        );
        let tls = authorizer.tls.map(|tls| self.authorizer_tls(&at("tls"), tls));
        let askers = AskersConfig {
            uids: authorizer.askers.uids,
            from: self.networks(&at("askers.from"), &authorizer.askers.from),
        };
        self.who_may_ask(path, &listen, &askers, tls.as_ref());
        let status_header = self.status_header(policy, &authorizer.policy.0, &at("policy.header"));
        if protocol == AuthorizerProtocol::ExtAuthz {
            self.spellings(&at("policy.header"), &status_header);
        }
        AuthorizerConfig {
            name: self.name(path, authorizer.name),
            listen,
            socket_mode,
            socket_group,
            protocol,
            certificate_from: source,
            address_from: authorizer.address_from.and_then(|name| {
                self.of_http(&at("address_from"), protocol);
                self.header_name(&at("address_from"), &name)
            }),
            cache_for: authorizer.cache_for.map_or(Duration::ZERO, |time| {
                self.of_http(&at("cache_for"), protocol);
                time.0
            }),
            askers,
            tls,
            client_auth,
            limits: limits(&authorizer.limits),
            policy: merged,
            allow_compromised_own_key: (authorizer.policy.0.allow_compromised_own_key)
                .or(policy.allow_compromised_own_key)
                .unwrap_or(false),
            status_header,
        }
    }

    /// Checks that services and authorizers have distinct names, because metrics, logs and the
    /// status identify them by name.
    pub(super) fn authorizer_names(
        &self,
        authorizers: &[AuthorizerConfig],
        services: &[ServiceConfig],
    ) {
        self.names_once("authorizers", authorizers.iter().map(|it| it.name.as_str()));
        for (index, authorizer) in authorizers.iter().enumerate() {
            let name = &authorizer.name;
            if services.iter().any(|service| service.name == *name) {
                let problem = format!("a service has the name {name:?} too; give each its own");
                self.invalid(format!("authorizers[{index}].name"), problem);
            }
        }
    }

    /// Checks that each authorizer has an address of its own.
    pub(super) fn authorizer_addresses(
        &self,
        authorizers: &[AuthorizerConfig],
        services: &[ServiceConfig],
        admin: &ListenAddress,
    ) {
        let services = services.iter().map(|service| ListenAddress::Tcp(service.listen));
        // Port 0 is another port for the admin server.
        let admin = Some(admin).filter(|admin| !has_port_0(admin)).cloned();
        let mut taken: HashSet<ListenAddress> = services.chain(admin).collect();
        for (index, authorizer) in authorizers.iter().enumerate() {
            if !taken.insert(authorizer.listen.clone()) {
                let problem = format!(
                    "a service, another authorizer or the admin server listens on {} too; give the authorizer an address of its own",
                    authorizer.listen
                );
                self.conflict(format!("authorizers[{index}].listen"), problem);
            }
        }
    }

    /// Rejects a key that only HTTP has.
    fn of_http(&self, at: &str, protocol: AuthorizerProtocol) {
        if protocol != AuthorizerProtocol::Http {
            let problem =
                format!("has no effect with protocol = {:?}; remove it", protocol.as_str());
            self.conflict(at, problem);
        }
    }

    /// Checks that an answer can name every spelling of the status header.
    fn spellings(&self, at: &str, header: &HeaderName) {
        let separators = header.as_str().bytes().filter(|byte| matches!(byte, b'-' | b'_')).count();
        if separators > MAX_SEPARATORS {
            let problem = format!(
                "{:?} has {separators} hyphens and underscores, and Envoy must remove each of its spellings; give a name with at most {MAX_SEPARATORS}",
                header.as_str()
            );
            self.invalid(at, problem);
        }
    }

    fn authorizer_tls(&self, path: &str, tls: raw::RawAuthorizerTls) -> AuthorizerTls {
        let at = |key: &str| format!("{path}.{key}");
        AuthorizerTls {
            certificate: self.path(&at("certificate"), &tls.certificate),
            private_key: self.path(&at("private_key"), &tls.private_key),
            client_ca: tls.client_ca.map(|path| self.path(&at("client_ca"), &path)),
            min_version: tls.min_version,
            resumption: tls.resumption,
        }
    }

    fn client_checks(&self, path: &str, raw: raw::RawChecks) -> ClientChecks {
        let at = |key: &str| format!("{path}.{key}");
        if raw.trust_anchors.is_none() {
            let needs = [
                ("intermediates", raw.intermediates.is_some()),
                ("crls", !raw.crls.is_empty()),
                ("expired_crl", raw.expired_crl.is_some()),
                ("revocation", raw.revocation.is_some()),
            ];
            for (key, is_set) in needs {
                if is_set {
                    let problem = "needs trust_anchors, the CAs whose clients are accepted; add that key, or remove this one";
                    self.conflict(at(key), problem);
                }
            }
        }
        ClientChecks {
            mode: raw.mode,
            trust_anchors: (raw.trust_anchors.as_deref())
                .map(|path| self.path(&at("trust_anchors"), path)),
            intermediates: (raw.intermediates.as_deref())
                .map(|path| self.path(&at("intermediates"), path)),
            crls: self.paths(&at("crls"), &raw.crls),
            expired_crl: raw.expired_crl.unwrap_or_default(),
            revocation: raw.revocation.unwrap_or_default(),
            max_new_hits: raw.max_new_hits,
        }
    }
}

fn limits(raw: &raw::RawAuthorizerLimits) -> AuthorizerLimits {
    AuthorizerLimits {
        max_connections: raw.max_connections.0,
        max_streams: raw.max_streams.0,
        max_question_size: u32::try_from(raw.max_question_size.0).unwrap_or(u32::MAX),
        idle_timeout: raw.idle_timeout.0,
    }
}

fn has_port_0(address: &ListenAddress) -> bool {
    matches!(address, ListenAddress::Tcp(address) if address.port() == 0)
}
