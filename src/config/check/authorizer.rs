//! An authorizer: source of the certificate, askers, verification and policy.

use std::collections::HashSet;

use keygate_core::guard::{Depth, JudgedAt};

use super::service::optional_clients;
use super::{Input, Taken, Takes, quoted};
use crate::config::authorizer::{QuestionCertificate, RawHeader};
use crate::config::form::Form;
use crate::config::keys::takes;
use crate::config::{
    AuthorizerConfig, AuthorizerProtocol, CertificateSource, ClientAuthConfig, ListenAddress,
};

/// Maximum number of hyphens and underscores in a header with `ext-authz`. Each answer
/// names every spelling of it for Envoy to remove: 63 with six hyphens.
const MAX_SEPARATORS: usize = 6;

impl AuthorizerConfig {
    /// Checks the authorizer, and adds the rules by name to its policy.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        self.policy.decisions.allow.clone_from(&self.client_auth.allow);
        optional_clients(input, self.client_auth.mode, &self.policy.decisions);
        certificate_source(input, self.protocol, &self.certificate_from);
        with_cas(input, &self.client_auth);
        // The issuers in a question are not enough: a client leaves out those that the host has
        // itself, HAProxy drops those that do not fit its buffer, and no host sends the trust
        // anchor.
        if self.policy.decisions.judge == Depth::Chain && !self.client_auth.has_cas() {
            let problem = "judge = \"chain\" needs client_auth.trust_anchors or client_auth.cas, because a question may lack issuers of the client; set one, or set judge = \"leaf\" for this authorizer";
            input.report_at("policy.judge", problem);
        }
        who_may_ask(input, self);
        if self.protocol == AuthorizerProtocol::ExtAuthz {
            spellings(input, "policy.header", self.policy.header.as_str());
            if let Some(assertion) = &self.policy.assertion {
                spellings(input, "policy.assertion.header", assertion.header.as_str());
            }
        }
        webhooks(input, self);
        let is_http = self.protocol == AuthorizerProtocol::Http;
        let is_about_clients = self.protocol.stage() == JudgedAt::Asked;
        for (key, has_effect) in [
            ("address_from", is_http),
            ("cache_for", is_http),
            ("webhooks", self.protocol == AuthorizerProtocol::StepCa),
            ("client_auth", is_about_clients),
            ("policy.assertion", is_about_clients),
        ] {
            if input.sets(key) && !has_effect {
                let protocol = self.protocol.as_str();
                let problem = format!("has no effect with protocol = {protocol:?}; remove it");
                input.report_at(key, problem);
            }
        }
        // No request follows a question about a key.
        self.policy.assertion.take_if(|_| !is_about_clients);
    }
}

/// Checks that the peers that may ask are named.
fn who_may_ask(input: &Input<'_>, authorizer: &AuthorizerConfig) {
    match &authorizer.listen {
        ListenAddress::Tcp(address) => {
            for key in ["socket_mode", "socket_group"].into_iter().filter(|key| input.sets(key)) {
                let problem = "is of a Unix socket; remove it, or set listen = \"unix:/path\"";
                input.report_at(key, problem);
            }
            if !authorizer.askers.uids.is_empty() {
                let problem = "the kernel reports user ids for Unix sockets only; use askers.from or tls.client_ca, or listen on \"unix:/path\"";
                input.report_at("askers.uids", problem);
            }
            let has_ca = authorizer.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
            if authorizer.askers.from.0.is_empty() && !has_ca && !address.ip().is_loopback() {
                let problem = format!(
                    "{address} is not loopback, so every peer could ask about copied certificates; give tls.client_ca or askers.from"
                );
                input.report_at("listen", problem);
            }
        }
        ListenAddress::Unix(_) => {
            if !authorizer.askers.from.0.is_empty() {
                let problem =
                    "a Unix socket has no networks; use askers.uids, socket_mode and socket_group";
                input.report_at("askers.from", problem);
            }
            if authorizer.tls.is_some() {
                let problem = "a Unix socket needs no TLS; use askers.uids, socket_mode and socket_group, or listen on a TCP address";
                input.report_at("tls", problem);
            }
        }
    }
}

/// Checks that step-ca is known by its webhooks, each with an id of its own.
fn webhooks(input: &Input<'_>, authorizer: &AuthorizerConfig) {
    if authorizer.protocol == AuthorizerProtocol::StepCa && authorizer.webhooks.is_empty() {
        let problem =
            "no webhook; `step ca provisioner webhook add` prints the id and the secret of one";
        input.report_at("webhooks", problem);
    }
    let mut ids = HashSet::new();
    if !authorizer.webhooks.iter().all(|webhook| ids.insert(&webhook.id)) {
        input.report_at("webhooks", "two webhooks have one id; remove one of them");
    }
}

/// Checks that an answer can name every spelling of the `header` at this key.
fn spellings(input: &Input<'_>, key: &str, header: &str) {
    let separators = header.bytes().filter(|byte| matches!(byte, b'-' | b'_')).count();
    if separators > MAX_SEPARATORS {
        let problem = format!(
            "{} has {separators} hyphens and underscores, and Envoy must remove each of its spellings; give a name with at most {MAX_SEPARATORS}",
            quoted(header)
        );
        input.report_at(key, problem);
    }
}

/// Checks that questions of the protocol have the certificate in this place.
fn certificate_source(input: &Input<'_>, protocol: AuthorizerProtocol, source: &CertificateSource) {
    use AuthorizerProtocol::{Admission, ExtAuthz, Http, Spop, StepCa};
    let problem = match (protocol, source) {
        (ExtAuthz, CertificateSource::Attributes | CertificateSource::Xfcc) => return,
        (ExtAuthz, _) => {
            "protocol = \"ext-authz\" reads \"attributes\" or \"xfcc\"; write one of them"
        }
        (Http, CertificateSource::Attributes) => {
            "\"attributes\" are of protocol = \"ext-authz\"; name the one header that the host sets"
        }
        (Http, _) => return,
        (Admission | Spop | StepCa, _) if !input.sets("certificate_from") => return,
        (Spop, _) => "protocol = \"spop\" always reads the argument cert; remove it",
        (Admission | StepCa, _) => "the protocol always reads the body; remove it",
    };
    input.report_at("certificate_from", problem);
}

impl Takes for QuestionCertificate {
    const IS_OPTIONAL: bool = true;

    type Value = CertificateSource;

    fn form() -> Form {
        CertificateSource::form()
    }

    fn take(input: &Input<'_>) -> Taken<CertificateSource> {
        CertificateSource::take(input)
    }

    fn absent(authorizer: &Input<'_>, key: &str) -> Taken<CertificateSource> {
        match authorizer.key::<AuthorizerProtocol>("protocol", None)? {
            AuthorizerProtocol::Admission | AuthorizerProtocol::StepCa => {
                Ok(CertificateSource::Body)
            }
            AuthorizerProtocol::ExtAuthz => Ok(CertificateSource::Attributes),
            AuthorizerProtocol::Http => {
                let problem = "the key is missing; name the one header that the host sets: \"client-cert\", \"xfcc\", \"traefik\", \"ingress-nginx\", or { header = \"X-SSL-Cert\", encoding = \"escaped-pem\", verify = \"X-SSL-Verify\" }";
                Err(authorizer.report_at(key, problem))
            }
            AuthorizerProtocol::Spop => Ok(CertificateSource::Argument),
        }
    }
}

takes! {
    CertificateSource => Self, RawHeader::form().or_text(), |input| {
        if input.is_table() {
            let RawHeader { header, encoding, verify } = RawHeader::take(input)?;
            if verify.as_ref() == Some(&header) {
                let problem = "header and verify name one header; give each its own";
                return Err(input.report(problem));
            }
            return Ok(Self::Header { header, encoding, verify });
        }
        match input.text::<Self>()? {
            "attributes" => Ok(Self::Attributes),
            "client-cert" => Ok(Self::ClientCert),
            "ingress-nginx" => Ok(Self::IngressNginx),
            "traefik" => Ok(Self::Traefik),
            "xfcc" => Ok(Self::Xfcc),
            name => Err(input.report(format!(
                "{} is none of \"attributes\", \"client-cert\", \"xfcc\", \"traefik\", \"ingress-nginx\"; a header of any other name is written {{ header = \"X-SSL-Cert\", encoding = \"escaped-pem\", verify = \"X-SSL-Verify\" }}",
                quoted(name)
            ))),
        }
    };
}

/// Checks that keys about CAs come with CAs.
fn with_cas(input: &Input<'_>, clients: &ClientAuthConfig) {
    let needs = [
        ("intermediates", clients.intermediates.is_some()),
        ("crls", !clients.crls.is_empty()),
        ("expired_crl", input.sets("client_auth.expired_crl")),
        ("revocation", input.sets("client_auth.revocation")),
        ("accept_server_auth_until", clients.accept_server_auth_until.is_some()),
    ];
    for (key, _) in needs.into_iter().filter(|(_, is_set)| *is_set && !clients.has_cas()) {
        let problem = "needs trust_anchors or cas, the CAs whose clients are accepted; add one of them, or remove this key";
        input.report_at(&format!("client_auth.{key}"), problem);
    }
}
