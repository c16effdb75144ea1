//! Checks the source of the certificate in a question.

use hyper::header::HeaderName;
use keygate_core::guard::{Depth, Policy};

use super::Checker;
use crate::config::units::quoted;
use crate::config::{AuthorizerProtocol, CertificateSource, ClientChecks, HeaderEncoding, raw};

impl Checker<'_> {
    pub(super) fn certificate_source(
        &self,
        path: &str,
        protocol: AuthorizerProtocol,
        source: Option<&raw::RawCertificateSource>,
    ) -> CertificateSource {
        let at = format!("{path}.certificate_from");
        let parsed = source.map(|source| match source {
            raw::RawCertificateSource::Header(header) => self.header_source(&at, header),
            raw::RawCertificateSource::Name(name) => self.named_source(&at, name),
        });
        match (protocol, parsed) {
            (AuthorizerProtocol::ExtAuthz, None) => CertificateSource::Attributes,
            (AuthorizerProtocol::ExtAuthz, Some(source)) => {
                if !matches!(source, CertificateSource::Attributes | CertificateSource::Xfcc) {
                    let problem = "protocol = \"ext-authz\" reads \"attributes\" or \"xfcc\"; write one of them";
                    self.conflict(at, problem);
                }
                source
            }
            (AuthorizerProtocol::Http, None) => {
                let problem = "the key is missing; name the one header that the host sets: \"client-cert\", \"xfcc\", \"traefik\", \"ingress-nginx\", or { header = \"X-SSL-Cert\", encoding = \"escaped-pem\", verify = \"X-SSL-Verify\" }";
                self.invalid(at, problem);
                CertificateSource::ClientCert
            }
            (AuthorizerProtocol::Http, Some(source)) => {
                if source == CertificateSource::Attributes {
                    let problem = "\"attributes\" are of protocol = \"ext-authz\"; name the one header that the host sets";
                    self.conflict(at, problem);
                }
                source
            }
            (AuthorizerProtocol::Spop, source) => {
                if source.is_some() {
                    let problem = "protocol = \"spop\" always reads the argument cert; remove it";
                    self.conflict(at, problem);
                }
                CertificateSource::Argument
            }
        }
    }

    fn named_source(&self, at: &str, name: &str) -> CertificateSource {
        match name {
            "attributes" => CertificateSource::Attributes,
            "client-cert" => CertificateSource::ClientCert,
            "ingress-nginx" => CertificateSource::IngressNginx,
            "traefik" => CertificateSource::Traefik,
            "xfcc" => CertificateSource::Xfcc,
            _ => {
                let problem = format!(
                    "{} is none of \"attributes\", \"client-cert\", \"xfcc\", \"traefik\", \"ingress-nginx\"; a header of any other name is written {{ header = \"X-SSL-Cert\", encoding = \"escaped-pem\", verify = \"X-SSL-Verify\" }}",
                    quoted(name)
                );
                self.invalid(at, problem);
                CertificateSource::ClientCert
            }
        }
    }

    fn header_source(&self, at: &str, raw: &raw::RawHeader) -> CertificateSource {
        let header = self.header_name(&format!("{at}.header"), &raw.header);
        let verify = raw.verify.as_ref();
        let verify = verify.and_then(|name| self.header_name(&format!("{at}.verify"), name));
        if header.is_some() && header == verify {
            let problem = "header and verify name one header; give each its own";
            self.conflict(at, problem);
        }
        let encoding: HeaderEncoding = raw.encoding;
        let header = header.unwrap_or(HeaderName::from_static("client-cert"));
        CertificateSource::Header { header, encoding, verify }
    }

    pub(super) fn header_name(&self, at: &str, name: &str) -> Option<HeaderName> {
        let header = name.parse().ok();
        if header.is_none() {
            self.invalid(
                at,
                format!("{} is not a header name; write one like \"X-SSL-Cert\"", quoted(name)),
            );
        }
        header
    }

    /// Checks that the authorizer finds the chain that the policy judges. The issuers in a question
    /// are not enough: a client leaves out those that the host has itself, HAProxy drops those that
    /// do not fit its buffer, and no host sends the trust anchor.
    pub(super) fn judged_chain(&self, path: &str, policy: &Policy, client_auth: &ClientChecks) {
        if policy.judge == Depth::Chain && client_auth.trust_anchors.is_none() {
            let problem = "judge = \"chain\" needs client_auth.trust_anchors, because a question may lack issuers of the client; set it, or set judge = \"leaf\" for this authorizer";
            self.conflict(format!("{path}.policy.judge"), problem);
        }
    }
}
