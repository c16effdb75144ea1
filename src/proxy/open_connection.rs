//! An open connection: its client, the judgement of the client's key, and its end.
//!
//! A client is judged when its connection is admitted and again after every swap of the snapshot.
//! A client that is then rejected, or whose certificate expires, is evicted: requests in flight
//! finish, new ones get 403, and the connection closes within `evict_within`. A connection with
//! tunnels closes at once if the client's key is proved to be compromised.

pub(crate) mod state;
pub(crate) mod tls_facts;

use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use hyper::StatusCode;
use hyper::header::HeaderValue;
use keygate_core::guard::{Decision, Depth, JudgedAt, Judgement, OpenQuestions, Verdict};
use keygate_core::tls::{self, CertificateSummary, ClientIdentity, HandshakeResult};
use keygate_core::unix_time;
use keygate_wire::permit::ledger::{self, Holder};
use keygate_wire::permit::{BufferClass, ClientKey};
use tracing::info;

use self::state::{Close, ConnectionKind, ConnectionState};
use self::tls_facts::TlsFacts;
use super::message::headers::own_fields::NewestAssertion;
use super::message::headers::{OwnNames, key_status};
use crate::client_log::RefusalLog;
use crate::config::{AlpnProtocol, Protocol};
use crate::metrics::ServiceMetrics;
use crate::snapshot::{Routes, Service, Snapshot};

/// Counts a judgement, and logs it unless the client is admitted.
pub(crate) fn record_judgement(
    judgement: &Judgement,
    log: &RefusalLog,
    metrics: &ServiceMetrics,
    service: &Service,
    identity: &ClientIdentity,
    judged_at: JudgedAt,
) {
    metrics.judgements.count(judged_at, judgement);
    if judgement.decision != Decision::Admit {
        identity.with_path(|path| {
            log.hit(identity.peer(), service, path, judgement, judged_at);
        });
    }
}

/// The work of verifying a client's chain again, in judged certificates: a signature takes about a
/// hundred times as long as the judgement of a key.
pub(crate) const VERIFICATION_WORK: usize = 100;

/// Why open connections are judged again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewJudgement {
    /// New answers about keys, or an expired exception. Only changed verdicts count in the metrics.
    Answers,
    /// A new snapshot, or a path that has expired.
    Snapshot,
}

/// The response to every further request of a client that may send none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestRejection {
    pub(crate) status: StatusCode,
    /// The reason, in words for the client.
    pub(crate) reason: &'static str,
}

/// An open connection that serves requests.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    pub(crate) state: Rc<ConnectionState>,
    /// The service at the time of the last judgement.
    service: RefCell<Arc<Service>>,
    /// The services by SNI name at the time of the last judgement.
    routes: RefCell<Arc<Routes>>,
    /// The host of the last request that was for this service. Most requests repeat it. A copy,
    /// because the field of the request keeps hyper's whole read buffer in memory.
    host: RefCell<Option<HeaderValue>>,
    pub(crate) identity: ClientIdentity,
    /// The client, for limits that count by client.
    pub(crate) client: ClientKey,
    judgement: RefCell<Judgement>,
    /// Removed from every request and its trailers.
    own_names: RefCell<Rc<OwnNames>>,
    /// The value of the status header for the next request.
    key_status: RefCell<Option<HeaderValue>>,
    /// The assertion of the last judgement, and the seconds since the Unix epoch in which it is used.
    assertion: RefCell<Option<(HeaderValue, Range<u64>)>>,
    is_evicted: Cell<bool>,
    /// Set for a client that may send no more requests. A client may ignore GOAWAY and send
    /// requests until its connection is closed.
    pub(crate) rejection: Cell<Option<RequestRejection>>,
    has_responded: Cell<bool>,
    summary: OnceCell<Option<Box<CertificateSummary>>>,
    /// `None` unless the access log is on.
    pub(crate) tls_facts: Option<Box<TlsFacts>>,
}

impl OpenConnection {
    /// A connection that `judgement` admits, or rejects with responses.
    pub(crate) fn new(
        snapshot: &Snapshot,
        service: Arc<Service>,
        (identity, client): (ClientIdentity, ClientKey),
        judgement: Judgement,
        alpn: Option<&[u8]>,
        tls_facts: Option<Box<TlsFacts>>,
    ) -> Rc<Self> {
        let is_http2 = alpn == Some(AlpnProtocol::H2.as_bytes());
        let kind = match service.config.protocol {
            Protocol::Http if is_http2 => ConnectionKind::Http2,
            Protocol::Http => ConnectionKind::Http1,
            Protocol::Tcp => ConnectionKind::Tunnel,
        };
        let is_rejected = judgement.decision == Decision::Reject;
        Rc::new(Self {
            state: ConnectionState::new(&service.config.limits, kind),
            key_status: RefCell::new(key_status(&service.config, &judgement.verdict)),
            own_names: RefCell::new(Rc::new(OwnNames::new(&service.config.policy))),
            assertion: RefCell::default(),
            service: RefCell::new(service),
            routes: RefCell::new(Arc::clone(snapshot.routes())),
            host: RefCell::default(),
            identity,
            client,
            is_evicted: Cell::new(false),
            rejection: Cell::new(is_rejected.then(|| forbidden(judgement.rejection()))),
            judgement: RefCell::new(judgement),
            has_responded: Cell::new(false),
            summary: OnceCell::new(),
            tls_facts,
        })
    }

    /// The service at the time of the last judgement.
    pub(crate) fn service(&self) -> Ref<'_, Arc<Service>> {
        self.service.borrow()
    }

    /// Whether the last request that was for this service had the same host.
    pub(crate) fn is_same_host(&self, host: &HeaderValue) -> bool {
        self.host.borrow().as_ref() == Some(host)
    }

    /// The host of the last request that was for this service, if it is `host`.
    pub(crate) fn known_host(&self, host: &str) -> Option<HeaderValue> {
        self.host.borrow().as_ref().filter(|known| *known == host).cloned()
    }

    /// Whether a request for `host`, whose name is `name`, is for this service. A client that one
    /// service admitted must not reach another.
    pub(crate) fn serves_host(&self, host: &HeaderValue, name: &str) -> bool {
        let service = self.service.borrow();
        let index = self.routes.borrow().service_id(service.config.listen, Some(name));
        let serves = index == Some(service.id);
        if serves {
            self.host.replace(HeaderValue::from_bytes(host.as_bytes()).ok());
        }
        serves
    }

    /// The verdict in one word, for the access log.
    pub(crate) fn verdict_word(&self) -> &'static str {
        self.judgement.borrow().verdict.as_str()
    }

    /// The client's certificate, decoded at the first call. `None` for a client without one.
    pub(crate) fn client_summary(&self) -> Option<&CertificateSummary> {
        let compute = || Some(Box::new(CertificateSummary::new(self.identity.leaf()?)));
        self.summary.get_or_init(compute).as_deref()
    }

    /// The fingerprint of the client's key.
    pub(crate) fn fingerprint(&self) -> Option<&str> {
        let fingerprint = self.client_summary()?.fingerprint.as_str();
        Some(fingerprint).filter(|fingerprint| !fingerprint.is_empty())
    }

    /// The names of the fields of the service's policy.
    pub(crate) fn own_names(&self) -> Rc<OwnNames> {
        Rc::clone(&self.own_names.borrow())
    }

    /// The value of the status header; `None` if the policy sets none.
    pub(crate) fn key_status(&self) -> Option<HeaderValue> {
        self.key_status.borrow().clone()
    }

    /// Records that a request and its response have ended.
    pub(crate) fn end_request(&self) {
        self.state.end_request();
        self.has_responded.set(true);
    }

    /// Rejects every request with 429, because the client's address has too many connections.
    pub(crate) fn reject_over_limit(&self) {
        self.rejection.set(Some(RequestRejection {
            status: StatusCode::TOO_MANY_REQUESTS,
            reason: "too many connections from this address",
        }));
    }

    /// Checks the timeouts of the connection. Returns whether the client's path has expired, and
    /// the client must be judged again.
    #[must_use]
    pub(crate) fn check(&self, now: Instant, time: SystemTime) -> bool {
        // At the next tick, not with the response: h2 sends GOAWAY before pending DATA, and some
        // clients then abandon a request whose body they are still sending.
        if let Some(rejection) = self.rejection.get()
            && (self.has_responded.get() || self.state.is_older_than_header_timeout(now))
            && !self.is_evicted.get()
        {
            self.evict(rejection);
        }
        self.state.check(now);
        let holder = Holder { client: self.client, class: BufferClass::Tls };
        if self.state.kind.get() == ConnectionKind::Http2
            && !ledger::is_nearly_empty()
            && !holder.has_share()
        {
            self.state.check_close(); // frames beyond the share are not read
        }
        !self.is_evicted.get() && self.identity.is_due_for_check(time)
    }

    /// Judges the client by a snapshot, which may be new, and over another path if the path has
    /// expired. A client that is rejected now is evicted. For the others the next request carries
    /// the new verdict.
    ///
    /// Returns the work that was done: the number of certificates that were judged. Verified
    /// signatures count as [`VERIFICATION_WORK`].
    pub(crate) fn judge_again(
        &self,
        snapshot: &Snapshot,
        reason: NewJudgement,
        metrics_of: impl Fn(&Service) -> Rc<ServiceMetrics>,
        refusal_log: &RefusalLog,
        time: SystemTime,
    ) -> usize {
        if self.is_evicted.get() {
            return self.judge_tunnels(snapshot, time);
        }
        let before = Arc::clone(&self.service.borrow());
        let Some(service) = snapshot.current(&before) else {
            let (peer, service) = (self.identity.peer(), &before.config.name);
            info!(%peer, %service, "service removed, closing connection");
            let reason = "the service has been removed";
            self.evict(RequestRejection { status: StatusCode::MISDIRECTED_REQUEST, reason });
            return 0;
        };
        // The path is found before it is judged, because another CA may now be its anchor.
        let is_new_verifier = !Arc::ptr_eq(&before.client_verifier, &service.client_verifier);
        self.follow(snapshot, service);
        let verified = self.verify_again(service, is_new_verifier, refusal_log, time);
        if self.is_evicted.get() || self.rejection.get().is_some() {
            return verified;
        }
        let judgement =
            self.identity.judge(&snapshot.guard, &service.config.policy.decisions, time);
        let judged = match service.config.policy.decisions.judge {
            Depth::Chain => self.identity.path_length(),
            Depth::Leaf => 1,
        };
        let is_new = *self.judgement.borrow() != judgement;
        let (metrics, at) = (metrics_of(service), JudgedAt::Reload);
        if is_new {
            let identity = &self.identity;
            record_judgement(&judgement, refusal_log, &metrics, service, identity, at);
        } else if reason == NewJudgement::Snapshot {
            metrics.judgements.count(at, &judgement);
        }
        self.key_status.replace(key_status(&service.config, &judgement.verdict));
        let is_rejected = judgement.decision == Decision::Reject;
        self.assertion.take();
        self.judgement.replace(judgement);
        if is_rejected {
            let judgement = self.judgement.borrow();
            self.evict(forbidden(judgement.rejection()));
            self.close_tunnels(&judgement);
        }
        verified + judged
    }

    /// Judges an evicted client that still has tunnels. Returns the work that was done.
    fn judge_tunnels(&self, snapshot: &Snapshot, time: SystemTime) -> usize {
        if !self.state.carries_tunnel() {
            return 0;
        }
        let policy = &self.service.borrow().config.policy.decisions;
        self.close_tunnels(&self.identity.judge(&snapshot.guard, policy, time));
        self.identity.path_length()
    }

    /// Closes a connection with tunnels at once if the client's key is proved to be compromised.
    /// Others have such a key, and a tunnel has no request to finish.
    fn close_tunnels(&self, judgement: &Judgement) {
        let is_proved = matches!(judgement.verdict.by_filters(), Verdict::Confirmed(_));
        if is_proved && self.state.carries_tunnel() {
            self.state.close(Close::Abort);
        }
    }

    /// Whether the client is clean: answers change its judgement only if they confirm a key.
    pub(crate) fn is_clean(&self) -> bool {
        self.judgement.borrow().verdict == Verdict::Clean
    }

    /// The questions that the last judgement leaves open, if the client is still served. Tunnels of
    /// an evicted client are.
    pub(crate) fn open_questions(&self, snapshot: &Snapshot, time: SystemTime) -> OpenQuestions {
        let service = self.service.borrow();
        let policy = &service.config.policy.decisions;
        let is_closing = self.is_evicted.get() && !self.state.carries_tunnel();
        if is_closing || !self.judgement.borrow().leaves_questions(policy.judge) {
            return OpenQuestions::default();
        }
        self.identity.with_path(|path| snapshot.guard.open_questions(policy, path, time))
    }

    /// Verifies the client again if its path has expired or the verifier is new, and evicts it if
    /// there is no path any more. Returns the work that was done.
    fn verify_again(
        &self,
        service: &Service,
        is_new_verifier: bool,
        refusal_log: &RefusalLog,
        time: SystemTime,
    ) -> usize {
        let verifier = &*service.client_verifier;
        let (peer, name) = (self.identity.peer(), &service.config.name);
        if !is_new_verifier && !self.identity.is_due_for_check(time) {
            return 0;
        }
        if let Err(error) = self.identity.verify_again(verifier, time) {
            let result = HandshakeResult::of(&error);
            if let (HandshakeResult::NotVouched, Some(leaf)) = (result, self.identity.leaf()) {
                let (address, stage) = (Some(peer.ip()), JudgedAt::Reload);
                let error = tls::tls_error(&error);
                refusal_log.remember_not_vouched(address, name, leaf, stage, &error);
            }
            let (result, error) = (result.as_str(), tls::tls_error(&error));
            info!(%peer, service = %name, result, error, "client certificate is no longer accepted, closing connection");
            self.evict(forbidden("the client certificate is no longer accepted"));
        }
        VERIFICATION_WORK
    }

    /// Takes the service's configuration and the routes from a new snapshot.
    fn follow(&self, snapshot: &Snapshot, service: &Arc<Service>) {
        let before = self.service.replace(Arc::clone(service));
        if !Arc::ptr_eq(&before, service) {
            self.own_names.replace(Rc::new(OwnNames::new(&service.config.policy)));
        }
        if !Arc::ptr_eq(&self.routes.borrow(), snapshot.routes()) {
            self.routes.replace(Arc::clone(snapshot.routes()));
            self.host.take();
        }
    }

    /// Drains the connection: requests in flight finish, new ones get `rejection`.
    fn evict(&self, rejection: RequestRejection) {
        self.is_evicted.set(true);
        self.rejection.set(Some(rejection));
        let within = self.service.borrow().config.policy.evict_within;
        self.state.evict(Instant::now() + within);
    }
}

impl NewestAssertion for OpenConnection {
    fn assertion(&self) -> Option<HeaderValue> {
        let service = self.service.borrow();
        let (assertions, now) = (service.assertions.as_ref()?, unix_time::now());
        let mut kept = self.assertion.borrow_mut();
        if !kept.as_ref().is_some_and(|(_, fresh)| fresh.contains(&now)) {
            let (leaf, summary) = (self.identity.leaf()?, self.client_summary()?);
            *kept = Some(assertions.sign(now, leaf, summary, &self.judgement.borrow())?);
        }
        kept.as_ref().map(|(value, _)| value.clone())
    }
}

fn forbidden(reason: &'static str) -> RequestRejection {
    RequestRejection { status: StatusCode::FORBIDDEN, reason }
}

#[cfg(test)]
impl OpenConnection {
    /// Bytes that an open connection takes, its activity included, without what it refers to.
    pub(crate) const fn size() -> usize {
        size_of::<Self>() + size_of::<ConnectionState>()
    }
}
