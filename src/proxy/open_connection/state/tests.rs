use std::task::Waker;

use super::*;

pub(crate) const LIMITS: LimitsConfig = LimitsConfig {
    handshake_timeout: Duration::from_secs(1),
    header_timeout: Duration::from_secs(10),
    body_timeout: Duration::from_secs(30),
    idle_timeout: Duration::from_secs(60),
    request_timeout: None,
    max_connection_age: None,
    max_connections: 1,
    max_connections_per_ip: 1,
    max_header_size: 8192,
    max_headers: 100,
    max_body_size: None,
    max_streams: 100,
};

fn close_after(state: &ConnectionState, seconds: u64) -> Option<Close> {
    state.check(Instant::now() + Duration::from_secs(seconds));
    state.take_close(&Context::from_waker(Waker::noop()))
}

#[test]
fn an_idle_connection_closes_after_the_idle_timeout_and_a_dead_one_is_aborted() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
    assert_eq!(close_after(&state, 59), None);
    assert_eq!(close_after(&state, 60), Some(Close::Graceful));
    assert_eq!(close_after(&state, 1), None);
    assert_eq!(close_after(&state, 6), Some(Close::Abort));
}

#[test]
fn an_incomplete_request_head_times_out() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
    state.record_read(1);
    assert_eq!(close_after(&state, 9), None);
    assert_eq!(close_after(&state, 10), Some(Close::RequestTimeout));
}

#[test]
fn bytes_between_http2_requests_are_no_request_head() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Http2);
    state.record_read(1);
    assert_eq!(close_after(&state, 59), None);
}

#[test]
fn an_idle_tunnel_is_aborted() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Tunnel);
    state.close(Close::Graceful);
    assert_eq!(close_after(&state, 59), Some(Close::Graceful), "and the tunnel goes on");
    state.record_write(1);
    assert_eq!(close_after(&state, 59), None);
    assert_eq!(close_after(&state, 60), Some(Close::Abort));
}

#[test]
fn a_body_that_does_not_move_is_aborted_unless_the_upstream_is_slow() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
    state.begin_request(Instant::now());
    let wait = state.wait_for_upstream();
    assert_eq!(close_after(&state, 3600), None);
    drop(wait);
    assert_eq!(close_after(&state, 29), None);
    assert_eq!(close_after(&state, 30), Some(Close::Abort));
}

#[test]
fn a_client_that_takes_nothing_is_aborted_although_the_upstream_is_slow() {
    for kind in [ConnectionKind::Http1, ConnectionKind::Http2] {
        let state = ConnectionState::new(&LIMITS, kind);
        state.begin_request(Instant::now());
        let _wait = state.wait_for_upstream();
        state.on_write_blocked();
        assert_eq!(close_after(&state, 29), None);
        state.on_write(1);
        assert_eq!(close_after(&state, 3600), None);
        state.on_write_blocked();
        state.on_flush();
        assert_eq!(close_after(&state, 3600), None);
        state.on_write_blocked();
        state.record_body_progress();
        assert_eq!(close_after(&state, 30), Some(Close::Abort), "{kind:?}");
    }
}

#[test]
fn requests_of_http2_have_their_own_timeouts() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Http2);
    state.begin_request(Instant::now());
    assert_eq!(close_after(&state, 3600), None);
}

#[test]
fn a_connection_of_a_client_that_misuses_it_is_aborted_soon() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Http2);
    state.begin_request(Instant::now());
    state.close(Close::EnhanceYourCalm);
    assert_eq!(close_after(&state, 1), Some(Close::EnhanceYourCalm));
    assert_eq!(close_after(&state, 5), Some(Close::Abort));
}

#[test]
fn a_connection_at_its_maximum_age_closes_gracefully() {
    let limits = LimitsConfig { max_connection_age: Some(Duration::from_secs(20)), ..LIMITS };
    let state = ConnectionState::new(&limits, ConnectionKind::Http1);
    assert_eq!(close_after(&state, 19), None);
    assert_eq!(close_after(&state, 20), Some(Close::Graceful));
}

#[test]
fn a_tunnel_at_its_maximum_age_is_aborted_and_other_timeouts_still_apply() {
    let limits = LimitsConfig { max_connection_age: Some(Duration::from_secs(20)), ..LIMITS };
    let tunnel = ConnectionState::new(&limits, ConnectionKind::Tunnel);
    assert_eq!(close_after(&tunnel, 20), Some(Close::Abort));
    let busy = ConnectionState::new(&limits, ConnectionKind::Http1);
    busy.begin_request(Instant::now());
    assert_eq!(close_after(&busy, 20), Some(Close::Graceful));
    assert_eq!(close_after(&busy, 30), Some(Close::Abort), "the client reads nothing");
}

#[test]
fn a_client_that_reads_the_tail_of_its_response_is_not_aborted() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
    state.close(Close::Graceful);
    assert_eq!(close_after(&state, 4), Some(Close::Graceful));
    state.phase.set(ActivityPhase::Closing(Instant::now() - Duration::from_secs(4)));
    state.record_write(1);
    assert_eq!(close_after(&state, 4), None);
    assert_eq!(close_after(&state, 5), Some(Close::Abort));
}

#[test]
fn a_connection_that_waits_for_the_upstream_is_not_closed() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
    state.begin_request(Instant::now());
    state.begin_request(Instant::now());
    let _wait = state.wait_for_upstream();
    state.end_request();
    assert_eq!(close_after(&state, 3600), None);
    state.end_request();
    assert_eq!(close_after(&state, 3600), Some(Close::Graceful));
}

#[test]
fn a_connection_that_declines_to_hibernate_is_left_alone_until_its_next_request() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
    let later = || Instant::now() + Duration::from_secs(2);
    let request = || state.request_hibernation(later(), Duration::from_secs(1));
    assert!(request() && !state.take_hibernation(|| false));
    assert!(request() && !state.take_hibernation(|| true), "hibernation requested again");
    state.begin_request(Instant::now());
    state.end_request();
    assert!(request() && state.take_hibernation(|| true));
}

#[test]
fn a_tunnel_counts_the_bytes_of_each_direction() {
    let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
    state.record_read(1);
    state.become_tunnel();
    for _ in 0..2 {
        state.record_read(3);
        state.record_write(4);
    }
    let TunnelBytes { from_client, to_client } = state.tunnel_bytes.get().plus(10, 20);
    assert_eq!((from_client, to_client), (16, 28));
}
