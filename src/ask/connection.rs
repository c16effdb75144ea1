//! One connection of an asker: the path from a question to its answer.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use hyper::header::HeaderValue;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;
use tokio::sync::watch;

use super::asker::AskingPeer;
use super::question::{Answer, ClientQuestion, Presented, Unusable};
use super::worker::AskWorker;
use crate::client_log::AskedClient;
use crate::config::{AuthorizerConfig, ClientAuthMode};
use crate::guard::{Decision, Depth, Judgement, Verdict, VerdictKind};
use crate::metrics::{AuthorizerMetrics, QuestionResult};
use crate::permit::CountGuard;
use crate::process::lifecycle::Lifecycle;
use crate::snapshot::{Authorizer, Snapshot};
use crate::spki;
use crate::tls::CertificateSummary;

/// One connection of an asker. A door reads its questions.
pub(crate) struct AskConnection {
    worker: Rc<AskWorker>,
    /// The authorizer at the time of the last question.
    authorizer: RefCell<Arc<Authorizer>>,
    asker: AskingPeer,
    metrics: Rc<AuthorizerMetrics>,
    _open: CountGuard,
}

/// The certificates that are judged, leaf first.
type Judged<'a> = SmallVec<[&'a CertificateDer<'a>; 2]>;

impl AskConnection {
    pub(super) fn new(
        worker: &Rc<AskWorker>,
        authorizer: &Arc<Authorizer>,
        asker: AskingPeer,
    ) -> Self {
        let metrics = worker.metrics_of(authorizer);
        metrics.askers_active.inc();
        Self {
            authorizer: RefCell::new(Arc::clone(authorizer)),
            asker,
            metrics,
            _open: worker.enter(),
            worker: Rc::clone(worker),
        }
    }

    /// The configuration of the authorizer in the current snapshot.
    pub(crate) fn config(&self) -> Arc<AuthorizerConfig> {
        self.follow(&self.worker.snapshot());
        Arc::clone(&self.authorizer.borrow().config)
    }

    /// The lifecycle of the process. A health check fails from [`Lifecycle::NotReady`] on.
    pub(crate) fn lifecycle(&self) -> watch::Receiver<Lifecycle> {
        self.worker.lifecycle.clone()
    }

    /// Waits until the door must close the connection politely: the process drains, a reload has
    /// removed the authorizer, or the asker may no longer ask. Questions until then are answered.
    pub(crate) async fn closing(&self) {
        let mut lifecycle = self.lifecycle();
        loop {
            // Created before the check, so that no change after the check is lost.
            let changed = self.worker.snapshot_changed();
            let phase = *lifecycle.borrow_and_update();
            if matches!(phase, Lifecycle::Draining | Lifecycle::Stopped) || !self.may_ask() {
                return;
            }
            tokio::select! {
                changed = lifecycle.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = changed => {}
            }
        }
    }

    /// Whether the current snapshot permits the asker to ask.
    pub(super) fn may_ask(&self) -> bool {
        self.follow(&self.worker.snapshot())
            && self.asker.is_permitted(&self.authorizer.borrow().config)
    }

    /// Counts and logs the connection of a peer that may not ask.
    pub(super) fn reject(&self) {
        self.metrics.questions.of(QuestionResult::NotAllowed).inc();
        self.worker.log.unauthorized(&self.authorizer.borrow().config.name, &self.asker);
    }

    /// Counts a question that gets no answer, because the process drains.
    pub(crate) fn count_draining(&self) {
        self.metrics.questions.of(QuestionResult::Draining).inc();
    }

    /// Verifies, judges, decides, counts and logs. Never waits: a key that a source of proofs could
    /// clear is judged by what is known, and asked about for later questions.
    pub(crate) fn answer(&self, question: &ClientQuestion<'_>) -> Answer {
        let snapshot = self.worker.snapshot();
        let answer = if self.follow(&snapshot) {
            let authorizer = Arc::clone(&self.authorizer.borrow());
            match self.judge(&snapshot, &authorizer, question) {
                Ok(answer) => answer,
                Err(unusable) => self.deny(&authorizer, question, unusable),
            }
        } else {
            self.count_draining();
            denial("the authorizer has been removed from the configuration")
        };
        self.metrics.question_duration.observe(question.received.elapsed().as_secs_f64());
        answer
    }

    /// Takes the authorizer from the snapshot in use. Returns whether it is still configured.
    fn follow(&self, snapshot: &Snapshot) -> bool {
        let mut authorizer = self.authorizer.borrow_mut();
        let Some(current) = snapshot.authorizer(authorizer.id) else { return false };
        if !Arc::ptr_eq(&authorizer, current) {
            *authorizer = Arc::clone(current);
        }
        true
    }

    fn judge(
        &self,
        snapshot: &Snapshot,
        authorizer: &Authorizer,
        question: &ClientQuestion<'_>,
    ) -> Result<Answer, Unusable> {
        let (policy, now) = (&authorizer.config.policy, SystemTime::now());
        let chain: Judged<'_> = match &question.presented {
            Presented::Chain(chain) => chain.iter().collect(),
            Presented::None => match authorizer.config.client_auth.mode {
                ClientAuthMode::Optional => SmallVec::new(),
                ClientAuthMode::Required => return Err(NO_CERTIFICATE),
            },
            Presented::Unusable(unusable) => return Err(*unusable),
        };
        // A policy that flags unchecked keys must not admit what cannot be read.
        if chain.iter().any(|certificate| spki::of_certificate(certificate).is_err()) {
            return Err(UNREADABLE);
        }
        let judgement = Judgement::new(&snapshot.guard, policy, chain.iter().copied(), now);
        let Judgement { verdict, decision } = &judgement;
        self.metrics.count_judgement(verdict, *decision);
        if *decision != Decision::Admit {
            let asked = self.asked_client(&authorizer.config.name, question);
            self.worker.log.asked_hit(&asked, &chain, verdict, *decision);
        }
        if self.worker.inquiry.is_enabled() && judgement.leaves_questions(policy.judge) {
            let open = snapshot.guard.open_questions(policy, &chain, now);
            let _ = self.worker.inquiry.ask(open); // later questions get the answer
        }
        let is_rejected = *decision == Decision::Reject;
        if !is_rejected && (policy.judge == Depth::Chain || judgement.depends_on_filters()) {
            self.record_admitted(authorizer, &chain);
        }
        let result = if is_rejected { QuestionResult::Denied } else { QuestionResult::Allowed };
        self.metrics.questions.of(result).inc();
        Ok(answer_of(verdict, *decision))
    }

    /// Records the keys of an admitted client, against which filter updates are tried.
    fn record_admitted(&self, authorizer: &Authorizer, chain: &[&CertificateDer<'_>]) {
        let (Some(recent), Some(leaf)) = (&self.worker.recent, chain.first()) else { return };
        let judged = match authorizer.config.policy.judge {
            Depth::Chain => chain,
            Depth::Leaf => std::slice::from_ref(leaf),
        };
        let keys = judged.iter().filter_map(|certificate| spki::of_certificate(certificate).ok());
        recent.record(authorizer.id, keys, || CertificateSummary::of(leaf).subject);
    }

    /// Counts and logs a question that is denied without a judgement.
    fn deny(
        &self,
        authorizer: &Authorizer,
        question: &ClientQuestion<'_>,
        unusable: Unusable,
    ) -> Answer {
        let (result, word) = match unusable {
            Unusable::Malformed(_) => (QuestionResult::Malformed, "malformed"),
            Unusable::NotVerified(_) => (QuestionResult::NotVerified, "not_verified"),
            Unusable::Oversize => (QuestionResult::Oversize, "oversize"),
        };
        self.metrics.questions.of(result).inc();
        let asked = self.asked_client(&authorizer.config.name, question);
        self.worker.log.unusable(&asked, word, unusable.reason());
        denial(unusable.reason())
    }

    fn asked_client<'a>(
        &'a self,
        authorizer: &'a str,
        question: &'a ClientQuestion<'_>,
    ) -> AskedClient<'a> {
        let ClientQuestion { client, server_name: sni, .. } = *question;
        AskedClient { authorizer, asker: &self.asker, client, sni }
    }
}

impl Drop for AskConnection {
    fn drop(&mut self) {
        self.metrics.askers_active.dec();
    }
}

const NO_CERTIFICATE: Unusable = Unusable::Malformed("the question has no client certificate");
const UNREADABLE: Unusable = Unusable::Malformed("a certificate in the question cannot be read");

/// The answer to a question that was judged.
fn answer_of(verdict: &Verdict, decision: Decision) -> Answer {
    let is_rejected = decision == Decision::Reject;
    let word = HeaderValue::from_static(verdict.as_str());
    let status = match verdict {
        Verdict::Allowed | Verdict::Clean | Verdict::Unchecked => word,
        _ if is_rejected => word,
        Verdict::Cleared(_) | Verdict::Confirmed(_) | Verdict::Listed(_) | Verdict::Probable(_) => {
            HeaderValue::from_str(&verdict.to_string()).unwrap_or(word)
        }
    };
    Answer {
        decision,
        verdict: verdict.kind(),
        status,
        reason: is_rejected.then(|| verdict.rejection()),
        filter: verdict.hit().map(|hit| (Arc::clone(&hit.filter), hit.revision)),
    }
}

/// The answer to a question that is denied without a judgement.
fn denial(reason: &'static str) -> Answer {
    Answer {
        decision: Decision::Reject,
        verdict: VerdictKind::Unchecked,
        status: HeaderValue::from_static("unchecked"),
        reason: Some(reason),
        filter: None,
    }
}
