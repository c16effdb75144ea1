//! The builder for a running proxy: `Proxy::new().policy("...").limits("...").start()`.

use std::ops::Deref;

use toml::{Table, Value};

use super::client::Client;
use super::http2::Http2;
use super::keygate::Keygate;
use super::keys::{merge, with, written};
use super::origin::Origin;
use super::pki::{Kind, Party, Pki};
use super::{MINIMAL, output_text, write_filter};

/// Sets keys of a configuration. Settings are TOML: lines, or pairs with commas between them.
/// In an array of tables, such as `services`, the first table is meant.
pub trait Configure: Sized {
    fn table(&mut self) -> &mut Table;

    /// Sets the key at `place`, such as `services.upstream.response_timeout`.
    fn set(mut self, place: &str, value: impl Into<Value>) -> Self {
        let table = self.table();
        *table = with(table, place, Some(value.into()));
        self
    }

    /// Removes the key at `place`.
    fn unset(mut self, place: &str) -> Self {
        let table = self.table();
        *table = with(table, place, None);
        self
    }

    /// Adds settings to the table at `place`.
    fn add(mut self, place: &str, settings: &str) -> Self {
        let settings = parse(settings);
        let place: Vec<_> = place.split('.').filter(|name| !name.is_empty()).collect();
        let settings = place.into_iter().rev().fold(settings, |inner, name| {
            Table::from_iter([(name.to_owned(), Value::Table(inner))])
        });
        merge(self.table(), settings);
        self
    }

    /// Adds settings at the top; tables such as `[[lists]]` are appended.
    fn global(self, settings: &str) -> Self {
        self.add("", settings)
    }

    fn filter(self, settings: &str) -> Self {
        self.add("filters", settings)
    }

    fn service(self, settings: &str) -> Self {
        self.add("services", settings)
    }

    fn client_auth(self, settings: &str) -> Self {
        self.add("services.client_auth", settings)
    }

    fn limits(self, settings: &str) -> Self {
        self.add("services.limits", settings)
    }

    fn policy(self, settings: &str) -> Self {
        self.add("services.policy", settings)
    }

    fn upstream(self, settings: &str) -> Self {
        self.add("services.upstream", settings)
    }

    /// The URLs of the upstream servers.
    fn servers(self, urls: &[impl ToString]) -> Self {
        let urls: Vec<_> = urls.iter().map(|url| Value::String(url.to_string())).collect();
        self.set("services.upstream.servers", urls)
    }

    fn workers(self, count: i64) -> Self {
        self.set("workers", count)
    }
}

fn parse(settings: &str) -> Table {
    let pairs = || format!("pairs = {{ {settings} }}").parse::<Table>();
    settings.parse().unwrap_or_else(|problem| match pairs() {
        Ok(mut table) => match table.remove("pairs") {
            Some(Value::Table(table)) => table,
            _ => unreachable!("an inline table is a table"),
        },
        Err(_) => panic!("{settings}: {problem}"),
    })
}

/// A configuration with the filter `lost` and one service, `test`, on a free port.
#[derive(Debug, Clone)]
pub struct Configuration(Table);

impl Configure for Configuration {
    fn table(&mut self) -> &mut Table {
        &mut self.0
    }
}

impl Configuration {
    /// The service forwards to `server`, such as `127.0.0.1:8080`, over HTTP/1.1. A test that
    /// examines a timeout sets it.
    pub fn new(server: impl ToString) -> Self {
        let settings = r#"
            admin = { listen = "127.0.0.1:0" }
            workers = 2
            shutdown = { readiness_delay = "0s", drain_timeout = "50s" }
        "#;
        let limits = r#"
            handshake_timeout = "10m"
            header_timeout = "10m"
            body_timeout = "10m"
            idle_timeout = "10m"
        "#;
        let timeouts = r#"
            connect_timeout = "10m"
            response_timeout = "10m"
            body_timeout = "10m"
        "#;
        let server = server.to_string();
        let configuration = Self(MINIMAL.parse().unwrap()).global(settings);
        let configuration = configuration.service("name = \"test\"\nlisten = \"127.0.0.1:0\"");
        configuration.limits(limits).upstream(timeouts).servers(&[format!("http://{server}")])
    }

    /// Adds a copy of the first service, named `second`, with these settings.
    pub fn second_service(mut self, settings: &str) -> Self {
        let mut second = self.clone().set("services.name", "second").service(settings).0;
        let Some(Value::Array(mut second)) = second.remove("services") else { panic!("{self:?}") };
        let Some(Value::Array(services)) = self.0.get_mut("services") else {
            panic!("no services")
        };
        services.push(second.swap_remove(0));
        self
    }

    /// The configuration as a file has it. A source of proofs has an hour for each answer, unless
    /// the test has set `confirm.wait` and `confirm.timeout`.
    pub fn text(&self) -> String {
        let mut table = self.0.clone();
        if let Some(Value::Table(confirm)) = table.get_mut("confirm") {
            for key in ["wait", "timeout"] {
                confirm.entry(key).or_insert_with(|| "1h".into());
            }
        }
        written(&table)
    }

    /// Starts the proxy in the directory of `pki`, where all files must be.
    pub fn start(&self, pki: &Pki) -> Keygate {
        Keygate::configured(pki, &self.text())
    }
}

/// A proxy before its start: certificates, a filter, an upstream, a configuration.
pub struct Proxy {
    pub pki: Pki,
    /// A client whose key is in no filter.
    pub good: Party,
    /// A client whose key is in the filter, unless the test has written `lost.pkbf` itself.
    pub lost: Party,
    origin: Origin,
    pub configuration: Configuration,
}

impl Configure for Proxy {
    fn table(&mut self) -> &mut Table {
        self.configuration.table()
    }
}

impl Proxy {
    /// In front of [`Origin::start`].
    pub fn new() -> Self {
        Self::to(Origin::start())
    }

    /// In front of `origin`.
    pub fn to(origin: Origin) -> Self {
        let pki = Pki::new();
        let [good, lost] = ["good", "lost"].map(|name| pki.client(name, Kind::P256));
        let configuration = Configuration::new(origin.address());
        Self { pki, good, lost, origin, configuration }
    }

    /// In front of the server with this URL.
    pub fn before(url: impl ToString) -> Self {
        Self::new().servers(&[url.to_string()])
    }

    /// The address of the origin, for further services.
    pub fn origin_address(&self) -> std::net::SocketAddr {
        self.origin.address()
    }

    /// Starts the proxy and waits until it is ready.
    pub fn start(self) -> Running {
        let Self { pki, good, lost, origin, configuration } = self;
        let filter = pki.path("lost.pkbf");
        if !filter.exists() {
            write_filter(&filter, &[&lost.spki]);
        }
        let keygate = configuration.start(&pki);
        Running { pki, good, lost, origin, configuration, keygate }
    }
}

/// A running proxy; ends with the test.
pub struct Running {
    pub pki: Pki,
    pub good: Party,
    pub lost: Party,
    pub origin: Origin,
    /// The configuration that the proxy was started with.
    pub configuration: Configuration,
    pub keygate: Keygate,
}

impl Deref for Running {
    type Target = Keygate;

    fn deref(&self) -> &Keygate {
        &self.keygate
    }
}

impl Running {
    /// An HTTP/1.1 connection of `good`.
    pub fn connect(&self) -> Client {
        Client::connect(&self.pki, self.address(), &self.good)
    }

    /// An HTTP/2 connection of `good`.
    pub fn connect_http2(&self) -> Http2 {
        Http2::connect(&self.pki, self.address(), &self.good)
    }

    /// The status code that `good` gets from curl.
    pub fn code(&self, arguments: &[&str]) -> String {
        let output = self.curl(&self.good, &[&["-w", "%{http_code}"], arguments].concat());
        assert!(output.status.success(), "{}", output_text(&output));
        let (_, code) = output.stdout.split_at(output.stdout.len() - 3);
        String::from_utf8_lossy(code).into_owned()
    }

    /// Asserts that `client` gets the response of the origin.
    pub fn admits(&self, client: &Party) {
        let output = self.curl(client, &[]);
        assert_eq!(output.stdout, b"hello\n", "{}: {}", client.name, output_text(&output));
    }

    /// Asserts that `client` is rejected in the handshake because the compromise of its key is
    /// proved.
    pub fn revokes(&self, client: &Party) {
        let text = self.rejection(client);
        assert!(text.contains("certificate revoked"), "{}: {text}", client.name);
    }

    /// Asserts that `client` is rejected in the handshake because of its key.
    pub fn rejects(&self, client: &Party) {
        let text = self.rejection(client);
        assert!(text.contains("access denied"), "{}: {text}", client.name);
    }
}
