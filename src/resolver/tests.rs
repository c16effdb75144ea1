use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

const LONG: Duration = Duration::from_secs(60);
const ADDRESS: [SocketAddr; 1] = [SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)];

/// A resolver for which names that begin with `hang` hang until the sender is used or dropped.
/// Also counts the look-ups.
fn hanging() -> (Resolver, Sender<()>, Arc<AtomicUsize>) {
    let (release, released): (Sender<()>, Receiver<()>) = channel();
    let released = Mutex::new(released);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let resolver = Resolver::with(Box::new(move |name| {
        counted.fetch_add(1, Ordering::Relaxed);
        match name {
            "missing" => Err(ResolveError::NotFound(Arc::new(io::Error::other("no name")))),
            _ if name.starts_with("hang") => {
                let _ = released.lock().unwrap().recv();
                Ok(ADDRESS.into())
            }
            _ => Ok(ADDRESS.into()),
        }
    }));
    (resolver.unwrap(), release, count)
}

#[tokio::test]
async fn names_that_hang_delay_no_other_name() {
    let (resolver, release, _) = hanging();
    let hang: Vec<_> = (0..=THREADS)
        .map(|index| {
            let resolver = resolver.clone();
            tokio::spawn(async move { resolver.resolve(&format!("hang{index}"), LONG).await })
        })
        .collect();
    tokio::task::yield_now().await; // all of them have begun
    assert_eq!(*resolver.resolve("other", LONG).await.unwrap(), ADDRESS);
    drop(release);
    for hang in hang {
        assert_eq!(*hang.await.unwrap().unwrap(), ADDRESS);
    }
}

#[tokio::test]
async fn a_name_that_hangs_has_one_look_up_and_its_late_answer_is_used() {
    let (resolver, release, count) = hanging();
    for _ in 0..3 {
        let outcome = resolver.resolve("hang", Duration::from_millis(1)).await;
        assert!(matches!(outcome, Err(ResolveError::TimedOut)), "{outcome:?}");
    }
    release.send(()).unwrap();
    assert_eq!(*resolver.resolve("hang", LONG).await.unwrap(), ADDRESS);
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_outcome_is_kept_for_a_while() {
    let (resolver, _release, count) = hanging();
    let began = Instant::now();
    let mut at_most = 0;
    while at_most == 0 || began.elapsed() < FIRST_BACK_OFF / 4 {
        at_most += 2;
        assert!(resolver.resolve("missing", LONG).await.is_err());
        assert!(resolver.resolve("other", LONG).await.is_ok());
    }
    let count = count.load(Ordering::Relaxed);
    assert!(count == 2 || began.elapsed() >= FIRST_BACK_OFF, "{count} of {at_most}");
}

#[test]
fn old_addresses_are_used_after_a_temporary_failure_and_not_if_the_name_is_gone() {
    let now = Instant::now();
    let mut entry = NameEntry::new(now);
    entry.end_look_up(Ok(ADDRESS.into()), now);
    let later = now + STALE / 2;
    let mut fail = |error: fn(Arc<io::Error>) -> ResolveError, at| {
        entry.end_look_up(Err(error(Arc::new(io::Error::other("no")))), at);
        entry.outcome(at).unwrap().is_ok()
    };
    assert!(fail(ResolveError::Temporary, later));
    assert!(!fail(ResolveError::Temporary, now + STALE), "too old");
    assert!(!fail(ResolveError::NotFound, later));
}

#[test]
fn the_back_off_grows_up_to_its_maximum_and_ends_with_an_answer() {
    let now = Instant::now();
    let mut entry = NameEntry::new(now);
    let mut back_offs = Vec::new();
    for _ in 0..6 {
        entry.end_look_up(Err(ResolveError::TimedOut), now);
        back_offs.push(entry.failure.as_ref().unwrap().back_off.as_millis());
    }
    assert_eq!(back_offs, [500, 1000, 2000, 4000, 8000, 8000]);
    assert!(entry.is_in_back_off(now) && !entry.is_in_back_off(now + MAX_BACK_OFF));
    entry.end_look_up(Ok(ADDRESS.into()), now);
    assert!(!entry.is_in_back_off(now));
}

#[test]
fn the_system_resolves_localhost_and_no_invalid_name() {
    let addresses = look_up("localhost").unwrap();
    assert!(addresses.iter().all(|it| it.ip().is_loopback()), "{addresses:?}");
    assert!(look_up("a name with spaces").is_err());
}

/// A resolver for which each name has two addresses, and a listener on the second one alone.
/// Another program may listen on the same port of 127.0.0.1, but hardly of 127.0.0.3.
fn second_of_two() -> (Resolver, std::net::TcpListener) {
    let addresses = [[127, 0, 0, 3], [127, 0, 0, 2]].map(|it| SocketAddr::from((it, 0)));
    let resolver = Resolver::with(Box::new(move |_| Ok(addresses.into()))).unwrap();
    (resolver, std::net::TcpListener::bind("127.0.0.2:0").unwrap())
}

#[tokio::test]
async fn the_first_address_that_accepts_is_connected_to() {
    let (resolver, listener) = second_of_two();
    let port = listener.local_addr().unwrap().port();
    let tcp = resolver.connect("name", port, LONG, |_| Ok(())).await.unwrap();
    assert_eq!(tcp.peer_addr().unwrap(), listener.local_addr().unwrap());
    let tcp = resolver.connect("127.0.0.2", port, LONG, |_| Ok(())).await.unwrap();
    assert_eq!(tcp.peer_addr().unwrap(), listener.local_addr().unwrap());
    let closed = resolver.connect("127.0.0.3", port, LONG, |_| Ok(())).await.unwrap_err();
    assert!(
        matches!(closed, ConnectError::Io(it) if it.kind() == io::ErrorKind::ConnectionRefused)
    );
}

#[tokio::test]
async fn an_address_that_is_not_permitted_gets_no_connection() {
    let (resolver, listener) = second_of_two();
    let port = listener.local_addr().unwrap().port();
    let permits = |address: SocketAddr| match address.ip() == IpAddr::from([127, 0, 0, 2]) {
        true => Err(io::Error::other("not permitted")),
        false => Ok(()),
    };
    let refused = resolver.connect("name", port, LONG, permits).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Io(it) if it.to_string() == "not permitted"));
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}
