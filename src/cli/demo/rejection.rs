//! The reason of a rejection, from `/report` of the admin address.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::cli::admin_client::AdminClient;
use crate::cli::{BoxedError, CliError};
use crate::config::ListenAddress;

/// Maximum time until the report has the rejected client, 60 s. The worker adds it after the alert.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two requests for the report.
const PAUSE: Duration = Duration::from_millis(20);

/// The verdict on a key whose compromise is proved.
const CONFIRMED: &str = "confirmed";

#[derive(Deserialize)]
struct RejectionReport {
    clients: Vec<Rejection>,
}

/// A rejected client.
#[derive(Deserialize)]
pub(super) struct Rejection {
    pub(super) verdict: String,
    pub(super) filter: Option<String>,
    action: String,
}

/// Returns a rejected client whose key is confirmed, from the report of the proxy at the admin
/// address.
///
/// # Errors
/// Returns an error if the report has no such client within [`TIMEOUT`].
pub(super) fn confirmed(admin: &str) -> Result<Rejection, CliError> {
    let failed = |error: BoxedError| CliError::system("the admin address of the demo", error);
    let address: SocketAddr =
        admin.parse().map_err(|error: std::net::AddrParseError| failed(error.into()))?;
    let admin = AdminClient::new(&ListenAddress::Tcp(address), TIMEOUT)?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let report: RejectionReport = admin.get_json("/report")?;
        let mut clients = report.clients.into_iter();
        if let Some(client) = clients
            .find(|it| it.action == "reject" && it.verdict == CONFIRMED && it.filter.is_some())
        {
            return Ok(client);
        }
        if Instant::now() > deadline {
            return Err(failed("the report has no rejected client".into()));
        }
        std::thread::sleep(PAUSE);
    }
}
