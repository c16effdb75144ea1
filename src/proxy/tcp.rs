//! A service without HTTP: TLS ends here, bytes go on.

use std::rc::Rc;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tracing::warn;

use super::access_log::Asked;
use super::observed::Observed;
use super::proxy_protocol;
use super::standing::Standing;
use super::tunnel;
use super::worker::Worker;
use crate::config::SendProxy;
use crate::snapshot::Service;

/// Carries the bytes of a client to its upstream and back until the connection ends.
pub(super) async fn serve(
    worker: &Rc<Worker>,
    service: &Arc<Service>,
    standing: &Rc<Standing>,
    stream: TlsStream<TcpStream>,
) {
    worker.open.watch(standing);
    let mut client = Observed::new(stream, Rc::clone(&standing.activity));
    let upstream = worker.upstream(service);
    let (mut io, open, server) = match upstream.connect().await {
        Ok(connected) => connected,
        Err(error) => {
            warn!(service = %service.config.name, %error, "upstream failed");
            let _ = client.shutdown().await; // there is nothing to say in a protocol that is not ours
            return;
        }
    };
    if service.config.forward.send_proxy == SendProxy::V2 {
        let (tcp, tls) = client.get_ref().get_ref();
        let header = proxy_protocol::header(standing.identity(), tls, tcp.local_addr().ok());
        // Without the header the upstream would take the client's bytes for its own.
        let sent = match header {
            Ok(header) => io.write_all(&header).await,
            Err(error) => Err(std::io::Error::other(error)),
        };
        if let Err(error) = sent {
            warn!(service = %service.config.name, %server, %error, "upstream failed");
            return;
        }
    }
    let record = worker.access_log.begin(standing).map(|mut record| {
        record.asked = Asked::of_tunnel();
        let _ = record.upstream.set(server.to_string()); // it was not set before
        record
    });
    let is_complete = tunnel::carry(&mut client, &mut io, &standing.activity).await;
    if let Some(record) = record {
        let (from_client, to_client) = standing.activity.carried();
        record.request_bytes.set(from_client);
        record.response_bytes.set(to_client);
        record.is_complete.set(is_complete);
    }
    drop(open);
}
