//! What the requests of one connection share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::response_body::RequestInFlight;
use crate::metrics::ServiceMetrics;
use crate::proxy::headers::Annotations;
use crate::proxy::interim::Interim;
use crate::proxy::standing::Standing;
use crate::proxy::upstream::{Tunnel, Upstream};
use crate::proxy::worker::Worker;
use crate::snapshot::Service;

/// What the requests of one connection share.
pub(in crate::proxy) struct Session {
    pub(in crate::proxy) worker: Rc<Worker>,
    pub(in crate::proxy) service: Arc<Service>,
    pub(in crate::proxy) metrics: Rc<ServiceMetrics>,
    pub(in crate::proxy) annotations: Annotations,
    pub(in crate::proxy) standing: Rc<Standing>,
    /// The server's side of a connection that leaves HTTP, and the request that asked for it.
    pub(in crate::proxy) tunnel: RefCell<Option<(Tunnel, RequestInFlight)>>,
    /// What servers say before their answers.
    pub(in crate::proxy) interim: Interim,
    /// The client was answered, over HTTP/1.1, before all of its request was read.
    pub(in crate::proxy) left_unread: Cell<bool>,
    /// Whether the client's `X-Request-Id` is passed on.
    pub(in crate::proxy) believes_request_id: bool,
}

impl Session {
    /// The upstream of the service as it is now.
    pub(super) fn upstream(&self) -> Rc<Upstream> {
        self.worker.present_upstream(&self.standing.service())
    }
}
