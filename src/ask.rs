//! Authorizers: other proxies ask about their clients, and get the decision of the policy.
//!
//! | step | module |
//! | --- | --- |
//! | A worker accepts a connection of an asker. A peer that may not ask is rejected. | `asker` |
//! | A door reads questions in its protocol and writes answers. | `http`, `grpc`, `spop` |
//! | A question is verified, judged, decided, counted and logged. | `connection` |
//!
//! All doors share one path from a [`ClientQuestion`] to an [`Answer`]: [`AskConnection::answer`].
//! Nothing here decides about keys, and nothing here speaks to an upstream. A question that a client
//! can provoke is denied and never an error of the protocol, because hosts may admit on errors.

mod asker;
mod connection;
mod denial;
mod grpc;
mod http;
mod question;
mod spop;
mod stream;
mod worker;

use std::rc::Rc;
use std::sync::Arc;

use self::asker::AskingPeer;
use self::connection::AskConnection;
use self::stream::AskStream;
pub(crate) use self::worker::{AskLinks, AskWorker};
use crate::config::AuthorizerProtocol;
use crate::listen::{Accepted, UnixAccepted};
use crate::permit::Permit;
use crate::snapshot::Authorizer;

/// Serves a connection over TCP on a task of its own.
pub(crate) fn serve_tcp(worker: &Rc<AskWorker>, authorizer: &Arc<Authorizer>, accepted: Accepted) {
    let Accepted { tcp, peer, permit, .. } = accepted;
    let asker = AskingPeer::of_tcp(peer);
    spawn(worker, authorizer, AskStream::Tcp(tcp), asker, permit);
}

/// Serves a connection to a Unix socket on a task of its own.
pub(crate) fn serve_unix(
    worker: &Rc<AskWorker>,
    authorizer: &Arc<Authorizer>,
    accepted: UnixAccepted,
) {
    let UnixAccepted { stream, permit } = accepted;
    let asker = AskingPeer::of_unix(&stream);
    spawn(worker, authorizer, AskStream::Unix(stream), asker, permit);
}

fn spawn(
    worker: &Rc<AskWorker>,
    authorizer: &Arc<Authorizer>,
    stream: AskStream,
    asker: AskingPeer,
    permit: Permit,
) {
    let connection = AskConnection::new(worker, authorizer, asker);
    if !connection.may_ask() {
        connection.reject();
        return;
    }
    tokio::task::spawn_local(async move {
        let _permit = permit;
        serve(stream, Rc::new(connection)).await;
    });
}

/// Serves the questions of one connection, in the protocol of its authorizer.
async fn serve(stream: AskStream, connection: Rc<AskConnection>) {
    match connection.config().protocol {
        AuthorizerProtocol::ExtAuthz => grpc::serve(stream, connection).await,
        AuthorizerProtocol::Http => http::serve(stream, connection).await,
        AuthorizerProtocol::Spop => spop::serve(stream, connection).await,
    }
}
