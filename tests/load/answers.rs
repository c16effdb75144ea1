//! Many clients whose keys are in question, and a source of proofs that is dead or late.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::client::config;
use crate::support::load::Load;
use crate::support::proof_source::ProofSource;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{TIMEOUT, wait_for};

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// Number of clients that are held, and of idle connections to compare them with.
const CLIENTS: usize = 1000;
/// Maximum memory that the held clients take more than the idle ones, 5 MiB in KiB.
const HELD: u64 = 5 << 10;
/// Number of open connections of which few end. A process with a lower limit on descriptors has
/// fewer; `KEYGATE_LOAD_CONNECTIONS` sets another number.
const CONNECTIONS: usize = 10_000;
/// Descriptors of a process that are left for everything else.
const OTHER_DESCRIPTORS: usize = 500;
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

/// The number of open connections that the soft limit on descriptors allows. The proxy inherits the
/// limit of this process.
fn connections() -> usize {
    if let Ok(count) = std::env::var("KEYGATE_LOAD_CONNECTIONS") {
        return count.parse().unwrap();
    }
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let limit = line.split_whitespace().next().unwrap().parse().unwrap_or(usize::MAX);
    CONNECTIONS.min(limit.saturating_sub(OTHER_DESCRIPTORS))
}

/// Held clients are measured first, so that memory which the first connections take for all later
/// ones counts against them.
#[test]
fn clients_that_a_dead_source_holds_cost_little_memory_no_cpu_and_no_service_of_others() {
    let (scene, source) = start("on_probable = \"reject\"", "1h");
    let (memory, waits) = (|| scene.keygate.memory("VmRSS"), "keygate_confirmation_waits_total");
    let load = Load::start(scene.keygate.address(), &scene.pki, &scene.good);
    load.wait_for(200);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let [of_good, of_lost] = [&scene.good, &scene.lost].map(|party| config(&scene.pki, party));
    let before = memory();
    let held = runtime.block_on(open(&scene, of_lost, CLIENTS));
    load.wait_for(2000);
    let taken = memory().saturating_sub(before);
    assert_eq!(load.failures(), [""; 0]);
    drop(load);
    wait_for("1,000 held clients to take no CPU", || {
        let before = scene.keygate.cpu_ticks();
        // The window is the subject: a connection that wakes without an event takes CPU in it.
        std::thread::sleep(Duration::from_millis(500));
        let ticks = scene.keygate.cpu_ticks() - before;
        if ticks <= 1 { Ok(()) } else { Err(format!("{ticks} ticks")) }
    });
    let before = memory();
    let idle = runtime.block_on(async {
        let mut idle = open(&scene, of_good, CLIENTS).await;
        for connection in &mut idle {
            read_response(connection).await;
        }
        idle
    });
    let hibernating = "keygate_connections_hibernating{service=\"test\"}";
    scene.keygate.wait_for_metric(hibernating, CLIENTS as f64);
    let idle_taken = memory().saturating_sub(before);
    println!("{CLIENTS} held clients take {taken} KiB, as many idle ones {idle_taken} KiB");
    assert!(taken < idle_taken + HELD, "{taken} KiB, {idle_taken} KiB");
    assert_eq!(source.questions(&scene.lost), 1);
    let served = scene.origin.taken(|it| it.fields("host") == ["localhost"]);
    assert_eq!(served, CLIENTS, "no held client is served");
    drop((held, idle));
    let gone = format!("{waits}{{outcome=\"client_gone\"}}");
    scene.keygate.wait_for_metric(&gone, CLIENTS as f64);
}

#[test]
fn of_many_open_connections_only_those_end_whose_compromise_is_proved() {
    let count = connections();
    println!("{count} connections");
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
