//! Interim answers (1xx, such as 103 Early Hints) of a server, on their way to the client.

mod before_answer;
mod between_writes;

use hyper::{HeaderMap, Request, StatusCode, header};

pub(super) use self::before_answer::BeforeAnswer;
pub(super) use self::between_writes::{Interim, WithInterim};
use super::headers;

/// More of them, in bytes, are not passed on: over HTTP/1.1 than a client that takes nothing leaves
/// waiting, over HTTP/2 of one request.
const MAX_WAITING: usize = 16 << 10;

/// One request, whose interim answers are passed on. hyper wants what it calls back to be `Send`;
/// nobody else is ever there.
#[derive(Debug, Clone)]
pub(super) enum Follower {
    Http1(between_writes::OfRequest),
    Http2(BeforeAnswer),
}

impl Follower {
    /// Has what a server of HTTP/1.1 says before its answer passed on.
    pub(super) fn follow<B>(&self, request: &mut Request<B>) {
        let this = self.clone();
        hyper::ext::on_informational(request, move |response| {
            this.pass_on(response.status(), response.headers().clone());
        });
    }

    /// Passes on what a server says before its answer.
    pub(super) fn pass_on(&self, status: StatusCode, mut headers: HeaderMap) {
        // The one is said when the body is asked for, the other is an answer.
        if [StatusCode::CONTINUE, StatusCode::SWITCHING_PROTOCOLS].contains(&status) {
            return;
        }
        headers::remove_hop_by_hop(&mut headers);
        headers.remove(header::CONTENT_LENGTH); // it would be taken for that of the answer
        match self {
            Self::Http1(request) => request.pass_on(status, &headers),
            Self::Http2(request) => request.pass_on(status, headers),
        }
    }

    /// Tells a client that has asked first to send its body.
    pub(super) fn go_on(&self) {
        match self {
            Self::Http1(_) => {} // hyper does
            Self::Http2(request) => request.go_on(),
        }
    }
}
