//! A client of the admin address of a running proxy, for the commands that ask it something.

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

/// An accepted filter is read before the answer: minutes on a slow disk.
const PATIENCE: Duration = Duration::from_secs(300);
/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 16 << 20;

/// Asks one question after another.
pub(super) struct AdminClient {
    address: AdminAddress,
    runtime: Runtime,
}

impl AdminClient {
    pub(super) fn of(address: &AdminAddress) -> Result<Self, CliError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| CliError::system("runtime", error))?;
        Ok(Self { address: address.clone(), runtime })
    }

    /// The body of a page.
    pub(super) fn get(&self, path: &str) -> Result<Bytes, CliError> {
        self.ask(Method::GET, path, String::new())
    }

    /// The body of the answer to a JSON value.
    pub(super) fn post(&self, path: &str, json: String) -> Result<Bytes, CliError> {
        self.ask(Method::POST, path, json)
    }

    fn ask(&self, method: Method, path: &str, json: String) -> Result<Bytes, CliError> {
        let failed = |problem: String| {
            let address = &self.address;
            CliError::Operation(format!("the admin address {address}: {problem}"))
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "keygate")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(json)))
            .map_err(|error| failed(error.to_string()))?;
        let send = async { timeout(PATIENCE, self.send(request)).await };
        let asked = self.runtime.block_on(send);
        let (status, body) = asked
            .map_err(|_| failed(format!("no answer within {PATIENCE:?}")))?
            .map_err(|error| failed(error.to_string()))?;
        if status != StatusCode::OK {
            return Err(CliError::Operation(String::from_utf8_lossy(&body).trim().to_owned()));
        }
        Ok(body)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), Failure> {
        match &self.address {
            AdminAddress::Tcp(address) => {
                exchange(TcpStream::connect(address).await?, request).await
            }
            AdminAddress::Unix(path) => exchange(UnixStream::connect(path).await?, request).await,
        }
    }
}

/// Whatever went wrong on the way; it is shown, nothing else.
type Failure = Box<dyn std::error::Error + Send + Sync>;

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
