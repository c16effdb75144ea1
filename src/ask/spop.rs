//! The door for HAProxy's SPOP 2.0.

use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::connection::AskConnection;

/// Serves the questions of one connection.
pub(crate) async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    connection: Rc<AskConnection>,
) {
    drop(connection);
    let _ = stream.shutdown().await; // closed in either case
}
