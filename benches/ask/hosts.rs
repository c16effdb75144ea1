//! Throughput of hosts with the configurations of `deploy/authorizer`, with and without keygate.
//!
//! Host and keygate share the first core, each with one worker. The clients and the origin use the
//! second. The configuration without keygate is the same one, with the lines that ask it as
//! comments.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tokio::task::JoinSet;

use super::harness::cores::{Cores, LOAD_CORE, PROXY_CORE, on_core, pin_this_process_to};
use super::harness::http_client::Sender;
use super::harness::origin::Origin;
use super::harness::usage::{self, Usage};
use super::harness::{self, spread};
use super::support::authorizer::{Authorizer, RunningAuthorizer};
use super::support::client;
use super::support::envoy::Envoy;
use super::support::haproxy::HaproxyFiles;
use super::support::http_host::HttpHost;
use super::support::proxy::Configure;

/// Client connections: no more than nginx keeps open to keygate.
const CONNECTIONS: usize = 16;

/// A host with a configuration of `deploy/authorizer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Host {
    Nginx,
    EnvoyHttp,
    Envoy,
    Haproxy,
    Traefik,
    Caddy,
}

impl Host {
    pub const ALL: [Self; 6] =
        [Self::Nginx, Self::EnvoyHttp, Self::Envoy, Self::Haproxy, Self::Traefik, Self::Caddy];

    /// Its directory in `deploy/authorizer`.
    fn name(self) -> &'static str {
        match self {
            Self::Nginx => HttpHost::Nginx.name(),
            Self::EnvoyHttp => HttpHost::EnvoyHttp.name(),
            Self::Envoy => "envoy",
            Self::Haproxy => "haproxy",
            Self::Traefik => HttpHost::Traefik.name(),
            Self::Caddy => HttpHost::Caddy.name(),
        }
    }

    /// Starts keygate, and the host in front of `origin`; `None` if it is not installed.
    fn start(self, origin: SocketAddr, asks: bool) -> Option<RunningHost> {
        let set_up = |authorizer: Authorizer| {
            harness::write_half_full_filter(&authorizer.pki.path("lost.pkbf"), 1);
            authorizer.workers(1).run_by(on_core(PROXY_CORE, harness::keygate()))
        };
        let over_http = |host: HttpHost| {
            let change = |text: String| {
                let text = text.replace("127.0.0.1:8080", &origin.to_string());
                let text =
                    text.replace("port_value: 8080", &format!("port_value: {}", origin.port()));
                let text = text.replace("worker_processes auto", "worker_processes 1");
                // nginx closes a connection after 1,000 requests otherwise.
                let keep = "access_log off; keepalive_requests 1000000000;";
                let text = text.replace("access_log off;", keep);
                if asks { text } else { self.without_questions(&text) }
            };
            let scene = host.start_with(set_up(host.authorizer()), change)?;
            let (address, id) = (scene.address, scene.program.id());
            let keygate = scene.running;
            Some(RunningHost { keygate, address, id, _program: Box::new(scene.program) })
        };
        let keygate = || set_up(Authorizer::of(self.name())).start();
        match self {
            Self::Nginx => over_http(HttpHost::Nginx),
            Self::EnvoyHttp => over_http(HttpHost::EnvoyHttp),
            Self::Traefik => over_http(HttpHost::Traefik),
            Self::Caddy => over_http(HttpHost::Caddy),
            Self::Envoy => {
                let keygate = keygate();
                let envoy = Envoy::start("envoy", keygate.pki.directory(), origin, |text| {
                    if asks { text } else { self.without_questions(&text) }
                })?;
                let (address, id) = (envoy.address, envoy.program.id());
                Some(RunningHost { keygate, address, id, _program: Box::new(envoy) })
            }
            Self::Haproxy => {
                let keygate = keygate();
                let mut files = HaproxyFiles::of("haproxy", &keygate.pki, origin)?;
                for rule in
                    ["filter spoe", "http-request send", "http-request deny", "http-request set"]
                {
                    files = if asks { files } else { files.replace(rule, &format!("#{rule}")) };
                }
                let haproxy = files.start(&keygate.pki);
                let (address, id) = (haproxy.address, haproxy.program.id());
                Some(RunningHost { keygate, address, id, _program: Box::new(haproxy) })
            }
        }
    }

    /// The configuration with the lines that ask keygate as comments.
    fn without_questions(self, text: &str) -> String {
        match self {
            Self::Nginx => text
                .replace("auth_request", "#auth_request")
                .replace("proxy_set_header Client-Key", "#proxy_set_header Client-Key"),
            Self::Traefik => text.replace("middlewares: [", "middlewares: [] # ["),
            Self::Caddy => commented(text, "forward_auth unix", "reverse_proxy 127"),
            Self::Envoy | Self::EnvoyHttp => commented(
                text,
                "- name: envoy.filters.http.ext_authz",
                "- name: envoy.filters.http.router",
            ),
            Self::Haproxy => text.to_owned(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// `text` with the lines from the one with `first` to the one before `last` as comments.
fn commented(text: &str, first: &str, last: &str) -> String {
    let mut is_comment = false;
    let lines = text.lines().map(|line| {
        is_comment = (is_comment || line.contains(first)) && !line.contains(last);
        format!("{}{line}\n", if is_comment { "#" } else { "" })
    });
    lines.collect()
}

/// A running host, and its keygate.
struct RunningHost {
    keygate: RunningAuthorizer,
    address: SocketAddr,
    /// The process that has all others of the host as descendants.
    id: u32,
    _program: Box<dyn Any>,
}

/// Figures of a run.
struct Figures {
    /// Requests a second.
    rate: f64,
    /// Microseconds of CPU time of the host for each request.
    host: f64,
    /// The same of keygate.
    keygate: f64,
}

impl RunningHost {
    /// Sends as many requests as the host answers, for `time`.
    async fn run(&self, time: Duration) -> Figures {
        let config = Arc::new(client::config(&self.keygate.pki, &self.keygate.good));
        let mut senders = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut sender = Sender::open(self.address, &config, false).await.unwrap();
            sender.send("/", 0).await.unwrap();
            senders.push(sender);
        }
        let cpu = || (Usage::of(self.id).cpu, usage::cpu(self.keygate.pid()));
        let (before, start) = (cpu(), Instant::now());
        let mut tasks = JoinSet::new();
        for mut sender in senders {
            tasks.spawn(async move {
                let mut requests = 0_u32;
                while start.elapsed() < time {
                    sender.send("/", 0).await.unwrap();
                    requests += 1;
                }
                requests
            });
        }
        let requests: f64 = tasks.join_all().await.into_iter().map(f64::from).sum();
        let (elapsed, after) = (start.elapsed(), cpu());
        let of_each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / requests;
        let rate = requests / elapsed.as_secs_f64();
        Figures { rate, host: of_each(after.0 - before.0), keygate: of_each(after.1 - before.1) }
    }
}

/// Measures the hosts in interleaved rounds, and prints a table.
pub fn measure(hosts: &[Host], rounds: usize, time: Duration) {
    pin_this_process_to(LOAD_CORE);
    let origin = Origin::start(Cores { workers: 1 });
    // Hosts inherit the core of this process.
    pin_this_process_to(PROXY_CORE);
    let start = |host: &Host| {
        let [without, with] = [false, true].map(|asks| host.start(origin.address(), asks));
        Some((*host, without?, with?, Vec::new()))
    };
    let mut hosts: Vec<_> = hosts.iter().filter_map(start).collect();
    pin_this_process_to(LOAD_CORE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for round in 1..=rounds {
        for (_, without, with, runs) in &mut hosts {
            runs.push([without, with].map(|host| runtime.block_on(host.run(time))));
        }
        eprintln!("round {round} of {rounds}");
    }
    let heads = [
        "requests/s without keygate",
        "with keygate",
        "CPU of the host without, µs",
        "with, µs",
        "CPU of keygate, µs",
        "requests of one core, with / without",
    ];
    println!("| | {} |", heads.join(" | "));
    println!("| --- |{}", " ---: |".repeat(heads.len()));
    for (host, _, _, runs) in &hosts {
        let cell = |figure: fn(&[Figures; 2]) -> f64| spread(runs.iter().map(figure).collect());
        let cells = [
            cell(|[without, _]| without.rate),
            cell(|[_, with]| with.rate),
            cell(|[without, _]| without.host),
            cell(|[_, with]| with.host),
            cell(|[_, with]| with.keygate),
            cell(|[without, with]| without.host / (with.host + with.keygate)),
        ];
        println!("| {host} | {} |", cells.join(" | "));
    }
}
