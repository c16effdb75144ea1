//! The instances that a command reads: their addresses, and the responses of all of them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::iter;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::{ArgGroup, ValueHint};
use keygate_core::printable::printable;
use keygate_core::regular_file;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::admin_client::AdminClient;
use super::admin_error::AdminError;
use super::{CliError, print_error, resolver, runtime, tls_client};
use crate::config::ListenAddress;
use crate::resolver::Resolver;

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("several").args(["admin", "instances"]).multiple(true))]
pub(super) struct InstanceArgs {
    /// An instance: IP:PORT or unix:/PATH of its admin address or address for readers, or HOST:PORT
    /// for each address of a host. Can be repeated. Default: the address of the configuration.
    #[arg(long, value_name = "ADDRESS", value_hint = ValueHint::Other)]
    admin: Vec<String>,
    /// A file with instances, one a line. A line that begins with "#" is a comment.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    instances: Option<PathBuf>,
    /// The CAs of addresses for readers, PEM. All TCP addresses are then read over TLS.
    #[arg(long, value_name = "FILE", requires_all = ["client", "several"], value_hint = ValueHint::FilePath)]
    ca: Option<PathBuf>,
    /// Certificate and private key of the reader, PEM.
    #[arg(long, num_args = 2, value_names = ["CERT", "KEY"], requires = "ca")]
    client: Vec<PathBuf>,
}

/// Maximum number of instances.
const MAX_INSTANCES: usize = 1000;
/// Maximum size of a file with instances, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Number of instances that are asked at the same time.
const MAX_PARALLEL: usize = 16;
/// Maximum time for each response of one of several instances.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the look-ups and the responses of all instances. It passes if a hundred hang.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Maximum size of the responses of all instances, in bytes, when one more is read.
const MAX_BYTES: usize = 512 << 20;
/// Maximum time to look a host up.
const MAX_LOOK_UP: Duration = Duration::from_secs(5);

/// Maximum number of instances that the text of a row names.
const MAX_SHOWN: usize = 5;

/// An instance, or a host without an address.
struct Instance {
    /// As rows name it.
    shown: String,
    /// The address, and the name in its certificate.
    address: Result<(ListenAddress, Option<ServerName<'static>>), AdminError>,
}

/// The response of an instance, or why there is none.
pub(super) struct InstanceAnswer<T> {
    pub(super) instance: String,
    pub(super) response: Result<T, AdminError>,
}

impl InstanceArgs {
    /// Whether the command has no instance but the configured one.
    pub(super) fn is_empty(&self) -> bool {
        self.admin.is_empty() && self.instances.is_none()
    }

    /// Calls `ask` with a client of each instance, some at the same time. The instance of the
    /// configuration is the only one if none is given.
    ///
    /// # Errors
    /// Returns an error if an address or a file cannot be used.
    pub(super) fn ask<T: Send>(
        &self,
        config: &Path,
        ask: impl Fn(&AdminClient, &str) -> Result<T, AdminError> + Sync,
    ) -> Result<Vec<InstanceAnswer<T>>, CliError> {
        let end = Instant::now() + MAX_TIME;
        let instances = self.addresses(config, end)?;
        let tls = self.ca.as_ref().map(|ca| tls_client::load(ca, &self.client)).transpose()?;
        let tls = tls.map(|(config, _)| config);
        let (threads, left) = (instances.len().min(MAX_PARALLEL), Arc::new(MAX_BYTES.into()));
        let waiting = Mutex::new(instances.into_iter().enumerate());
        let ask_one = |Instance { shown: instance, address }: Instance| {
            let response = match address {
                Ok((address, name)) => {
                    let mut client = AdminClient::new(address, TIMEOUT)?;
                    client.end = Some(end);
                    client.left = Arc::clone(&left);
                    client.tls = tls.clone().zip(name).map(|(config, name)| (config.into(), name));
                    ask(&client, &instance)
                }
                Err(unknown) => Err(unknown),
            };
            Ok::<_, CliError>(InstanceAnswer { instance, response })
        };
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work =
            || iter::from_fn(next).map(|(index, it)| (index, ask_one(it))).collect::<Vec<_>>();
        let mut answers = thread::scope(|scope| {
            let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
            let others: Vec<_> = (1..threads).map_while(start).collect();
            let own = work();
            let others =
                others.into_iter().flat_map(|it| it.join().unwrap_or_else(|it| resume_unwind(it)));
            others.chain(own).collect::<Vec<_>>()
        });
        answers.sort_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// The instances, each once, and the hosts without an address.
    fn addresses(&self, config: &Path, end: Instant) -> Result<Vec<Instance>, CliError> {
        let mut texts = self.admin.clone();
        if let Some(path) = &self.instances {
            let content = regular_file::read(path, MAX_FILE);
            let content = content.map_err(|error| CliError::io(path, &error))?;
            let content =
                String::from_utf8(content).map_err(|error| CliError::file(path, error))?;
            let lines = content.lines().map(str::trim);
            texts.extend(
                lines.filter(|it| !it.is_empty() && !it.starts_with('#')).map(str::to_owned),
            );
        }
        if self.is_empty() {
            return Ok(vec![Instance::new(ListenAddress::read_admin(config)?, None)]);
        }
        if texts.is_empty() {
            return Err(CliError::Usage("no instance is given".to_owned()));
        }
        let too_many =
            || CliError::Usage(format!("more than {MAX_INSTANCES} instances; ask them in parts"));
        if texts.len() > MAX_INSTANCES {
            return Err(too_many());
        }
        let look_up = (runtime()?, resolver()?);
        let mut instances: Vec<Instance> = Vec::new();
        for text in texts {
            for found in addresses_of(&text, &look_up, end)? {
                if !instances.iter().any(|known| known.shown == found.shown) {
                    instances.push(found);
                }
            }
            if instances.len() > MAX_INSTANCES {
                return Err(too_many());
            }
        }
        Ok(instances)
    }
}

impl Instance {
    /// The instance at `address`. Without a `name`, the certificate has the IP address.
    fn new(address: ListenAddress, name: Option<ServerName<'static>>) -> Self {
        let name = name.or(match &address {
            ListenAddress::Tcp(address) => Some(address.ip().into()),
            ListenAddress::Unix(_) => None,
        });
        Self { shown: address.to_string(), address: Ok((address, name)) }
    }
}

/// The instances that a text names, or why its host has no address.
fn addresses_of(
    text: &str,
    (runtime, resolver): &(Runtime, Resolver),
    end: Instant,
) -> Result<Vec<Instance>, CliError> {
    let problem = || {
        let text = printable(text);
        CliError::Usage(format!("{text:?}: write 10.0.0.1:9464, unix:/PATH or HOST:9464"))
    };
    let unix = text.strip_prefix("unix:").map(|path| ListenAddress::Unix(path.into()));
    let known = unix.or_else(|| text.parse().map(ListenAddress::Tcp).ok());
    if let Some(address) = known {
        return Ok(vec![Instance::new(address, None)]);
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(problem)?;
    let port: u16 = port.parse().map_err(|_| problem())?;
    let name = ServerName::try_from(host.to_owned()).map_err(|_| problem())?;
    let limit = MAX_LOOK_UP.min(end.saturating_duration_since(Instant::now()));
    let found = match runtime.block_on(resolver.resolve(host, limit)) {
        Ok(found) => found,
        Err(error) => {
            let (host, problem) = (text.to_owned(), error.to_string());
            let address = Err(AdminError::Host { host, problem });
            return Ok(vec![Instance { shown: text.to_owned(), address }]);
        }
    };
    let instances = found.iter().map(|found| {
        Instance::new(ListenAddress::Tcp((found.ip(), port).into()), Some(name.clone()))
    });
    Ok(instances.collect())
}

/// The responses. An instance without one is a line on standard error.
///
/// # Errors
/// Returns the last error if no instance responds.
pub(super) fn responses<T>(answers: Vec<InstanceAnswer<T>>) -> Result<Vec<(String, T)>, CliError> {
    let (mut responses, mut errors) = (Vec::new(), Vec::new());
    for InstanceAnswer { instance, response } in answers {
        match response {
            Ok(response) => responses.push((instance, response)),
            Err(error) => errors.push((instance, error)),
        }
    }
    let last = if responses.is_empty() { errors.pop() } else { None };
    errors.iter().for_each(|(instance, error)| print_error(&format_args!("{instance}: {error}")));
    last.map_or(Ok(responses), |(_, error)| Err(error.into()))
}

/// Rows of several instances, last seen first. Rows with the same `key` are one, with its
/// `instances`: counts are added, `first_seen` is the first one, and the rest is of the instance
/// that saw it last.
pub(super) fn merged(
    rows: impl IntoIterator<Item = (String, Value)>,
    key: impl Fn(&Value) -> Value,
) -> Vec<Value> {
    let mut merged: Vec<(Value, Vec<String>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (instance, row) in rows {
        let place = *places.entry(key(&row).to_string()).or_insert(merged.len());
        match merged.get_mut(place) {
            Some((known, instances)) => {
                join(known, row);
                // The rows of an instance come together.
                if instances.last() != Some(&instance) {
                    instances.push(instance);
                }
            }
            None => merged.push((row, vec![instance])),
        }
    }
    let mut rows: Vec<Value> =
        merged.into_iter().map(|(row, instances)| with_instances(row, &instances)).collect();
    rows.sort_by_key(|row| Reverse(number(row, "last_seen")));
    rows
}

/// The row with the instances that have it.
pub(super) fn with_instances(mut row: Value, instances: &[String]) -> Value {
    if let Some(row) = row.as_object_mut() {
        row.insert("instances".to_owned(), json!(instances));
    }
    row
}

fn join(known: &mut Value, mut row: Value) {
    let numbers = |name| number(known, name).zip(number(&row, name));
    let count = numbers("count").map(|(one, other)| one.saturating_add(other));
    let first = numbers("first_seen").map(|(one, other)| one.min(other));
    if number(&row, "last_seen") > number(known, "last_seen") {
        std::mem::swap(known, &mut row);
    }
    for (name, value) in [("count", count), ("first_seen", first)] {
        if let Some((member, value)) = known.get_mut(name).zip(value) {
            *member = value.into();
        }
    }
}

/// The instances of a merged row as text, of `all` that responded.
pub(super) fn on(row: &Value, all: usize) -> String {
    let names: Vec<&str> = rows_of(row.get("instances")).iter().filter_map(Value::as_str).collect();
    let shown = names.iter().take(MAX_SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_SHOWN) {
        _ if names.len() == all => "on all".to_owned(),
        0 => format!("on {shown}"),
        others => format!("on {shown} and {others} more"),
    }
}

pub(super) fn rows_of(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name)?.as_u64()
}
