//! Three instances behind HAProxy with `deploy/fleet/haproxy.cfg`: TCP and PROXY v2.
//!
//! Guards: `admission_digest` and `judging_digest` in `src/sources/admission_digest.rs`.

use std::fs::{read_to_string, set_permissions, write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};

use crate::support::client::{Client, config_of};
use crate::support::keygate::Keygate;
use crate::support::load::{Connection, connect, send_get};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::{Program, reserved_address};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{skip, wait_until};

const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

struct Fleet {
    pki: Pki,
    client: Party,
    address: SocketAddr,
    instances: Vec<Keygate>,
    _haproxy: Program,
    _origin: Origin,
}

impl Fleet {
    /// The list of each instance has the text that `list` returns. `None` skips the test.
    fn new(list: impl Fn(usize) -> String) -> Option<Self> {
        if skip::without("haproxy") {
            return None;
        }
        let (pki, origin) = (Pki::new(), Origin::start());
        let client = pki.client("client", Kind::P256);
        let secret = data_encoding::BASE64.encode(&[7; 48]) + "\n";
        write(pki.path("tickets.secret"), secret).unwrap();
        set_permissions(pki.path("tickets.secret"), PermissionsExt::from_mode(0o600)).unwrap();
        let configuration = Configuration::new(origin.address())
            .unset("filters")
            .global("[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\n")
            .add("services.tls", "ticket_secret = \"tickets.secret\"")
            .service("accept_proxy = { from = [\"127.0.0.1\"] }");
        let instances: Vec<_> = (0..3)
            .map(|number| {
                let directory = pki.copied(&format!("instance-{number}"));
                write(directory.join("deny.txt"), list(number)).unwrap();
                Keygate::in_directory(&directory, &configuration.text())
            })
            .collect();
        let address = reserved_address();
        let mut text = read_to_string("deploy/fleet/haproxy.cfg").unwrap();
        text = text.replace("bind :443", &format!("bind {address}"));
        text = text.replace(" port 9464", "").replace("maxconn 100000", "maxconn 500");
        for (number, keygate) in (11..).zip(&instances) {
            let documented = format!("10.0.0.{number}:8443");
            assert!(text.contains(&documented), "{text}");
            let port = keygate.admin_address().port();
            text = text.replace(&documented, &format!("{} port {port}", keygate.address()));
        }
        write(pki.path("haproxy.cfg"), text).unwrap();
        let mut haproxy = Command::new("haproxy");
        haproxy.arg("-db").arg("-f").arg(pki.path("haproxy.cfg"));
        let haproxy = Program::start(&mut haproxy).listening_on(address);
        Some(Self { pki, client, address, instances, _haproxy: haproxy, _origin: origin })
    }

    /// Connects one after another. Returns how many of the sessions were resumed.
    fn resumed(&self, config: &ClientConfig, count: usize) -> usize {
        let resumed = (0..count).filter(|_| {
            let mut client = Client::with(config.clone(), self.address);
            client.send(GET);
            let response = client.read_to_end().unwrap();
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
            client.is_resumed()
        });
        resumed.count()
    }

    fn connections(&self, instance: usize) -> f64 {
        self.instances[instance].metric("keygate_connections_active{service=\"test\"}")
    }
}

#[test]
fn sessions_are_resumed_across_instances_with_equal_lists_and_never_across_different_ones() {
    const COUNT: usize = 100;
    let equal = |_| "# none\n".to_owned();
    let different = |number| format!("# {number}\n");
    for (is_equal, fleet) in [(true, Fleet::new(equal)), (false, Fleet::new(different))] {
        let Some(fleet) = fleet else { return };
        for version in [&TLS12, &TLS13] {
            let config = config_of(&fleet.pki, &[version], Some(&fleet.client));
            fleet.resumed(&config, 1);
            let resumed = fleet.resumed(&config, COUNT);
            println!("{version:?}, equal lists {is_equal}: {resumed} of {COUNT} resumed");
            assert!(if is_equal { resumed * 100 >= COUNT * 99 } else { resumed == 0 }, "{resumed}");
        }
        for keygate in &fleet.instances {
            let result =
                "keygate_handshakes_total{result=\"ok\",resumed=\"true\",service=\"test\"}";
            assert_eq!(keygate.metric(result) > 0.0, is_equal);
        }
    }
}

/// Sends requests over one connection until `is_done`, or until the connection fails.
fn survives(connection: &mut Connection, is_done: &AtomicBool) -> bool {
    while !is_done.load(Ordering::Relaxed) {
        if send_get(connection, "localhost", false).is_err() {
            return false;
        }
    }
    true
}

#[test]
fn the_death_of_an_instance_ends_its_own_connections_only() {
    const CONNECTIONS: usize = 12;
    let Some(mut fleet) = Fleet::new(|_| "# none\n".to_owned()) else { return };
    let config = Arc::new(config_of(&fleet.pki, &[&TLS13], Some(&fleet.client)));
    let mut open: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut connection = connect(fleet.address, &config).unwrap();
            send_get(&mut connection, "localhost", false).unwrap();
            connection
        })
        .collect();
    let own = fleet.connections(1);
    assert!(own > 0.0 && own < CONNECTIONS as f64, "{own}");
    let (is_done, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    let killed = fleet.instances.remove(1);
    let mut served_after = 0;
    std::thread::scope(|scope| {
        for connection in &mut open {
            scope.spawn(|| {
                let survived = survives(connection, &is_done);
                ended.fetch_add(usize::from(!survived), Ordering::Relaxed);
            });
        }
        drop(killed); // SIGKILL
        wait_until("the end of its connections", || ended.load(Ordering::Relaxed) as f64 >= own);
        // New connections go to the others, also before HAProxy has seen the failure.
        let served = (0..30).filter(|_| {
            let connection = connect(fleet.address, &config);
            connection.and_then(|mut it| send_get(&mut it, "localhost", true)).is_ok()
        });
        served_after = served.count();
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(served_after, 30);
    assert_eq!(ended.load(Ordering::Relaxed) as f64, own);
    let left = [0, 1].map(|instance| fleet.connections(instance));
    assert!(left.iter().sum::<f64>() >= CONNECTIONS as f64 - own, "{left:?}");
}
