//! Requests on the way to a server, and their bodies.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, Uri, Version};
use keygate_wire::fields;
use keygate_wire::http1::request::OutgoingBody;
use keygate_wire::idle_timeout::IdleTimeout;
use keygate_wire::incoming::{HttpError, Incoming};
use keygate_wire::informational::InformationalSender;
use keygate_wire::joined_pieces::JoinedPieces;
use keygate_wire::kept_body::KeptBody;
use keygate_wire::upload::{ClientFault, Upload};

use crate::config::ServerConfig;
use crate::metrics::{Label, UpstreamFailure};
use crate::proxy::message::headers::own_fields::OwnFields;
use crate::proxy::message::headers::{self, OwnNames};
use crate::traces::FailedAttempts;

/// A request on its way to the upstream. Boxed, because it is handed on often and its size would be
/// part of every future on the way.
pub(crate) type OutgoingRequest = Box<Request<RequestBody>>;

/// Whether a request may be sent twice (RFC 9110, section 9.2.2).
pub(crate) fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}

/// A copy of a request that may be sent again, until its response begins. The fields are a list,
/// because few copies are sent: a hash table took 1,100 more instructions over HTTP/1.1.
#[derive(Debug)]
pub(crate) struct SecondRequest {
    method: Method,
    uri: Uri,
    version: Version,
    fields: Vec<(HeaderName, HeaderValue)>,
    body: RequestBody,
    /// `None` if the body is empty.
    upload: Option<KeptUpload>,
}

/// The upload of a request that may be sent again.
#[derive(Debug)]
struct KeptUpload {
    upload: RequestUpload,
    body: KeptBody<Incoming>,
}

impl Drop for KeptUpload {
    fn drop(&mut self) {
        self.body.release();
    }
}

impl SecondRequest {
    /// A copy of `request`, whose body is kept for it.
    pub(crate) fn from_first(request: &mut Request<RequestBody>) -> Box<Self> {
        let (body, upload) = request.body_mut().second();
        let fields = request.headers();
        let mut copies = Vec::with_capacity(fields.len());
        copies.extend(fields.iter().map(|(name, value)| (name.clone(), value.clone())));
        Box::new(Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            fields: copies,
            body,
            upload,
        })
    }

    /// Whether it may be sent again although the server may have processed it.
    pub(crate) fn is_safe(&self) -> bool {
        is_safe(&self.method) && self.upload.is_none()
    }

    /// The request that is sent, after the first one was dropped. `None` if its body is no longer
    /// kept, or its client has failed.
    pub(crate) fn into_request(self: Box<Self>) -> Option<OutgoingRequest> {
        let Self { method, uri, version, fields, mut body, upload } = *self;
        if let Some(KeptUpload { upload, body: kept }) = &upload {
            if !kept.rewind() || !upload.restart() {
                return None;
            }
            body.incoming = Some(Incoming::Kept(kept.clone()));
            body.upload = Some(upload.clone());
        }
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.version_mut() = version;
        for (name, value) in fields {
            request.headers_mut().append(name, value);
        }
        Some(Box::new(request))
    }
}

/// The upload of a client's request.
pub(crate) type RequestUpload = Upload<Incoming>;

/// A client's request body on its way to the upstream: read from the client as the server reads it,
/// bounded in size, and ended with an error if the client stalls.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Option<Incoming>,
    pieces: JoinedPieces<HttpError>,
    /// `None` if the body is empty.
    pub(crate) upload: Option<RequestUpload>,
    own_names: Rc<OwnNames>,
    /// How many more bytes `max_body_size` allows.
    remaining: Option<u64>,
    idle_timeout: IdleTimeout,
    /// Forwards informational responses to the client; `None` for HTTP/1.0.
    informational: Option<InformationalSender>,
    /// Whether the client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
    /// The fields that the head of the request gets when it is sent.
    pub(crate) own_fields: Option<OwnFields>,
    /// `None` if the request is not sampled.
    failed_attempts: Option<Rc<FailedAttempts>>,
}

/// The bounds of a request body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    /// Maximum size, in bytes; a larger body gets 413.
    pub(crate) max_size: Option<u64>,
    /// Maximum time between two pieces; a slower client gets 408.
    pub(crate) idle_timeout: Duration,
}

impl RequestBody {
    pub(crate) fn new(
        incoming: Incoming,
        upload: Option<RequestUpload>,
        limits: BodyLimits,
        own_names: Rc<OwnNames>,
        informational: Option<InformationalSender>,
        expects_continue: bool,
    ) -> Self {
        Self {
            incoming: Some(incoming),
            pieces: JoinedPieces::default(),
            upload,
            own_names,
            remaining: limits.max_size,
            idle_timeout: IdleTimeout::new(limits.idle_timeout),
            informational,
            expects_continue,
            own_fields: None,
            failed_attempts: None,
        }
    }

    /// Records that the request is sent again, because `server` has failed. `failure` is `None` for a
    /// fault of the client.
    pub(crate) fn record_resend(&self, server: &ServerConfig, failure: Option<UpstreamFailure>) {
        if let Some(attempts) = &self.failed_attempts {
            let attempt = (server.clone(), failure.map(Label::as_str), Instant::now());
            attempts.borrow_mut().push(attempt);
        }
    }

    /// Sets the fields that the head of the request gets when it is sent, and the place for attempts
    /// that another one follows.
    pub(crate) fn with(mut self, own: OwnFields, failed: Option<Rc<FailedAttempts>>) -> Self {
        (self.own_fields, self.failed_attempts) = (Some(own), failed);
        self
    }

    /// The body of a second request, without its upload, and the upload.
    fn second(&mut self) -> (Self, Option<KeptUpload>) {
        let kept = match (self.incoming.take(), &self.upload) {
            (Some(incoming), Some(upload)) if !incoming.is_end_stream() => {
                let body = KeptBody::new(incoming);
                self.incoming = Some(Incoming::Kept(body.clone()));
                Some(KeptUpload { upload: upload.clone(), body })
            }
            (incoming, _) => {
                self.incoming = incoming;
                None
            }
        };
        let second = Self {
            incoming: None,
            pieces: JoinedPieces::default(),
            upload: None,
            own_names: Rc::clone(&self.own_names),
            remaining: self.remaining,
            idle_timeout: self.idle_timeout.restarted(),
            informational: self.informational.clone(),
            expects_continue: self.expects_continue,
            own_fields: self.own_fields.clone(),
            failed_attempts: self.failed_attempts.clone(),
        };
        (second, kept)
    }

    /// Whether the upload goes on after the response has ended. Over HTTP/1.1 the next request
    /// follows the body. On an HTTP/2 stream nothing follows.
    pub(crate) fn outlives_response(&self) -> bool {
        !matches!(self.informational, Some(InformationalSender::Http2(_)))
    }

    fn fail(&self, fault: ClientFault) -> Poll<Option<Result<Frame<Bytes>, ClientFault>>> {
        if let Some(upload) = &self.upload {
            upload.fail(fault);
        }
        Poll::Ready(Some(Err(fault)))
    }

    fn end(&self) {
        if let Some(upload) = &self.upload {
            upload.end();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = ClientFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientFault>>> {
        let this = &mut *self;
        if this.upload.as_ref().is_some_and(RequestUpload::is_abandoned) {
            this.incoming.take(); // resets the client's stream (RFC 9113, section 8.1)
            return Poll::Ready(Some(Err(ClientFault::Broken)));
        }
        let Some(incoming) = &mut this.incoming else { return Poll::Ready(None) };
        if std::mem::take(&mut this.expects_continue)
            && let Some(client) = &this.informational
        {
            client.send_continue();
        }
        let Poll::Ready(frame) = this.pieces.poll_frame(incoming, context) else {
            if let Some(upload) = &this.upload {
                upload.wait_for_client(context);
            }
            if this.idle_timeout.poll(context).is_ready() {
                return this.fail(ClientFault::Stalled);
            }
            return Poll::Pending;
        };
        this.idle_timeout.reset();
        if let Some(upload) = &this.upload {
            upload.record_progress();
        }
        let mut frame = match frame {
            None => {
                this.end();
                return Poll::Ready(None);
            }
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return this.fail(ClientFault::Broken),
        };
        let length = frame.data_ref().map_or(0, Bytes::len);
        if let Some(remaining) = &mut this.remaining {
            match remaining.checked_sub(length as u64) {
                Some(less) => *remaining = less,
                None => return this.fail(ClientFault::TooLarge),
            }
        }
        if let Some(upload) = &this.upload {
            upload.add_bytes(length);
        }
        if this.is_end_stream() {
            this.end();
        }
        if let Some(trailers) = frame.trailers_mut() {
            headers::remove_identity(trailers, &this.own_names);
            fields::remove_forbidden_trailers(trailers);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(|incoming| self.pieces.is_end_stream(incoming))
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl OutgoingBody for RequestBody {
    fn write_fields(&self, lines: &mut Vec<u8>) {
        if let Some(fields) = &self.own_fields {
            fields.write(lines);
        }
    }

    fn informational(&self) -> Option<InformationalSender> {
        self.informational.clone()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let (Some(incoming), Some(upload)) = (self.incoming.take(), &self.upload) else { return };
        if incoming.is_end_stream() {
            upload.end(); // hyper drops a body without reading its end
        } else {
            upload.stop(incoming);
        }
    }
}

#[cfg(test)]
mod tests;
