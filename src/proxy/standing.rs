//! How an open connection stands: who its client is, what is known of the key, and what becomes of
//! the connection when that changes or the client's certificate expires.

use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use tracing::info;

use super::activity::Activity;
use super::headers::key_status;
use super::report::Reporter;
use crate::guard::{Decision, JudgedAt, Verdict};
use crate::metrics::ServiceMetrics;
use crate::snapshot::{Routes, Service, Snapshot};
use crate::spki::{self, Fingerprint};
use crate::tls::ClientIdentity;

/// An open connection that serves requests.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) activity: Rc<Activity>,
    /// As it was when the client was last judged.
    service: RefCell<Arc<Service>>,
    /// Which service answers for which name, as it was then.
    routes: RefCell<Arc<Routes>>,
    /// The host of the last request that was for this service: most ask for the same again.
    host: RefCell<Option<HeaderValue>>,
    identity: ClientIdentity,
    verdict: RefCell<Verdict>,
    decision: Cell<Decision>,
    /// Removed from every request, and from its trailers.
    status_header: RefCell<Rc<HeaderName>>,
    /// What the upstream is told of the verdict with the next request.
    key_status: RefCell<Option<HeaderValue>>,
    is_evicted: Cell<bool>,
    /// Why every request from now on is answered with 403, and none goes further. A client that
    /// is told to go may stay until it is cut: HTTP/2 lets it ask on.
    refusal: Cell<Option<Refused>>,
    has_answered: Cell<bool>,
    fingerprint: OnceCell<Option<String>>,
}

impl Standing {
    pub(super) fn new(
        service: Arc<Service>,
        routes: Arc<Routes>,
        identity: ClientIdentity,
        verdict: Verdict,
        decision: Decision,
        activity: Rc<Activity>,
    ) -> Rc<Self> {
        Rc::new(Self {
            activity,
            key_status: RefCell::new(key_status(&service.config, &verdict)),
            status_header: RefCell::new(Rc::new(service.config.status_header.clone())),
            decision: Cell::new(decision),
            service: RefCell::new(service),
            routes: RefCell::new(routes),
            host: RefCell::default(),
            identity,
            is_evicted: Cell::new(false),
            refusal: Cell::new((decision == Decision::Reject).then(|| refused(&verdict))),
            verdict: RefCell::new(verdict),
            has_answered: Cell::new(false),
            fingerprint: OnceCell::new(),
        })
    }

    /// The service as it was when the client was last judged.
    pub(super) fn service(&self) -> Ref<'_, Arc<Service>> {
        self.service.borrow()
    }

    /// Whether a request for `host`, whose name is `name`, is for this service: a client that was
    /// judged by one service must not be served by another.
    pub(super) fn is_for_us(&self, host: &HeaderValue, name: &str) -> bool {
        let service = self.service.borrow();
        let index = self.routes.borrow().service_id(service.config.listen, Some(name));
        let is_ours = index == Some(service.id);
        if is_ours {
            self.host.replace(Some(host.clone()));
        }
        is_ours
    }

    /// Whether the last request that was for us had the same host.
    pub(super) fn is_same_host(&self, host: &HeaderValue) -> bool {
        self.host.borrow().as_ref() == Some(host)
    }

    pub(super) fn identity(&self) -> &ClientIdentity {
        &self.identity
    }

    /// What is known of the client's key, in one word.
    pub(super) fn verdict_word(&self) -> &'static str {
        self.verdict.borrow().as_str()
    }

    /// The fingerprint of the client's key, made when it is asked for.
    pub(super) fn fingerprint(&self) -> Option<&str> {
        let make = || {
            let spki = spki::of_certificate(self.identity.leaf()?).ok()?;
            Some(Fingerprint::of(spki).to_string())
        };
        self.fingerprint.get_or_init(make).as_deref()
    }

    pub(super) fn status_header(&self) -> Rc<HeaderName> {
        Rc::clone(&self.status_header.borrow())
    }

    pub(super) fn key_status(&self) -> Option<HeaderValue> {
        self.key_status.borrow().clone()
    }

    /// A request and its answer are over.
    pub(super) fn request_ended(&self) {
        self.activity.request_ended();
        self.has_answered.set(true);
    }

    /// Has every request answered so.
    pub(super) fn refuse(&self, refused: Refused) {
        self.refusal.set(Some(refused));
    }

    /// What a client that is refused is told instead of an answer to its request.
    pub(super) fn refusal(&self) -> Option<Refused> {
        self.refusal.get()
    }

    /// Looks at the time-outs of the connection, and at the certificate of its client.
    pub(super) fn check(&self, now: Instant, time: SystemTime) {
        let clients = Arc::clone(&self.service.borrow().client_verifier);
        if !self.is_evicted.get() && self.identity.has_expired(&*clients, time) {
            let (peer, service) = (self.identity.peer(), self.service.borrow());
            let service = &service.config.name;
            info!(%peer, %service, "client certificate has expired, its connection ends");
            self.evict(forbidden("the client certificate has expired"));
        }
        // At the next look, not with the answer: h2 sends GOAWAY before what it has to send besides,
        // and some clients then give up a request whose body they are still sending.
        if let Some(reason) = self.refusal.get()
            && self.has_answered.get()
            && !self.is_evicted.get()
        {
            self.evict(reason);
        }
        self.activity.check(now);
    }

    /// Judges the client by what is known now. One who is to be refused finishes what is in flight
    /// and goes; others are served on, and their upstream is told what has changed. Returns whether
    /// signatures had to be verified, which takes a hundred times as long as a judgement.
    pub(super) fn judge_again(
        &self,
        snapshot: &Snapshot,
        metrics_of: impl Fn(&Service) -> Rc<ServiceMetrics>,
        reporter: &Reporter,
        time: SystemTime,
    ) -> bool {
        if self.is_evicted.get() || self.refusal.get().is_some() {
            return false;
        }
        let before = Arc::clone(&self.service.borrow());
        let Some(service) = snapshot.current(&before) else {
            let (peer, service) = (self.identity.peer(), &before.config.name);
            info!(%peer, %service, "service is configured no more, its connection ends");
            let why = "the service is not here any more";
            self.evict((StatusCode::MISDIRECTED_REQUEST, why));
            return false;
        };
        self.service.replace(Arc::clone(service));
        if !Arc::ptr_eq(&self.routes.borrow(), snapshot.routes()) {
            self.routes.replace(Arc::clone(snapshot.routes()));
            self.host.take();
        }
        let verdict =
            snapshot.guard.judge(self.identity.chain(), service.config.policy.judge, time);
        let decision = service.config.policy.decide(&verdict);
        metrics_of(service).count_judgement(JudgedAt::Reload, &verdict, decision);
        let is_news =
            self.decision.replace(decision) != decision || *self.verdict.borrow() != verdict;
        if is_news && decision != Decision::Admit {
            let (peer, chain) = (self.identity.peer(), self.identity.chain());
            reporter.hit(peer, service, chain, &verdict, JudgedAt::Reload, decision);
        }
        self.key_status.replace(key_status(&service.config, &verdict));
        self.verdict.replace(verdict);
        if **self.status_header.borrow() != service.config.status_header {
            self.status_header.replace(Rc::new(service.config.status_header.clone()));
        }
        if decision == Decision::Reject {
            self.evict(refused(&self.verdict.borrow()));
            return false;
        }
        if Arc::ptr_eq(&before.client_verifier, &service.client_verifier) {
            return false;
        }
        if let Err(error) = self.identity.check(&*service.client_verifier, time) {
            let (peer, service) = (self.identity.peer(), &service.config.name);
            info!(%peer, %service, %error, "client certificate is no longer accepted, its connection ends");
            self.evict(forbidden("the client certificate is no longer accepted"));
        }
        true
    }

    /// Lets the client finish what is in flight, and nothing else.
    fn evict(&self, reason: Refused) {
        self.is_evicted.set(true);
        self.refusal.set(Some(reason));
        let within = self.service.borrow().config.evict_within;
        self.activity.evict(Instant::now() + within);
    }
}

/// How a request is answered that goes no further, and why in words for its client.
pub(super) type Refused = (StatusCode, &'static str);

fn forbidden(why: &'static str) -> Refused {
    (StatusCode::FORBIDDEN, why)
}

/// Why a client with this verdict is refused.
fn refused(verdict: &Verdict) -> Refused {
    let is_issuer = verdict.position().is_some_and(|position| position > 0);
    forbidden(match verdict {
        Verdict::Confirmed(_) | Verdict::Listed(_) | Verdict::Probable(_) if is_issuer => {
            "the key of an issuer of the client certificate is known to be compromised"
        }
        Verdict::Confirmed(_) => {
            "the key of the client certificate is compromised: replace key and certificate"
        }
        Verdict::Listed(_) => "the key of the client certificate is on a list of refused keys",
        Verdict::Probable(_) => {
            "the key of the client certificate is probably compromised: replace key and certificate"
        }
        Verdict::Allowed | Verdict::Clean | Verdict::Unchecked => {
            "the key of the client certificate could not be checked"
        }
    })
}
