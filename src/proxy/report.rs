//! The line of the log about a client whose key is not clean.

use std::net::SocketAddr;

use rustls::pki_types::CertificateDer;
use tracing::warn;

use crate::guard::{Decision, Verdict};
use crate::metrics::{Label, Stage};
use crate::snapshot::Service;
use crate::spki::Encoding;
use crate::tls::CertificateSummary;

/// One line for every client whose key is not clean.
pub(super) fn report(
    peer: SocketAddr,
    service: &Service,
    chain: &[CertificateDer<'_>],
    verdict: &Verdict,
    stage: Stage,
    decision: Decision,
) {
    let client = chain.first().map(CertificateSummary::of);
    let client = client.as_ref();
    // Of the client's own key the line speaks anyhow.
    let issuer = verdict.position().filter(|position| *position > 0);
    let issuer = issuer.and_then(|position| chain.get(position)).map(CertificateSummary::of);
    let issuer = issuer.as_ref();
    let hit = verdict.hit();
    let what = match (decision, stage) {
        (Decision::Reject, Stage::Live) => "refused, its open connection ends",
        (Decision::Reject, Stage::Handshake | Stage::Resumed) => "refused",
        (Decision::Admit | Decision::Annotate | Decision::Flag, _) => "flagged",
    };
    warn!(
        target: "keygate::client_key",
        %peer,
        service = %service.config.name,
        subject = client.map(|client| client.subject.as_str()),
        issuer = client.map(|client| client.issuer.as_str()),
        serial = client.map(|client| client.serial.as_str()),
        fingerprint = client.map(|client| client.fingerprint.as_str()),
        stage = stage.as_str(),
        verdict = verdict.as_str(),
        action = decision.as_str(),
        filter = hit.map(|hit| &*hit.filter),
        revision = hit.map(|hit| hit.revision),
        list = verdict.listing().map(|listing| &*listing.list),
        found_subject = issuer.map(|issuer| issuer.subject.as_str()),
        found_fingerprint = issuer.map(|issuer| issuer.fingerprint.as_str()),
        encoding = verdict.encoding().map(Encoding::as_str),
        false_positive_ratio = hit.map(|hit| hit.false_positive_ratio),
        "client key {what}"
    );
}
