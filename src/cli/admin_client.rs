//! A client of the admin address of a running proxy, for the commands that ask it something.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::CliError;
use crate::config::AdminAddress;

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 16 << 20;

/// Asks one question after another.
pub(super) struct AdminClient {
    address: AdminAddress,
    patience: Duration,
    runtime: Runtime,
}

/// Why there is no answer, or not the one that was asked for.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminError {
    #[error("the admin address {address}: {source}")]
    Exchange { address: AdminAddress, source: Failure },
    #[error("the admin address {address}: no answer within {patience:?}")]
    Late { address: AdminAddress, patience: Duration },
    /// The body says why.
    #[error("{}", body.trim())]
    Refused { address: AdminAddress, status: StatusCode, body: String },
}

/// Whatever went wrong on the way; it is shown, nothing else.
type Failure = Box<dyn std::error::Error + Send + Sync>;

impl AdminClient {
    /// Each answer may take as long as `patience`, from connecting to its last byte.
    pub(super) fn of(address: &AdminAddress, patience: Duration) -> Result<Self, CliError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| CliError::system("runtime", error))?;
        Ok(Self { address: address.clone(), patience, runtime })
    }

    /// The body of a page.
    pub(super) fn get(&self, path: &str) -> Result<Bytes, AdminError> {
        self.ask(Method::GET, path, String::new())
    }

    /// The body of the answer to a JSON value.
    pub(super) fn post(&self, path: &str, json: String) -> Result<Bytes, AdminError> {
        self.ask(Method::POST, path, json)
    }

    fn ask(&self, method: Method, path: &str, json: String) -> Result<Bytes, AdminError> {
        let address = || self.address.clone();
        let failed = |source| AdminError::Exchange { address: address(), source };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(json)))
            .map_err(|error| failed(error.into()))?;
        let send = async { timeout(self.patience, self.send(request)).await };
        let asked = self.runtime.block_on(send);
        let late = |_| AdminError::Late { address: address(), patience: self.patience };
        let (status, body) = asked.map_err(late)?.map_err(failed)?;
        if status != StatusCode::OK {
            let body = String::from_utf8_lossy(&body).into_owned();
            return Err(AdminError::Refused { address: address(), status, body });
        }
        Ok(body)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), Failure> {
        match &self.address {
            AdminAddress::Tcp(address) => {
                let addresses = reachable(*address);
                exchange(TcpStream::connect(addresses.as_slice()).await?, request).await
            }
            AdminAddress::Unix(path) => exchange(UnixStream::connect(path).await?, request).await,
        }
    }
}

/// Where a server on this machine that listens on `address` is found, in the order to try: a
/// wildcard is asked on loopback, and that of IPv6 takes connections over IPv4, too.
fn reachable(address: SocketAddr) -> Vec<SocketAddr> {
    let at = |ip: IpAddr| SocketAddr::new(ip, address.port());
    match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => vec![at(Ipv4Addr::LOCALHOST.into())],
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            vec![at(Ipv6Addr::LOCALHOST.into()), at(Ipv4Addr::LOCALHOST.into())]
        }
        IpAddr::V4(_) | IpAddr::V6(_) => vec![address],
    }
}

async fn exchange<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    io: IO,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), Failure> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    let driven = tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await?.to_bytes();
    driven.abort();
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_asked_on_loopback_and_every_other_address_where_it_is() {
        for (configured, asked) in [
            ("0.0.0.0:9464", &["127.0.0.1:9464"][..]),
            ("[::]:9464", &["[::1]:9464", "127.0.0.1:9464"]),
            ("127.0.0.1:9464", &["127.0.0.1:9464"]),
            ("10.0.0.5:9464", &["10.0.0.5:9464"]),
            ("[::1]:9464", &["[::1]:9464"]),
        ] {
            let asked: Vec<SocketAddr> = asked.iter().map(|it| it.parse().unwrap()).collect();
            assert_eq!(reachable(configured.parse().unwrap()), asked);
        }
    }
}
