//! Which certificates of a file are roots, and which ones intermediates.
//!
//! `files` has the file of each certificate. A certificate depends on its own file and on
//! [`UNBOUND`].

use std::collections::{HashMap, HashSet};

use rustls::pki_types::CertificateDer;

use super::{AnchorFacts, AnchorKind};
use crate::spki;
use crate::tls::signature::Signed;

/// The file whose CAs may vouch for all names.
const UNBOUND: usize = 0;

/// For each certificate, the indexes of the CAs that issued it. A certificate that its own key
/// signed has none; a CA with a new key, which its old one signed, has the name of its issuer.
pub(super) fn issuers(
    certificates: &[CertificateDer<'_>],
    facts: &[AnchorFacts],
    files: &[usize],
) -> Vec<Vec<usize>> {
    let mut by_name: HashMap<&[u8], Vec<(usize, &[u8])>> = HashMap::new();
    for ((index, facts), certificate) in facts.iter().enumerate().zip(certificates) {
        if facts.rules.is_ca
            && let Ok(spki) = spki::of_certificate(certificate)
        {
            by_name.entry(&facts.subject).or_default().push((index, spki));
        }
    }
    let issuers = facts.iter().zip(certificates).zip(files).map(|((facts, certificate), file)| {
        let is_near = |index| files.get(index).is_some_and(|of| [*file, UNBOUND].contains(of));
        let named = by_name.get(&facts.issuer[..]);
        let (Some(named), Ok(signed)) = (named, Signed::parse(certificate)) else {
            return Vec::new();
        };
        let own = spki::of_certificate(certificate).ok().filter(|_| facts.issuer == facts.subject);
        if own.is_some_and(|own| signed.verify(own).is_ok()) {
            return Vec::new();
        }
        let signers =
            named.iter().filter(|(index, spki)| is_near(*index) && signed.verify(spki).is_ok());
        signers.map(|(index, _)| *index).collect()
    });
    issuers.collect()
}

/// Makes intermediates of the roots that a root leads to.
///
/// One CA of a circle that no root leads to stays a root: the first of the file, or the CA that
/// its issuers lead to.
pub(super) fn tell_apart(facts: &mut [AnchorFacts], issuers: &[Vec<usize>]) {
    let issuers_of = |index: usize| issuers.get(index).map_or(&[][..], Vec::as_slice);
    let mut open: Vec<usize> = (0..facts.len()).collect();
    open.retain(|index| !issuers_of(*index).is_empty());
    open.retain(|index| facts.get(*index).is_some_and(|facts| facts.kind == AnchorKind::Root));
    while let Some(first) = open.first() {
        let before = open.len();
        // The issuers of those that are still open may be roots themselves.
        let (found, rest): (Vec<_>, Vec<_>) = (open.iter().copied())
            .partition(|index| issuers_of(*index).iter().any(|issuer| !open.contains(issuer)));
        for index in found {
            if let Some(facts) = facts.get_mut(index) {
                facts.kind = AnchorKind::Intermediate;
            }
        }
        if rest.len() == before {
            let (mut seen, mut top) = (Vec::new(), *first);
            while !seen.contains(&top) {
                seen.push(top);
                top = issuers_of(top).first().copied().unwrap_or(top);
            }
            open.retain(|index| *index != top);
        } else {
            open = rest;
        }
    }
}

/// Makes intermediates of the certificates that a CA outside the file issued for the key of an
/// intermediate. They would end its paths before the root that may have revoked it.
pub(super) fn demote_cross_signed(
    certificates: &[CertificateDer<'_>],
    facts: &mut [AnchorFacts],
    issuers: &[Vec<usize>],
    files: &[usize],
) {
    let ca = |index: usize| {
        let spki = spki::of_certificate(certificates.get(index)?).ok()?;
        Some((*files.get(index)?, &facts.get(index)?.subject, spki))
    };
    let of_kind = |kind| {
        let all = facts.iter().enumerate();
        all.filter(move |(_, it)| it.kind == kind)
    };
    let below: HashSet<_> =
        of_kind(AnchorKind::Intermediate).filter_map(|(index, _)| ca(index)).collect();
    let (cross, others): (Vec<_>, Vec<_>) =
        of_kind(AnchorKind::Root).partition(|(index, facts)| {
            facts.issuer != facts.subject
                && issuers.get(*index).is_some_and(Vec::is_empty)
                && ca(*index).is_some_and(|(file, subject, spki)| {
                    [file, UNBOUND].iter().any(|file| below.contains(&(*file, subject, spki)))
                })
        });
    if others.is_empty() {
        return; // no path would have an end
    }
    let cross: Vec<_> = cross.into_iter().map(|(index, _)| index).collect();
    for index in cross {
        if let Some(facts) = facts.get_mut(index) {
            facts.kind = AnchorKind::Intermediate;
        }
    }
}
