//! An authorizer: source of the certificate, askers, verification and policy.

use std::collections::HashSet;

use keygate_core::guard::{Depth, JudgedAt};

use super::service::optional_clients;
use super::{Input, Taken, Takes, quoted};
use crate::config::authorizer::{RawAuthorizer, RawHeader};
use crate::config::form::Form;
use crate::config::{
    AuthorizerConfig, AuthorizerProtocol, CertificateSource, ClientChecks, ListenAddress,
};

/// Maximum number of hyphens and underscores in a header with `ext-authz`. Each answer
/// names every spelling of it for Envoy to remove: 63 with six hyphens.
const MAX_SEPARATORS: usize = 6;

impl Takes for AuthorizerConfig {
    type Value = Self;

    fn form() -> Form {
        RawAuthorizer::form()
    }

    fn take(input: &Input<'_>) -> Taken<Self> {
        let mut raw = RawAuthorizer::take(input)?;
        raw.policy.decisions.allow = raw.client_auth.allow.take();
        optional_clients(input, raw.client_auth.mode, &raw.policy.decisions);
        // The issuers in a question are not enough: a client leaves out those that the host has
        // itself, HAProxy drops those that do not fit its buffer, and no host sends the trust
        // anchor.
        if raw.policy.decisions.judge == Depth::Chain && !raw.client_auth.has_cas() {
            let problem = "judge = \"chain\" needs client_auth.trust_anchors or client_auth.cas, because a question may lack issuers of the client; set one, or set judge = \"leaf\" for this authorizer";
            input.report_at("policy.judge", problem);
        }
        who_may_ask(input, &raw);
        if raw.protocol == AuthorizerProtocol::ExtAuthz {
            spellings(input, "policy.header", raw.policy.header.as_str());
            if let Some(assertion) = &raw.policy.assertion {
                spellings(input, "policy.assertion.header", assertion.header.as_str());
            }
        }
        webhooks(input, &raw);
        let is_http = raw.protocol == AuthorizerProtocol::Http;
        let is_about_clients = raw.protocol.stage() == JudgedAt::Asked;
        for (key, has_effect) in [
            ("address_from", is_http),
            ("cache_for", is_http),
            ("webhooks", raw.protocol == AuthorizerProtocol::StepCa),
            ("client_auth", is_about_clients),
            ("policy.assertion", is_about_clients),
        ] {
            if input.sets(key) && !has_effect {
                let protocol = raw.protocol.as_str();
                let problem = format!("has no effect with protocol = {protocol:?}; remove it");
                input.report_at(key, problem);
            }
        }
        // No request follows a question about a key.
        raw.policy.assertion = raw.policy.assertion.filter(|_| is_about_clients);
        Ok(Self {
            name: raw.name,
            listen: raw.listen,
            socket_mode: raw.socket_mode,
            socket_group: raw.socket_group,
            protocol: raw.protocol,
            certificate_from: certificate_source(input, raw.protocol, raw.certificate_from)?,
            address_from: raw.address_from,
            cache_for: raw.cache_for,
            webhooks: raw.webhooks,
            askers: raw.askers,
            tls: raw.tls,
            client_auth: raw.client_auth,
            limits: raw.limits,
            policy: raw.policy,
        })
    }
}

/// Checks that the peers that may ask are named.
fn who_may_ask(input: &Input<'_>, raw: &RawAuthorizer) {
    match &raw.listen {
        ListenAddress::Tcp(address) => {
            for key in ["socket_mode", "socket_group"].into_iter().filter(|key| input.sets(key)) {
                let problem = "is of a Unix socket; remove it, or set listen = \"unix:/path\"";
                input.report_at(key, problem);
            }
            if !raw.askers.uids.is_empty() {
                let problem = "the kernel reports user ids for Unix sockets only; use askers.from or tls.client_ca, or listen on \"unix:/path\"";
                input.report_at("askers.uids", problem);
            }
            let has_ca = raw.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
            if raw.askers.from.0.is_empty() && !has_ca && !address.ip().is_loopback() {
                let problem = format!(
                    "{address} is not loopback, so every peer could ask about copied certificates; give tls.client_ca or askers.from"
                );
                input.report_at("listen", problem);
            }
        }
        ListenAddress::Unix(_) => {
            if !raw.askers.from.0.is_empty() {
                let problem =
                    "a Unix socket has no networks; use askers.uids, socket_mode and socket_group";
                input.report_at("askers.from", problem);
            }
            if raw.tls.is_some() {
                let problem = "a Unix socket needs no TLS; use askers.uids, socket_mode and socket_group, or listen on a TCP address";
                input.report_at("tls", problem);
            }
        }
    }
}

/// Checks that step-ca is known by its webhooks, each with an id of its own.
fn webhooks(input: &Input<'_>, raw: &RawAuthorizer) {
    if raw.protocol == AuthorizerProtocol::StepCa && raw.webhooks.is_empty() {
        let problem =
            "no webhook; `step ca provisioner webhook add` prints the id and the secret of one";
        input.report_at("webhooks", problem);
    }
    let mut ids = HashSet::new();
    if !raw.webhooks.iter().all(|webhook| ids.insert(&webhook.id)) {
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

/// The source of the certificate in a question.
fn certificate_source(
    input: &Input<'_>,
    protocol: AuthorizerProtocol,
    source: Option<CertificateSource>,
) -> Taken<CertificateSource> {
    let problem = match (protocol, source) {
        (AuthorizerProtocol::ExtAuthz, None) => return Ok(CertificateSource::Attributes),
        (AuthorizerProtocol::Spop, None) => return Ok(CertificateSource::Argument),
        (AuthorizerProtocol::Admission | AuthorizerProtocol::StepCa, None) => {
            return Ok(CertificateSource::Body);
        }
        (
            AuthorizerProtocol::ExtAuthz,
            Some(source @ (CertificateSource::Attributes | CertificateSource::Xfcc)),
        ) => return Ok(source),
        (AuthorizerProtocol::ExtAuthz, Some(_)) => {
            "protocol = \"ext-authz\" reads \"attributes\" or \"xfcc\"; write one of them"
        }
        (AuthorizerProtocol::Http, None) => {
            "the key is missing; name the one header that the host sets: \"client-cert\", \"xfcc\", \"traefik\", \"ingress-nginx\", or { header = \"X-SSL-Cert\", encoding = \"escaped-pem\", verify = \"X-SSL-Verify\" }"
        }
        (AuthorizerProtocol::Http, Some(CertificateSource::Attributes)) => {
            "\"attributes\" are of protocol = \"ext-authz\"; name the one header that the host sets"
        }
        (AuthorizerProtocol::Http, Some(source)) => return Ok(source),
        (AuthorizerProtocol::Spop, Some(_)) => {
            "protocol = \"spop\" always reads the argument cert; remove it"
        }
        (AuthorizerProtocol::Admission | AuthorizerProtocol::StepCa, Some(_)) => {
            "the protocol always reads the body; remove it"
        }
    };
    Err(input.report_at("certificate_from", problem))
}

impl Takes for CertificateSource {
    type Value = Self;

    fn form() -> Form {
        RawHeader::form().or_text()
    }

    fn take(input: &Input<'_>) -> Taken<Self> {
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
    }
}

impl ClientChecks {
    /// Checks that keys about CAs come with CAs.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        let needs = [
            ("intermediates", self.intermediates.is_some()),
            ("crls", !self.crls.is_empty()),
            ("expired_crl", input.sets("expired_crl")),
            ("revocation", input.sets("revocation")),
            ("accept_server_auth_until", self.accept_server_auth_until.is_some()),
        ];
        for (key, _) in needs.into_iter().filter(|(_, is_set)| *is_set) {
            if !self.has_cas() {
                let problem = "needs trust_anchors or cas, the CAs whose clients are accepted; add one of them, or remove this key";
                input.report_at(key, problem);
            }
        }
    }
}
