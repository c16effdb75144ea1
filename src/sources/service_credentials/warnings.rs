//! The conditions of the files of a service that an operator must mend.

use std::collections::HashSet;
use std::path::Path;
use std::time::SystemTime;

use keygate_core::guard::AllowKind;
use keygate_core::spki;
use keygate_core::tls::{self, AnchorKind, CertificateSummary, Credentials, TrustAnchors};
use keygate_core::unix_time;
use rustls::pki_types::CertificateDer;

use super::ServiceCredentials;
use crate::config::RevocationDepth;
use crate::sources::credential_files::{CredentialFiles, TRUST_ANCHORS};
use crate::sources::warning::{CertificateFile, PeriodProblem, Warning};

impl ServiceCredentials {
    /// The conditions of the files that an operator must mend.
    pub(in crate::sources) fn warnings(
        &self,
        files: CredentialFiles<'_>,
        now: SystemTime,
    ) -> Vec<Warning> {
        let owner = files.owner();
        let crls = self.crls().warnings().iter();
        let mut warnings: Vec<_> = crls.map(|problem| Warning::crl(&owner, problem)).collect();
        warnings.extend(self.missing_crls(files));
        let upstream = self.upstream.get().as_ref();
        let own = [&self.server, &self.alternative].into_iter().flat_map(|pair| pair.get());
        let exposed = own.filter_map(|pair| pair.exposed.as_ref());
        let exposed = exposed.chain(upstream.and_then(|it| it.exposed.as_ref()));
        warnings.extend(exposed.map(Warning::unsafe_permissions));
        let certificate =
            |key, path: &Path| CertificateFile { owner: files.owner(), key, path: path.to_owned() };
        let own = [
            ("tls.certificate", &self.server, files.server),
            ("tls.alternative.certificate", &self.alternative, files.alternative),
        ];
        for (key, pair, paths) in own {
            let (Some(pair), Some((path, _))) = (pair.get(), paths) else { continue };
            let (server, file) = (&pair.credentials, certificate(key, path));
            warnings.extend(period_warnings(server, &file, now));
            for name in tls::uncovered_names(server, files.server_names) {
                warnings.push(Warning::name_not_covered(&file, name));
            }
        }
        let client = upstream.and_then(|it| it.client.as_ref());
        let identity = files.upstream.and_then(|(tls, _)| tls.identity.as_ref());
        if let (Some(client), Some(identity)) = (client, identity) {
            let file = certificate("upstream.tls.certificate", &identity.certificate);
            warnings.extend(period_warnings(client, &file, now));
        }
        let cas = &self.clients.get().cas;
        let of_clients = |ca: &_| cas.file_of(ca).map(|it| certificate(it.key, &it.path));
        let of_askers = |_: &_| files.asker_ca.map(|path| certificate("tls.client_ca", path));
        let own = self.key_pair().and_then(|server| server.cert.first());
        let until = files.accept_server_auth_until;
        let mut warn = |anchors: &TrustAnchors, file_of: &dyn Fn(&_) -> Option<CertificateFile>| {
            for (ca, problem) in
                anchors.problems(own, self.crls(), until.is_some_and(|it| now < it))
            {
                let file = file_of(ca);
                warnings.extend(file.map(|it| Warning::trust_anchor_unusable(&it, &problem)));
            }
            for (ca, period) in anchors.with_validity() {
                if let Some(problem) = PeriodProblem::of(period, unix_time::seconds(now)) {
                    let (file, subject) = (file_of(ca), CertificateSummary::new(ca).subject);
                    let warning = |it| Warning::trust_anchor_period(&it, &subject, problem);
                    warnings.extend(file.map(warning));
                }
            }
        };
        cas.trust_anchors.iter().for_each(|anchors| warn(anchors, &of_clients));
        self.asker_ca.get().iter().for_each(|anchors| warn(anchors, &of_askers));
        let is_checked = files.revocation == RevocationDepth::Path;
        if let Some(path) = files.intermediates.filter(|_| is_checked) {
            let file = certificate("client_auth.intermediates", path);
            let revoked = cas.intermediates.iter().filter(|ca| self.crls().revoke(ca));
            let names = revoked.map(|ca| CertificateSummary::new(ca).subject);
            warnings.extend(names.map(|name| Warning::intermediate_revoked(&file, &name)));
        }
        warnings.extend(self.unbound_cas(files));
        warnings
    }

    /// The warning that each of several CAs may vouch for a client that a rule names. Certificates of
    /// one key are one CA.
    fn unbound_cas(&self, files: CredentialFiles<'_>) -> Option<Warning> {
        let cas = &self.clients.get().cas;
        let bounds = files.rules?.as_bounds();
        let (_, rules) = files.rules?.summary();
        let rule = rules.iter().find(|rule| !rule.starts_with(AllowKind::Spki.as_str()))?;
        let anchors = cas.trust_anchors.iter().flat_map(|it| it.with_kind());
        let roots = anchors.filter(|(_, kind)| *kind == AnchorKind::Root).map(|(ca, _)| ca);
        let mut keys = HashSet::new();
        let roots: Vec<_> = roots.filter(|ca| keys.insert(spki::of_certificate(ca).ok())).collect();
        let bound = cas.bound(files);
        let unbound = roots.iter().filter(|ca| !bound.binds(ca));
        let unbound: Vec<_> = unbound.map(|ca| CertificateSummary::new(ca).subject).collect();
        let (path, first) = (files.trust_anchors?.to_owned(), unbound.first()?);
        let file = CertificateFile { owner: files.owner(), key: TRUST_ANCHORS, path };
        let others = unbound.len().saturating_sub(1);
        (roots.len() > 1).then(|| Warning::unbound_ca(&file, (first, others), rule, &bounds))
    }

    /// The CAs that have no CRL, if there are CRLs. A pin issues nothing.
    ///
    /// With `revocation = "leaf"` a root that issues intermediates only needs no CRL. There is no
    /// warning for a trust anchor that issued one of the `intermediates`.
    fn missing_crls(&self, files: CredentialFiles<'_>) -> Vec<Warning> {
        let file =
            |key, path: &Path| CertificateFile { owner: files.owner(), key, path: path.to_owned() };
        let cas = &self.clients.get().cas;
        let Some(trust_anchors) = &cas.trust_anchors else { return Vec::new() };
        let intermediates = files.intermediates.map(|path| file("client_auth.intermediates", path));
        if files.crls.is_empty() {
            // An authorizer completes the paths of its clients with them.
            let unused = intermediates.filter(|_| !files.is_authorizer);
            return unused.iter().map(Warning::intermediates_unused).collect();
        }
        let is_root_of_others =
            files.revocation == RevocationDepth::Leaf && intermediates.is_some();
        let is_outage = self.clients.get().lacks_every_crl(files);
        let missing = |file: &CertificateFile, ca: &CertificateDer<'_>| {
            let warning =
                || Warning::crl_missing(file, &CertificateSummary::new(ca).subject, is_outage);
            (!self.crls().cover(ca)).then(warning)
        };
        let issuers = trust_anchors.with_kind().filter(|(_, kind)| *kind != AnchorKind::Pin);
        let roots = issuers
            .map(|(ca, _)| ca)
            .filter(|ca| !(is_root_of_others && tls::issued_any(ca, &cas.intermediates)));
        let roots = roots.filter_map(|ca| {
            let of_ca = cas.file_of(ca)?;
            missing(&file(of_ca.key, &of_ca.path), ca)
        });
        let below = intermediates.iter().flat_map(|file| {
            let cas = cas.intermediates.iter();
            cas.filter_map(|ca| missing(file, ca))
        });
        roots.chain(below).collect()
    }
}

/// The certificates of a chain whose validity period is a problem.
fn period_warnings(
    credentials: &Credentials,
    file: &CertificateFile,
    now: SystemTime,
) -> impl Iterator<Item = Warning> {
    let now = unix_time::seconds(now);
    let problems = (1..).zip(&credentials.cert).filter_map(move |(position, certificate)| {
        let problem = match spki::validity(certificate) {
            Ok(period) => PeriodProblem::of(period, now)?,
            Err(_) => PeriodProblem::Unreadable,
        };
        Some((position, problem))
    });
    problems.map(|(position, problem)| Warning::certificate_period(file, position, problem))
}
