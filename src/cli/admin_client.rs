//! HTTP client for the admin address of a running proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode, header};
use keygate_core::json::{self, JsonError};
use keygate_core::printable::printable;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;

use super::admin_error::AdminError;
use super::{BoxedError, CliError, CliOutput, runtime};
use crate::config::ListenAddress;
use crate::http_client::{self, Connection};

/// Maximum size of a response body, in bytes; a larger body is an error. The largest one, of
/// `/report`, has 45 MiB.
const MAX_BODY: usize = 64 << 20;

/// Sends requests one after another, each on a new connection.
pub(super) struct AdminClient {
    address: ListenAddress,
    timeout: Duration,
    /// The end of the last request; `None` if each has its timeout alone.
    pub(super) end: Option<Instant>,
    /// Bytes of responses after which no further one is read. Clients may share it.
    pub(super) left: Arc<AtomicUsize>,
    /// TLS on TCP, and the name of the server.
    pub(super) tls: Option<(TlsConnector, ServerName<'static>)>,
    runtime: Runtime,
}

impl AdminClient {
    /// `timeout` limits each request, from the connect to the last byte of the response.
    pub(super) fn new(address: ListenAddress, timeout: Duration) -> Result<Self, CliError> {
        let left = Arc::new(usize::MAX.into());
        Ok(Self { address, timeout, end: None, left, tls: None, runtime: runtime()? })
    }

    /// A client for the proxy with the configuration in `file`.
    pub(super) fn from_config(file: &Path, timeout: Duration) -> Result<Self, CliError> {
        Self::new(ListenAddress::read_admin(file)?, timeout)
    }

    /// Returns the response body of a GET.
    pub(super) fn get(&self, path: &str) -> Result<Bytes, AdminError> {
        self.request(Method::GET, path, String::new())
    }

    /// Prints the text in the response to a GET. Another program may listen on the address.
    pub(super) fn print(&self, path: &str, output: &mut CliOutput) -> Result<(), CliError> {
        let text = self.get(path)?;
        for line in String::from_utf8_lossy(&text).lines() {
            output.line(printable(line))?;
        }
        Ok(())
    }

    /// Returns the JSON value in the response to a GET.
    pub(super) fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, AdminError> {
        self.parse(&self.get(path)?)
    }

    /// Returns the JSON value in the response to a POST with a JSON body.
    pub(super) fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        json: String,
    ) -> Result<T, AdminError> {
        self.parse(&self.request(Method::POST, path, json)?)
    }

    /// Converts a JSON value of a response.
    pub(super) fn parse_value<T: DeserializeOwned>(&self, value: &Value) -> Result<T, AdminError> {
        json::from_value(value).map_err(|source| self.unexpected(source))
    }

    fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, AdminError> {
        json::parse(body).map_err(|source| self.unexpected(source))
    }

    fn unexpected(&self, source: JsonError) -> AdminError {
        AdminError::Json { address: self.address.clone(), source }
    }

    fn request(&self, method: Method, path: &str, json: String) -> Result<Bytes, AdminError> {
        let address = || self.address.clone();
        let failed = |source| AdminError::Exchange { address: address(), source };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(json)))
            .map_err(|error| failed(error.into()))?;
        if self.left.load(Ordering::Relaxed) == 0 {
            return Err(AdminError::Full);
        }
        let left = self.end.map(|end| end.saturating_duration_since(Instant::now()));
        let timeout = left.map_or(self.timeout, |left| left.min(self.timeout));
        let send = async { tokio::time::timeout(timeout, self.send(request)).await };
        let sent = self.runtime.block_on(send);
        let timed_out = |_| AdminError::Timeout { address: address(), timeout };
        let (status, body) = sent.map_err(timed_out)?.map_err(failed)?;
        if status != StatusCode::OK {
            let body = String::from_utf8_lossy(&body).into_owned();
            return Err(AdminError::Status { address: address(), status, body });
        }
        Ok(body)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), BoxedError> {
        let connection: Connection = match &self.address {
            ListenAddress::Tcp(address) => {
                let tcp = TcpStream::connect(reachable(*address).as_slice()).await?;
                match &self.tls {
                    None => Box::new(tcp),
                    Some((tls, name)) => Box::new(tls.connect(name.clone(), tcp).await?),
                }
            }
            ListenAddress::Unix(path) => Box::new(UnixStream::connect(path).await?),
        };
        let read = async |response: Response<Incoming>| {
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_BODY).collect().await?.to_bytes();
            let rest = |left: usize| Some(left.saturating_sub(body.len()));
            let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
            Ok((status, body))
        };
        http_client::exchange(connection, request, read).await
    }
}

/// Addresses to try, in order, for a local server that listens on `address`.
///
/// A wildcard is reached on loopback. The IPv6 wildcard also accepts IPv4 connections.
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn all_responses_together_are_bounded() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ListenAddress::Tcp(server.local_addr().unwrap());
        std::thread::spawn(move || {
            for tcp in server.incoming() {
                let mut tcp = tcp.unwrap();
                let _ = tcp.read(&mut [0; 1024]).unwrap();
                tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").unwrap();
            }
        });
        let mut client = AdminClient::new(address, Duration::from_secs(60)).unwrap();
        client.left = Arc::new(7.into());
        assert_eq!(client.get("/").unwrap(), "hello");
        assert_eq!(client.get("/").unwrap(), "hello"); // no further one
        let error = client.get("/").unwrap_err().to_string();
        assert!(error.contains("responses of all instances are too large"), "{error}");
    }

    #[test]
    fn only_a_wildcard_is_replaced_by_loopback() {
        for (configured, expected) in [
            ("0.0.0.0:9464", &["127.0.0.1:9464"][..]),
            ("[::]:9464", &["[::1]:9464", "127.0.0.1:9464"]),
            ("127.0.0.1:9464", &["127.0.0.1:9464"]),
            ("10.0.0.5:9464", &["10.0.0.5:9464"]),
            ("[::1]:9464", &["[::1]:9464"]),
        ] {
            let expected: Vec<SocketAddr> = expected.iter().map(|it| it.parse().unwrap()).collect();
            assert_eq!(reachable(configured.parse().unwrap()), expected);
        }
    }
}
