//! The parts of a judgement: what is judged, by which policy, and what the answer says.

use std::borrow::Cow;
use std::time::SystemTime;

use hyper::header::{HeaderName, HeaderValue};
use keygate_core::guard::{Decision, Depth, JudgedAt, Judgement, NameCheck, Policy, Verdict};
use keygate_core::spki::{self, Fingerprint};
use keygate_core::tls::CertificateSummary;
use keygate_core::unix_time;
use rustls::pki_types::CertificateDer;

use super::denial::{Denied, UNREADABLE};
use super::question::{ClientQuestion, Presented, Unusable};
use crate::config::{AuthorizerConfig, ClientAuthMode};
use crate::snapshot::Authorizer;

/// The certificates of a question, which can be read; none of a client that needs none. `None` if
/// the request is about no key.
pub(super) fn presented<'a>(
    question: &'a ClientQuestion<'_>,
    mode: ClientAuthMode,
) -> Result<Option<&'a [CertificateDer<'a>]>, Denied> {
    let presented: &[CertificateDer<'_>] = match &question.presented {
        Presented::Chain(chain) if chain.is_empty() => Err(Unusable::NoCertificate)?,
        Presented::Chain(chain) => chain,
        Presented::NoKey => return Ok(None),
        Presented::None => match mode {
            ClientAuthMode::Optional => &[],
            ClientAuthMode::Required => Err(Unusable::NoCertificate)?,
        },
        Presented::Unusable(unusable) => Err(*unusable)?,
    };
    // A policy that flags unchecked keys must not admit what cannot be read.
    if presented.iter().any(|certificate| spki::of_certificate(certificate).is_err()) {
        Err(UNREADABLE)?;
    }
    Ok(Some(presented))
}

/// The policy for a question with so many certificates.
pub(super) fn policy_for(config: &AuthorizerConfig, presented: usize) -> Cow<'_, Policy> {
    let mut policy = Cow::Borrowed(&config.policy.decisions);
    // Optional certificates demand an `on_unchecked` that admits clients without one.
    if config.client_auth.mode == ClientAuthMode::Optional && presented > 0 {
        policy.to_mut().on_unchecked = Decision::Reject;
    }
    // These are no chain, but the keys of one request.
    if config.protocol.stage() == JudgedAt::Requested && presented > 1 {
        policy.to_mut().judge = Depth::Chain;
    }
    policy
}

/// The first key that is unchecked because of its encoding, and the problem.
pub(super) fn problem_of(
    chain: &[&CertificateDer<'_>],
    judgement: &Judgement,
) -> Option<(usize, &'static str)> {
    if judgement.verdict != Verdict::Unchecked || judgement.names == NameCheck::NotAllowed {
        return None;
    }
    chain.iter().enumerate().find_map(|(position, key)| {
        Some((position, spki::key_problem(spki::of_certificate(key).ok()?)?))
    })
}

/// The assertion about an admitted client, and the header for it.
pub(super) fn assertion_of(
    authorizer: &Authorizer,
    chain: &[&CertificateDer<'_>],
    judgement: &Judgement,
    now: SystemTime,
) -> Option<(HeaderName, HeaderValue)> {
    let (leaf, assertions) = chain.first().zip(authorizer.assertions.as_ref())?;
    if judgement.decision == Decision::Reject {
        return None;
    }
    let (now, summary) = (unix_time::seconds(now), CertificateSummary::new(leaf));
    let (value, _) = assertions.sign(now, leaf, &summary, judgement)?;
    Some((assertions.config.header.clone(), value))
}

/// The finding about a key that is not admitted without a word: its fingerprint, and the verdict or
/// the `problem` of the key at a position.
pub(super) fn finding_of(
    judgement: &Judgement,
    keys: &[&CertificateDer<'_>],
    problem: Option<(usize, &str)>,
) -> String {
    let position = problem.map(|(position, _)| position).or(judgement.verdict.position());
    let key = keys.get(position.unwrap_or(0));
    let spki = key.and_then(|key| spki::of_certificate(key).ok()).unwrap_or_default();
    let (fingerprint, verdict) = (Fingerprint::of(spki), judgement.verdict.to_string());
    let cause = problem.map_or(&*verdict, |(_, text)| text);
    let (outcome, remedy) = match judgement.decision == Decision::Reject {
        true => ("rejected", "; make a new key"),
        false => ("flagged", ""),
    };
    format!("the key with the fingerprint {fingerprint} is {outcome}: {cause}{remedy}")
}
