//! Many clients whose keys are in question, and a source of proofs that is dead or late.

use std::sync::Arc;

use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::TIMEOUT;
use crate::support::client::config;
use crate::support::load::Load;
use crate::support::proof_source::ProofSource;
use crate::support::proxy::{Configure, Proxy, Running};

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// Number of clients that are held, and of open connections.
const CLIENTS: usize = 1000;
/// Number of open connections whose keys are proved to be compromised.
const PROVED: usize = 10;

type Connection = TlsStream<TcpStream>;

fn start(policy: &str, wait: &str) -> (Running, ProofSource) {
    let source = ProofSource::silent();
    let proxy = Proxy::new();
    let settings = source.settings(&proxy.pki, wait);
    let limits = "max_connections = 20000\nmax_connections_per_ip = 20000\nidle_timeout = \"10m\"";
    let scene = proxy.global(&settings).policy(policy).limits(limits).start();
    source.wait_for_canary(&scene.keygate);
    (scene, source)
}

/// Opens connections and sends a request on each.
async fn open(scene: &Running, config: ClientConfig, count: usize) -> Vec<Connection> {
    let config = Arc::new(config);
    let address = scene.keygate.address();
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        let tcp = TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(Arc::clone(&config));
        let mut connection = connector.connect(address.ip().into(), tcp).await.unwrap();
        connection.write_all(GET).await.unwrap();
        connections.push(connection);
    }
    connections
}

async fn read_response(connection: &mut Connection) {
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\nhello\n") {
        let read = connection.read_buf(&mut response).await.unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&response));
    }
}

#[test]
fn clients_that_a_dead_source_holds_cost_bounded_memory_and_no_service_of_others() {
    let (scene, _source) = start("on_probable = \"reject\"", "1h");
    let load = Load::start(scene.keygate.address(), &scene.pki, &scene.good);
    load.wait_for(200);
    let before = scene.keygate.memory("VmRSS");
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let config = config(&scene.pki, &scene.lost);
    let held = runtime.block_on(open(&scene, config, CLIENTS));
    load.wait_for(2000);
    assert_eq!(load.failures(), [""; 0]);
    let used = scene.keygate.memory("VmRSS").saturating_sub(before);
    println!("{CLIENTS} held clients take {used} KiB");
    // A connection in a handshake takes some 30 KiB in a build without optimisation.
    assert!(used < 64 << 10, "{used} KiB");
    assert_eq!(scene.origin.taken(|it| it.fields("host") == ["localhost"]), 0, "nobody is served");
    drop(held);
    let gone = "keygate_confirmation_waits_total{outcome=\"client_gone\"}";
    scene.keygate.wait_for_metric(gone, CLIENTS as f64);
    load.wait_for(200);
    assert_eq!(load.failures(), [""; 0]);
}

#[test]
fn of_many_open_connections_only_those_end_whose_compromise_is_proved() {
    let count = std::env::var("KEYGATE_LOAD_CONNECTIONS");
    let count = count.map_or(CLIENTS, |count| count.parse().unwrap());
    let (scene, source) = start("on_probable = \"flag\"", "0s");
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut others = open(&scene, config(&scene.pki, &scene.good), count - PROVED).await;
        let mut proved = open(&scene, config(&scene.pki, &scene.lost), PROVED).await;
        for connection in others.iter_mut().chain(&mut proved) {
            read_response(connection).await;
        }
        source.wait_for_question(&scene.lost);
        source.prove(&scene.lost);
        for connection in &mut proved {
            let read = tokio::time::timeout(TIMEOUT, connection.read(&mut [0; 1])).await;
            assert_eq!(read.unwrap().unwrap(), 0, "the connection is closed in order");
        }
        for connection in &mut others {
            connection.write_all(GET).await.unwrap();
            read_response(connection).await;
        }
    });
    let evicted = "keygate_key_actions_total{action=\"evict\",service=\"test\"}";
    assert_eq!(scene.keygate.metric(evicted), PROVED as f64);
    let live = "keygate_key_checks_total{service=\"test\",stage=\"live\",verdict=\"clean\"}";
    assert_eq!(scene.keygate.metric(live), 0.0, "unchanged verdicts are not counted");
}
