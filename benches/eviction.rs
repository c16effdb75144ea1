//! The cost of a snapshot swap for clients that stay connected.
//!
//! One worker serves ten thousand open connections, ten of which are hits in the new filter.
//! Sixteen connections send requests all the time. Their latency is printed for the seconds before
//! the swap and for the second of the swap. At the end, the ten hits must be closed, and all other
//! connections must still get responses.
//!
//! Needs some 20,100 file descriptors for each of two processes: `cargo bench --bench eviction`.

#![allow(
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark may fail loudly"
)]

#[path = "harness/mod.rs"]
mod harness;
#[path = "../tests/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use harness::{NoArguments, quantile};
use support::origin::Origin;
use support::pki::{Kind, Pki};
use support::proxy::{Configuration, Configure};
use support::{client, write_filter, write_revision};

const CONNECTIONS: usize = 10_000;
const HITS: usize = 10;
const ACTIVE: usize = 16;
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(1);

type Connection = TlsStream<TcpStream>;

fn main() {
    if harness::arguments::<NoArguments>().is_none() {
        return;
    }
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, turned] = ["good", "turned"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[]);
    let limits = "limits = { max_connections = 20000, max_connections_per_ip = 20000, idle_timeout = \"10m\" }";
    let text = Configuration::new(origin.address()).service(limits).workers(1);
    let keygate = text.start(&pki);
    let [good, turned_config] = [&good, &turned].map(|party| Arc::new(client::config(&pki, party)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = keygate.address();
    let (mut others, mut hits) = runtime.block_on(async {
        (open(address, &good, CONNECTIONS - HITS).await, open(address, &turned_config, HITS).await)
    });
    println!(
        "{} connections are open, {} of them become hits",
        others.len() + hits.len(),
        hits.len()
    );

    let mut active = others.split_off(others.len() - ACTIVE);
    let swapped = AtomicBool::new(false);
    let spki = turned.spki.clone();
    let [before, after] = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(BEFORE);
            swapped.store(true, Ordering::Relaxed); // the second covers load, swap and judgement
            write_revision(&pki.path("lost.pkbf"), &[&spki], 2);
            keygate.wait_for_generation(2);
        });
        runtime.block_on(latencies(&mut active, &swapped))
    });
    report("before the swap", before);
    report("in the second with the swap", after);

    let start = Instant::now();
    runtime.block_on(async {
        for hit in &mut hits {
            assert_eq!(hit.read(&mut [0; 1]).await.unwrap(), 0, "a hit is still open");
        }
        println!("the {HITS} hits were closed after another {:.0?}", start.elapsed());
        others.append(&mut active);
        for other in &mut others {
            request(other).await;
        }
    });
    println!("{} other connections still get responses", others.len());
}

/// Opens `count` connections and sends one request on each.
async fn open(address: SocketAddr, config: &Arc<ClientConfig>, count: usize) -> Vec<Connection> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        let tcp = TcpStream::connect(address).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        let connector = TlsConnector::from(Arc::clone(config));
        let mut connection = connector.connect(address.ip().into(), tcp).await.unwrap();
        request(&mut connection).await;
        connections.push(connection);
    }
    connections
}

/// Sends a request and reads its response.
async fn request(connection: &mut Connection) {
    connection.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\nhello\n") {
        let read = connection.read_buf(&mut response).await.unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&response));
    }
}

/// Request latencies in seconds, before and after the swap.
async fn latencies(active: &mut [Connection], swapped: &AtomicBool) -> [Vec<f64>; 2] {
    let mut latencies = [Vec::new(), Vec::new()];
    let mut until = None;
    loop {
        let is_after = swapped.load(Ordering::Relaxed);
        if is_after && *until.get_or_insert_with(|| Instant::now() + AFTER) < Instant::now() {
            return latencies;
        }
        for connection in &mut *active {
            let start = Instant::now();
            request(connection).await;
            latencies[usize::from(is_after)].push(start.elapsed().as_secs_f64());
        }
    }
}

fn report(when: &str, mut latencies: Vec<f64>) {
    latencies.sort_by(f64::total_cmp);
    let at = |permille: usize| quantile(&latencies, permille) * 1e3;
    println!(
        "{when}: {} requests, latency in ms: median {:.3}, 99 % {:.3}, 99.9 % {:.3}, longest {:.3}",
        latencies.len(),
        at(500),
        at(990),
        at(999),
        at(1000)
    );
}
