//! The conditions of the files of a service that an operator must mend.

use std::collections::HashSet;
use std::time::SystemTime;

use keygate_core::guard::AllowKind;
use keygate_core::spki;
use keygate_core::tls::{
    self, AnchorKind, CertificateSummary, Credentials, CrlWarning, TrustAnchors,
};
use keygate_core::unix_time;
use rustls::pki_types::CertificateDer;

use super::ServiceCredentials;
use crate::config::{KeyExchange, KeyPlace, OpenAccess, RevocationDepth, TlsVersion};
use crate::metrics::KeyAlgorithm;
use crate::sources::credential_files::{CredentialFiles, TRUST_ANCHORS};
use crate::sources::service_file::ServiceFile;
use crate::sources::warning::{PeriodProblem, Warning};

impl ServiceCredentials {
    /// The conditions of the files that an operator must mend.
    pub(crate) fn warnings(&self, files: CredentialFiles<'_>, now: SystemTime) -> Vec<Warning> {
        let file = |key, path| ServiceFile { files, key, path };
        let mut warnings: Vec<_> =
            self.crls().warnings().iter().map(|problem| crl_warning(files, problem)).collect();
        warnings.extend(self.missing_crls(files));
        let upstream = self.upstream.get().as_ref();
        let exposed = self.units().flat_map(|unit| unit.exposed);
        warnings.extend(exposed.map(Warning::unsafe_permissions));
        warnings.extend(self.server_warnings(files, now));
        warnings.extend(self.key_warnings(files));
        let client = upstream.and_then(|it| it.client.as_ref());
        let path = files.upstream.and_then(|(tls, _)| tls.certificate.as_deref());
        if let (Some(client), Some(path)) = (client, path) {
            let file = file("upstream.tls.certificate", path);
            warnings.extend(period_warnings(client, file, now));
        }
        let cas = &self.clients.get().cas;
        let of_clients = |ca: &_| cas.file_of(ca).map(|it| file(it.key, &it.path));
        let of_askers = |_: &_| files.asker_ca.map(|path| file("tls.client_ca", path));
        let accepts_servers =
            files.clients.accept_server_auth_until.is_some_and(|until| now < until);
        if let Some(anchors) = &cas.trust_anchors {
            warnings.extend(self.anchor_warnings(anchors, accepts_servers, now, &of_clients));
        }
        if let Some(anchors) = self.asker_ca.get() {
            warnings.extend(self.anchor_warnings(anchors, false, now, &of_askers));
        }
        warnings.extend(self.revoked_intermediates(files));
        warnings.extend(self.unbound_cas(files));
        if files.clients.accept_server_auth_until.is_some_and(|until| until <= now) {
            let owner = files.owner();
            let text = format!(
                "{owner}: client_auth.accept_server_auth_until is in the past, so certificates for \
                 servers are rejected; remove the key, or set a later date"
            );
            let event = "certificates for servers are rejected";
            warnings.push(Warning::about_owner(&owner, event, text).elsewhere(true));
        }
        warnings.extend(files.open_access.map(|access| open_access_warning(files, access)));
        warnings
    }

    /// The conditions of the certificates that clients get.
    fn server_warnings(&self, files: CredentialFiles<'_>, now: SystemTime) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let own = [
            ("tls.certificate", &self.server.get().0, files.server),
            ("tls.alternative.certificate", &self.alternative.get().0, files.alternative()),
        ];
        for (key, pair, paths) in own {
            let (Some(pair), Some((path, _))) = (pair, paths) else { continue };
            let (server, file) = (&pair.credentials, ServiceFile { files, key, path });
            warnings.extend(period_warnings(server, file, now));
            // TLS clients that request such a name abort the handshake.
            let uncovered = tls::uncovered_names(server, files.server_names).into_iter();
            warnings.extend(uncovered.map(|name| {
                let problem = format!(
                    "the certificate is not valid for server name {name:?}; issue one with that \
                     name, or correct server_names"
                );
                file.warning("certificate lacks a server name", &problem)
            }));
        }
        warnings
    }

    /// Settings that the kinds of the own keys make useless.
    fn key_warnings(&self, files: CredentialFiles<'_>) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let own = self.key_pairs().filter_map(|it| spki::of_certificate(it.cert.first()?).ok());
        let algorithms: Vec<_> = own.map(KeyAlgorithm::of).collect();
        let is_ml_dsa = |it: &KeyAlgorithm| {
            matches!(it, KeyAlgorithm::MlDsa44 | KeyAlgorithm::MlDsa65 | KeyAlgorithm::MlDsa87)
        };
        if let ([first, second], Some((path, _))) = (&*algorithms, files.alternative())
            && (first == second
                || *first == KeyAlgorithm::Rsa
                || (is_ml_dsa(second) && !is_ml_dsa(first)))
        {
            let problem = "clients that offer the schemes of its key offer the schemes of \
                           tls.private_key, so it is hardly ever sent; issue one with \
                           another algorithm, or exchange the two";
            let event = "alternative certificate is not used";
            let file = ServiceFile { files, key: "tls.alternative.certificate", path };
            warnings.push(file.warning(event, problem));
        }
        let tls = files.tls.filter(|it| it.min_version == TlsVersion::V1_2);
        let is_hybrid = |it: &KeyExchange| *it == KeyExchange::X25519MlKem768;
        let groups = tls.map(|it| &it.key_exchange).filter(|it| !it.is_empty());
        for (key, is_modern) in [
            ("certificate", tls.is_some() && algorithms.iter().all(is_ml_dsa)),
            ("key_exchange", groups.is_some_and(|it| it.iter().all(is_hybrid))),
        ] {
            let owner = files.owner();
            let text = format!(
                "{owner}: tls.{key} permits TLS 1.3 alone, so clients with TLS 1.2 are rejected; set \
                 tls.min_version = \"1.3\", or add a classical one"
            );
            let event = "clients with TLS 1.2 are rejected";
            warnings.extend(is_modern.then(|| Warning::about_owner(&owner, event, text)));
        }
        warnings
    }

    /// The intermediates that a list in use revokes.
    fn revoked_intermediates(&self, files: CredentialFiles<'_>) -> Vec<Warning> {
        let is_checked = files.clients.revocation == RevocationDepth::Path;
        let path = files.clients.intermediates.as_deref().filter(|_| is_checked);
        let Some(path) = path else { return Vec::new() };
        let file = ServiceFile { files, key: "client_auth.intermediates", path };
        let intermediates = self.clients.get().cas.intermediates.iter();
        let revoked = intermediates.filter(|ca| self.crls().revoke(ca)).map(|ca| {
            let problem = format!(
                "{} is revoked by a list in use, so every client that it issued is rejected; if \
                 intended, remove it",
                CertificateSummary::new(ca).subject
            );
            file.warning("intermediate is revoked, its clients are rejected", &problem)
        });
        revoked.collect()
    }

    /// The CAs and pinned certificates of which no client can be verified, now or soon.
    fn anchor_warnings<'a>(
        &self,
        anchors: &TrustAnchors,
        accepts_servers: bool,
        now: SystemTime,
        file_of: &dyn Fn(&CertificateDer<'static>) -> Option<ServiceFile<'a>>,
    ) -> Vec<Warning> {
        let own = self.key_pair().and_then(|server| server.cert.first());
        let problems = anchors.problems(own, self.crls(), accepts_servers);
        let unusable = problems.into_iter().filter_map(|(ca, problem)| {
            let event = "trust anchor cannot be used, its clients are rejected";
            Some(file_of(ca)?.warning(event, &problem))
        });
        let now = unix_time::seconds(now);
        let periods = anchors.with_validity().filter_map(|(ca, period)| {
            let problem = PeriodProblem::from_period(period, now)?;
            let event = match problem {
                PeriodProblem::ExpiresSoon(_) => "trust anchor expires soon",
                PeriodProblem::Expired(_)
                | PeriodProblem::NotYetValid(_)
                | PeriodProblem::Unreadable => {
                    "trust anchor is not valid now, its clients are rejected"
                }
            };
            let subject = CertificateSummary::new(ca).subject;
            let text = format!("the CA {subject} {problem}");
            let warning = file_of(ca)?.warning(event, &text);
            Some(warning.elsewhere(problem.is_expiry()))
        });
        unusable.chain(periods).collect()
    }

    /// The warning that each of several CAs may vouch for a client that a rule names. Certificates
    /// of one key are one CA.
    fn unbound_cas(&self, files: CredentialFiles<'_>) -> Option<Warning> {
        let cas = &self.clients.get().cas;
        let (_, rules) = files.rules()?.summary();
        let rule = rules.iter().find(|rule| !rule.starts_with(AllowKind::Spki.as_str()))?;
        let anchors = cas.trust_anchors.iter().flat_map(|it| it.with_kind());
        let roots = anchors.filter(|(_, kind)| *kind == AnchorKind::Root).map(|(ca, _)| ca);
        let mut keys = HashSet::new();
        let roots: Vec<_> = roots.filter(|ca| keys.insert(spki::of_certificate(ca).ok())).collect();
        let bound = cas.bound(files);
        let unbound = roots.iter().filter(|ca| !bound.binds(ca));
        let unbound: Vec<_> = unbound.map(|ca| CertificateSummary::new(ca).subject).collect();
        let (path, first) = (files.clients.trust_anchors.as_deref()?, unbound.first()?);
        if roots.len() < 2 {
            return None;
        }
        let others = match unbound.len().saturating_sub(1) {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let entry = match files.rules()?.as_bounds() {
            Some(bounds) => format!(
                " in client_auth.cas, in place of client_auth.trust_anchors: cas = [{{ file = \
                 \"ca-1.pem\", {bounds} }}], without the names that it does not certify"
            ),
            None => " in client_auth.cas".to_owned(),
        };
        let problem = format!(
            "the CA {first}{others} may vouch for every name, such as the name of the rule {rule}; \
             move each CA to a file of its own, with the names that it may vouch for{entry}"
        );
        let (owner, event) = (files.owner(), "each of several CAs may vouch for every name");
        let place = Some(KeyPlace::in_table(owner.table(), owner.name(), TRUST_ANCHORS));
        let file = ServiceFile { files, key: TRUST_ANCHORS, path };
        Some(Warning { place, ..file.warning(event, &problem) })
    }

    /// The CAs that have no CRL, if there are CRLs. A pin issues nothing. The certificates that
    /// such a CA issues are rejected: all of them if no other CA has one.
    ///
    /// With `revocation = "leaf"` a root that issues intermediates only needs no CRL. There is no
    /// warning for a trust anchor that issued one of the `intermediates`.
    fn missing_crls(&self, files: CredentialFiles<'_>) -> Vec<Warning> {
        let cas = &self.clients.get().cas;
        let Some(trust_anchors) = &cas.trust_anchors else { return Vec::new() };
        let file = |key, path| ServiceFile { files, key, path };
        let intermediates = files.clients.intermediates.as_deref();
        let intermediates = intermediates.map(|path| file("client_auth.intermediates", path));
        if files.clients.crls.is_empty() {
            // An authorizer completes the paths of its clients with them.
            let unused = intermediates.filter(|_| !files.is_authorizer);
            let event = "intermediates have no effect without revocation lists";
            let problem =
                "it has no effect without client_auth.crls; add the lists, or remove the key";
            return unused.iter().map(|file| file.warning(event, problem)).collect();
        }
        let is_root_of_others =
            files.clients.revocation == RevocationDepth::Leaf && intermediates.is_some();
        let is_outage = self.clients.get().lacks_every_crl(files);
        let missing = |file: ServiceFile<'_>, ca: &CertificateDer<'_>| {
            if self.crls().cover(ca) {
                return None;
            }
            let problem = format!(
                "client_auth.crls has no list of {}, so every client that it issued is \
                 rejected, and a CA that it revoked is not; add its list",
                CertificateSummary::new(ca).subject
            );
            let event = "certificate revocation list is missing";
            Some(Warning { is_outage, ..file.warning(event, &problem) })
        };
        let issuers = trust_anchors.with_kind().filter(|(_, kind)| *kind != AnchorKind::Pin);
        let roots = issuers
            .map(|(ca, _)| ca)
            .filter(|ca| !(is_root_of_others && tls::issued_any(ca, &cas.intermediates)));
        let roots = roots.filter_map(|ca| {
            let of_ca = cas.file_of(ca)?;
            missing(file(of_ca.key, &of_ca.path), ca)
        });
        let below = intermediates.into_iter().flat_map(|file| {
            let cas = cas.intermediates.iter();
            cas.filter_map(move |ca| missing(file, ca))
        });
        roots.chain(below).collect()
    }
}

/// A CRL has expired, is superseded by another one, or is of another CA.
fn crl_warning(files: CredentialFiles<'_>, problem: &CrlWarning) -> Warning {
    let (event, is_expiry) = match problem {
        CrlWarning::Expired { .. } => ("certificate revocation list has expired", true),
        CrlWarning::Superseded { .. } => ("certificate revocation list is superseded", false),
        CrlWarning::Unused { .. } => ("certificate revocation list is not used", false),
    };
    let owner = files.owner();
    let text = format!("{owner}: client_auth.crls {problem}");
    Warning::about_owner(&owner, event, text).elsewhere(is_expiry)
}

/// Peers that nobody has chosen may ask an authorizer.
fn open_access_warning(files: CredentialFiles<'_>, access: OpenAccess) -> Warning {
    let owner = files.owner();
    let text = match access {
        OpenAccess::Mode(mode) => format!(
            "{owner}: socket_mode {mode:04o} lets every user of the machine ask about copied \
             certificates; set askers.uids, or socket_mode = \"0660\" with socket_group"
        ),
        OpenAccess::Network(network) => format!(
            "{owner}: askers.from has {network}, so strangers may ask about copied \
             certificates; name the networks of the hosts, or set tls.client_ca"
        ),
    };
    Warning::about_owner(&owner, "authorizer is open to other peers", text)
}

/// The certificates of a chain whose validity period is a problem. Expiries have the first one.
fn period_warnings(
    credentials: &Credentials,
    file: ServiceFile<'_>,
    now: SystemTime,
) -> impl Iterator<Item = Warning> {
    let now = unix_time::seconds(now);
    (1..).zip(&credentials.cert).filter_map(move |(position, certificate)| {
        let problem = match spki::validity(certificate) {
            Ok(period) => PeriodProblem::from_period(period, now)?,
            Err(_) => PeriodProblem::Unreadable,
        };
        let event = match problem {
            PeriodProblem::ExpiresSoon(_) => "certificate expires soon",
            PeriodProblem::Expired(_)
            | PeriodProblem::NotYetValid(_)
            | PeriodProblem::Unreadable => "certificate is not valid now",
        };
        let warning = file.warning(event, &format!("certificate {position} {problem}"));
        Some(warning.elsewhere(position == 1 && problem.is_expiry()))
    })
}
