//! A service with `protocol = "tcp"`: TLS ends here, and the bytes go to the upstream.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use keygate_core::tls::{CertificateSummary, ClientIdentity};
use keygate_wire::io_events::WithIoEvents;
use keygate_wire::proxy_header::{self, ProxiedClient};
use keygate_wire::tls_stream::TlsStream;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::open_connection::OpenConnection;
use super::tunnel::{self, TunnelEnd};
use super::worker::Worker;
use super::worker::record::{RequestLine, RequestRecord};
use crate::config::SendProxy;
use crate::metrics::UpstreamFailure;

/// Carries bytes between a client and its upstream until the connection ends.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    connection: Rc<OpenConnection>,
    stream: Box<TlsStream<TcpStream>>,
) {
    let service = Arc::clone(&connection.service());
    let mut client = WithIoEvents::new(stream, Rc::clone(&connection.state));
    // Session tickets must not wait for the upstream.
    let _ = client.flush().await; // the next write meets the error
    let mut upstream = match worker.upstream(&service).connect(connection.client).await {
        Ok(upstream) => upstream,
        Err(failure) => {
            worker.upstream_log.request_failed(&service.config, &failure);
            if let Some(record) = record_of(&worker, &connection) {
                record.record_failure(&failure);
            }
            let _ = client.shutdown().await; // no response exists in the client's protocol
            return;
        }
    };
    if service.config.forward.send_proxy == SendProxy::V2 {
        // Without the header the upstream would read the client's bytes as one.
        let sent = match header(&connection.identity, client.get_ref()) {
            Ok(header) => upstream.io.write_all(&header).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            let kind = Some(UpstreamFailure::Response);
            worker.upstream_log.failed(&service.config, Some(&upstream.server), kind, &error);
            return;
        }
    }
    let record = record_of(&worker, &connection);
    if let Some(record) = &record {
        record.set_upstream(&upstream.server);
    }
    let end = tunnel::carry(&mut client, &mut upstream.io, &connection.state).await;
    // A reset would discard bytes that the kernel still holds for the server.
    if end == TunnelEnd::Aborted && !connection.state.client_has_closed.get() {
        upstream.io.reset_on_close();
    }
    if let Some(record) = record {
        record.set_tunnel(connection.state.tunnel_bytes.get(), end);
    }
}

/// The PROXY header for an upstream: both addresses, TLS version and cipher, SNI, and the client's
/// certificate with its common name.
///
/// # Errors
/// Returns an error if the header would be too long.
fn header(identity: &ClientIdentity, stream: &TlsStream<TcpStream>) -> io::Result<Vec<u8>> {
    proxy_header::write(ProxiedClient {
        peer: identity.peer(),
        local: stream.io().local_addr().ok(),
        tls: stream.state(),
        server_name: stream.server_name(),
        certificate: identity
            .leaf()
            .map(|leaf| (leaf.as_ref(), CertificateSummary::new(leaf).common_name)),
    })
}

/// The record of the connection for the access log; `None` if that is off. Only a request has
/// spans.
fn record_of(worker: &Worker, connection: &Rc<OpenConnection>) -> Option<Box<RequestRecord>> {
    RequestRecord::begin(worker.access_log.as_ref(), None, connection, RequestLine::tunnel)
}
