use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use prometheus::IntGauge;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::task::{LocalSet, yield_now};

use super::*;
use crate::proxy::upstream::dial::ConnectionLimit;

fn client(last: u8) -> ClientKey {
    ClientKey::new(None, IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)))
}

/// A connection to a server that allows `streams` streams, and the server's side of it.
async fn connection(pool: &Rc<Http2Pool>, streams: u8) -> (Http2Connection, DuplexStream) {
    let (io, mut server) = duplex(1 << 16);
    let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, streams];
    server.write_all(&settings).await.unwrap();
    let metric = IntGauge::new("name", "help").unwrap();
    let guard = ConnectionLimit::new(1).enter(&metric, &Arc::default(), None).unwrap();
    let pool = Rc::downgrade(pool);
    let update = move || pool.upgrade().iter().for_each(Http2Pool::update);
    let http2 = Http2Connection::start(Box::new(io), guard, update).await.unwrap();
    http2.first_settings().await;
    (http2, server)
}

fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn requests_that_wait_for_a_new_connection_outlive_the_end_of_the_one_before() {
    let local = LocalSet::new();
    local.run_until(end_of_a_connection_while_another_is_opened()).await;
}

async fn end_of_a_connection_while_another_is_opened() {
    let pool = Http2Pool::new(PoolPurpose::Requests, None, &Rc::default());
    let opened = Cell::new(0);
    let open = || opened.set(opened.get() + 1);
    let mut first = Box::pin(pool.acquire(client(1), false, open));
    let mut second = Box::pin(pool.acquire(client(2), false, open));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    assert_eq!(opened.get(), 1, "both wait for one connection");

    let (http2, server) = connection(&pool, 1).await;
    pool.end_opening(Ok(http2.clone()));
    assert!(poll(&mut second).is_pending());
    assert_eq!(opened.get(), 2, "the first has the only slot");
    drop(server);
    while !http2.is_closed() {
        yield_now().await;
    }
    assert!(poll(&mut first).is_pending(), "its slot is of no use");
    assert!(poll(&mut second).is_pending());
    assert_eq!(opened.get(), 2, "both wait for the other connection");

    let (http2, _server) = connection(&pool, 2).await;
    pool.end_opening(Ok(http2));
    let is_served = |end: Poll<Result<_, _>>| matches!(end, Poll::Ready(Ok(_)));
    let (first, second) = (poll(&mut first), poll(&mut second));
    assert!(is_served(first) && is_served(second));
}
