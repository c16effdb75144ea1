//! One connection of an asker: the path from a question to its answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keygate_core::guard::{Decision, JudgedAt, Judgement, NameCheck};
use keygate_core::tls::{CertificateSummary, is_for_servers};
use keygate_core::unix_time;
use rustls::pki_types::{CertificateDer, UnixTime};
use smallvec::SmallVec;
use tokio::sync::watch;
use tokio::time::sleep;

use super::asker::{AskerRejection, AskingPeer};
use super::denial::{Denied, denial, unverified};
use super::judging::{assertion_of, finding_of, policy_for, presented, problem_of};
use super::question::{Answer, ClientQuestion, Presented, Unusable};
use super::shares::WaitingCount;
use super::worker::AskWorker;
use crate::client_log::AskedClient;
use crate::config::AuthorizerConfig;
use crate::metrics::{AuthorizerMetrics, QuestionResult};
use crate::process::lifecycle::Lifecycle;
use crate::snapshot::{Authorizer, Snapshot};

/// One connection of an asker. The code of its protocol reads its questions.
pub(crate) struct AskConnection {
    worker: Rc<AskWorker>,
    /// The authorizer at the time of the last question.
    authorizer: RefCell<Arc<Authorizer>>,
    /// The configuration when the connection was accepted.
    accepted_by: Arc<AuthorizerConfig>,
    asker: AskingPeer,
    /// The connections of the asker that wait.
    waiting: WaitingCount,
    /// Whether it closes after an answer, for one that waits.
    makes_room: Cell<bool>,
    metrics: Rc<AuthorizerMetrics>,
    /// The snapshot by which the asker was checked last, and the result.
    permission: Cell<(u64, Result<(), AskerRejection>)>,
}

/// Interval at which the certificate of an asker is verified again, because it may have expired.
const ASKER_CHECK: Duration = Duration::from_secs(60);

/// The certificates that are judged, leaf first.
type Judged<'a> = SmallVec<[&'a CertificateDer<'a>; 2]>;

impl AskConnection {
    pub(super) fn new(
        worker: &Rc<AskWorker>,
        authorizer: &Arc<Authorizer>,
        asker: AskingPeer,
        waiting: WaitingCount,
    ) -> Self {
        let metrics = worker.metrics_of(authorizer);
        metrics.askers_active.inc();
        Self {
            authorizer: RefCell::new(Arc::clone(authorizer)),
            accepted_by: Arc::clone(&authorizer.config),
            asker,
            waiting,
            makes_room: Cell::new(false),
            metrics,
            permission: Cell::new((0, Err(AskerRejection::Removed))),
            worker: Rc::clone(worker),
        }
    }

    /// The authorizer in the current snapshot.
    pub(crate) fn authorizer(&self) -> Arc<Authorizer> {
        self.follow(&self.worker.snapshot());
        Arc::clone(&self.authorizer.borrow())
    }

    /// The configuration of the authorizer in the current snapshot.
    pub(crate) fn config(&self) -> Arc<AuthorizerConfig> {
        Arc::clone(&self.authorizer().config)
    }

    /// The lifecycle of the process. A health check succeeds in [`Lifecycle::Serving`] only.
    pub(crate) fn lifecycle(&self) -> watch::Receiver<Lifecycle> {
        self.worker.lifecycle.clone()
    }

    /// Waits until the connection must be closed politely: the process drains, a reload has
    /// removed or moved the authorizer, or the asker may no longer ask. Questions until then are
    /// answered.
    pub(crate) async fn closing(&self) {
        let mut lifecycle = self.lifecycle();
        loop {
            // Created before the check, so that no change after the check is lost.
            let changed = self.worker.snapshots.notified();
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
                () = sleep(ASKER_CHECK) => {}
            }
        }
    }

    /// Whether the connection must close after its answer, because another one of its asker waits.
    pub(super) fn makes_room(&self) -> bool {
        self.makes_room.set(self.makes_room.get() || self.waiting.make_room_for_one());
        self.makes_room.get()
    }

    /// Whether the current snapshot permits the asker to ask.
    pub(super) fn may_ask(&self) -> bool {
        self.check_asker().is_ok()
    }

    /// Checks that the current snapshot permits the asker to ask.
    ///
    /// # Errors
    /// Returns the rule that rejects the asker.
    pub(super) fn check_asker(&self) -> Result<(), AskerRejection> {
        let snapshot = self.worker.snapshot();
        if !self.follow(&snapshot) {
            return Err(AskerRejection::Removed);
        }
        self.check_permission(&snapshot)
    }

    fn check_permission(&self, snapshot: &Snapshot) -> Result<(), AskerRejection> {
        let authorizer = self.authorizer.borrow();
        let permission = self.asker.check(&authorizer, &snapshot.guard, SystemTime::now());
        self.permission.set((snapshot.generation, permission));
        permission
    }

    /// Counts and logs the connection of a peer that may not ask.
    pub(super) fn reject(&self, rejection: AskerRejection) {
        self.worker.reject(&self.authorizer.borrow(), &self.asker, rejection);
    }

    /// Verifies, judges, decides, counts and logs. Never waits: a key that a source of proofs could
    /// clear is judged by what is known, and asked about for later questions.
    pub(crate) fn answer(&self, question: &ClientQuestion<'_>) -> Answer {
        let snapshot = self.worker.snapshot();
        let answer = if !self.follow(&snapshot) {
            self.metrics.questions.of(QuestionResult::Draining).inc();
            denial("the authorizer has been removed, or has another address or protocol")
        } else if let Err(rejection) = self.still_permitted(&snapshot) {
            self.reject(rejection);
            denial("the asker may no longer ask")
        } else {
            let authorizer = Arc::clone(&self.authorizer.borrow());
            authorizer.last_question.record(unix_time::now());
            match self.judge(&snapshot, &authorizer, question) {
                Ok(answer) => answer,
                Err(denied) => self.deny(&authorizer, question, denied),
            }
        };
        self.metrics.question_duration.observe(question.received.elapsed().as_secs_f64());
        answer
    }

    /// Checks that the asker may ask by this snapshot. A reload may have changed that since the
    /// last question.
    fn still_permitted(&self, snapshot: &Snapshot) -> Result<(), AskerRejection> {
        match self.permission.get() {
            (generation, permission) if generation == snapshot.generation => permission,
            _ => self.check_permission(snapshot),
        }
    }

    /// Takes the authorizer from the snapshot in use. Returns whether it is still configured, at
    /// the same address and with the same protocol. Other peers may ask on another address:
    /// `askers.from` does not apply to a peer on a Unix socket.
    fn follow(&self, snapshot: &Snapshot) -> bool {
        let mut authorizer = self.authorizer.borrow_mut();
        let Some(current) = snapshot.authorizer(authorizer.id) else { return false };
        if !Arc::ptr_eq(&authorizer, current) {
            let (now, before) = (&current.config, &self.accepted_by);
            if (&now.listen, now.protocol) != (&before.listen, before.protocol) {
                return false;
            }
            *authorizer = Arc::clone(current);
        }
        true
    }

    fn judge(
        &self,
        snapshot: &Snapshot,
        authorizer: &Authorizer,
        question: &ClientQuestion<'_>,
    ) -> Result<Answer, Denied> {
        let now = SystemTime::now();
        let Some(presented) = presented(question, authorizer.config.client_auth.mode)? else {
            self.metrics.questions.of(QuestionResult::Allowed).inc();
            return Ok(Answer { decision: Decision::Admit, reason: None, ..denial("") });
        };
        let policy = policy_for(&authorizer.config, presented.len());
        let verified = match &authorizer.client_verifier {
            Some(verifier) if !presented.is_empty() => {
                let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = UnixTime::since_unix_epoch(since_epoch);
                let verified = verifier.verify_presented(presented, now);
                Some(verified.map_err(|error| unverified(&error))?)
            }
            Some(_) | None => None,
        };
        let mut chain: Judged<'_> = SmallVec::new();
        match &verified {
            Some(verified) => verified.certificates().for_each(|it| chain.push(it)),
            None => presented.iter().for_each(|it| chain.push(it)),
        }
        let judgement = Judgement::new(&snapshot.guard, &policy, chain.iter().copied(), now);
        self.record(authorizer, question, &chain, &judgement);
        if self.worker.inquiry.is_enabled() && judgement.leaves_questions(policy.judge) {
            let open = snapshot.guard.open_questions(&policy, &chain, now);
            let _ = self.worker.inquiry.query(open); // later questions get the answer
        }
        // An applicant may ask about any key, and is no client that an update would reject.
        let is_client = authorizer.config.protocol.stage() != JudgedAt::Requested;
        if is_client && judgement.decision != Decision::Reject {
            self.record_admitted(snapshot, authorizer, &chain, presented);
        }
        let mut answer = Answer::new(&judgement, policy.judge);
        let problem = problem_of(&chain, &judgement);
        if !is_client && judgement.decision != Decision::Admit {
            answer.reason = Some(finding_of(&judgement, &chain, problem).into());
        } else if let (Some(reason), Some((_, problem))) = (&mut answer.reason, problem) {
            *reason = problem.into();
        }
        answer.assertion = assertion_of(authorizer, &chain, &judgement, now);
        Ok(answer)
    }

    /// Counts a judgement, and logs a client that is not simply admitted.
    fn record(
        &self,
        authorizer: &Authorizer,
        question: &ClientQuestion<'_>,
        chain: &[&CertificateDer<'_>],
        judgement: &Judgement,
    ) {
        self.metrics.judgements.count(authorizer.config.protocol.stage(), judgement);
        let is_rejected = judgement.decision == Decision::Reject;
        if judgement.decision != Decision::Admit {
            let asked = self.asked_client(authorizer, question);
            self.worker.log.asked_hit(&asked, chain, judgement);
        }
        if !is_rejected
            && authorizer.config.client_auth.accept_server_auth_until.is_some()
            && chain.iter().any(|it| is_for_servers(it))
        {
            self.metrics.judgements.server_auth_clients.inc();
            let asked = self.asked_client(authorizer, question);
            self.worker.log.asked_server_auth(&asked, chain, judgement);
        }
        let result = match judgement.names {
            NameCheck::NotAllowed => QuestionResult::ClientNotAllowed,
            NameCheck::Allowed | NameCheck::NotChecked if is_rejected => QuestionResult::Denied,
            NameCheck::Allowed | NameCheck::NotChecked => QuestionResult::Allowed,
        };
        self.metrics.questions.of(result).inc();
    }

    /// Records an admitted client, on which updates are tried.
    fn record_admitted(
        &self,
        snapshot: &Snapshot,
        authorizer: &Authorizer,
        chain: &[&CertificateDer<'_>],
        presented: &[CertificateDer<'_>],
    ) {
        let (Some(recent), Some(leaf)) = (&self.worker.recent, chain.first()) else { return };
        let subject = || CertificateSummary::new(leaf).name().to_owned();
        recent.record_path(authorizer.id, snapshot.guard.weak_checks(), chain, presented, subject);
    }

    /// Counts and logs a question that is denied without a judgement.
    fn deny(
        &self,
        authorizer: &Authorizer,
        question: &ClientQuestion<'_>,
        Denied { unusable, error }: Denied,
    ) -> Answer {
        let (result, word) = match unusable {
            Unusable::Malformed(_) => (QuestionResult::Malformed, "malformed"),
            Unusable::NoCertificate => (QuestionResult::NoCertificate, "no_certificate"),
            Unusable::NotVerified(_) => (QuestionResult::NotVerified, "not_verified"),
            Unusable::NotVouched => (QuestionResult::NotVouched, "not_vouched"),
            Unusable::Oversize => (QuestionResult::Oversize, "oversize"),
        };
        self.metrics.questions.of(result).inc();
        let asked = self.asked_client(authorizer, question);
        let leaf = match &question.presented {
            Presented::Chain(chain) => chain.first(),
            Presented::NoKey | Presented::None | Presented::Unusable(_) => None,
        };
        if let (Unusable::NotVouched, Some(leaf)) = (unusable, leaf) {
            let (client, authorizer) = (question.client, &authorizer.config.name);
            let error = error.as_deref().unwrap_or_default();
            self.worker.log.remember_not_vouched(client, authorizer, leaf, JudgedAt::Asked, error);
        }
        self.worker.log.unusable(&asked, leaf, (word, unusable.reason()), error.as_deref());
        denial(unusable.reason())
    }

    fn asked_client<'a>(
        &'a self,
        authorizer: &'a Authorizer,
        question: &'a ClientQuestion<'_>,
    ) -> AskedClient<'a> {
        let ClientQuestion { client, server_name: sni, object, .. } = *question;
        let (stage, authorizer) = (authorizer.config.protocol.stage(), &authorizer.config.name);
        AskedClient { authorizer, asker: &self.asker, client, sni, object, stage }
    }
}

impl Drop for AskConnection {
    fn drop(&mut self) {
        self.metrics.askers_active.dec();
    }
}
