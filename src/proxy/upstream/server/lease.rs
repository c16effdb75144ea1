//! The share of a server that one request uses, and how it ends.

use std::rc::Rc;
use std::time::Instant;

use keygate_wire::permit::{CountGuard, ShareGuard};

use super::UpstreamServer;
use crate::metrics::UpstreamFailure;
use crate::proxy::upstream::ejection::ServerFailure;
use crate::proxy::upstream::http1::Http1Connection;
use crate::proxy::upstream::http2_pool::StreamSlot;

/// The share of a server that one request uses, until its response has ended.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) server: Rc<UpstreamServer>,
    began: Instant,
    _in_flight: CountGuard,
    /// The share of the client in the connections of HTTP/1.1.
    _share: Option<ShareGuard>,
    carrier: Option<Carrier>,
}

/// The connection or stream on which a response comes.
#[derive(Debug)]
pub(crate) enum Carrier {
    Http1(Http1Connection),
    Http2 { slot: Rc<StreamSlot> },
}

impl Lease {
    pub(crate) fn new(server: &Rc<UpstreamServer>) -> Self {
        Self {
            server: Rc::clone(server),
            began: Instant::now(),
            _in_flight: server.in_flight.enter(),
            _share: None,
            carrier: None,
        }
    }

    /// A lease that holds the share of a client.
    pub(crate) fn with_share(self, share: ShareGuard) -> Self {
        Self { _share: Some(share), ..self }
    }

    /// The lease of a response that comes on `carrier`.
    pub(crate) fn with(self, carrier: Carrier) -> Self {
        Self { carrier: Some(carrier), ..self }
    }

    /// Records that the response is complete. Returns an HTTP/1.1 connection to the pool.
    pub(crate) fn finish(self) {
        self.record_success();
        match self.carrier {
            Some(Carrier::Http1(http1)) => {
                self.server.http1.put(http1, self.server.upstream().max_connection_age);
            }
            Some(Carrier::Http2 { slot }) => slot.http2.end_half(),
            None => {}
        }
    }

    /// Records that the server has done what the request asked for.
    pub(crate) fn record_success(&self) {
        self.server.record_success(self.began);
    }

    /// Records that the server broke off its response.
    pub(crate) fn record_broken_response(&self) {
        self.record_incomplete_response();
        let counts = match &self.carrier {
            Some(Carrier::Http2 { slot }) => {
                slot.http2.end_stream_by_server();
                slot.takes_failure()
            }
            Some(Carrier::Http1(_)) | None => true,
        };
        if counts {
            self.server.record_failure(ServerFailure::Response, "the response broke off");
        }
    }

    /// Records that the response is not complete, which may be no fault of the server.
    pub(crate) fn record_incomplete_response(&self) {
        self.server.shared.metrics.upstream_failures.of(UpstreamFailure::Incomplete).inc();
    }
}
