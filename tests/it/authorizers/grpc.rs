//! Questions over gRPC (`src/ask/grpc.rs`): grpcio with Envoy's messages, and calls that no library
//! makes.
//!
//! A question that a client can spoil is denied in a complete response, never by a gRPC error and
//! never by a reset (`UnaryCall::deny`). Envoy admits clients on errors with `failure_mode_allow`.

use std::os::unix::net::UnixStream as BlockingStream;
use std::path::Path;
use std::pin::pin;

use bytes::Bytes;
use h2::client::SendRequest;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::net::UnixStream;

use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::envoy::GrpcHost;
use crate::support::grpc::{CHECK, about, check_request, field, head, prefixed};
use crate::support::http_host::escaped_pem;
use crate::support::http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame,
    read_frame,
};
use crate::support::pki::{Kind, Party};
use crate::support::proxy::Configure;
use crate::support::{TIMEOUT, wait_for};

const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// A question about the certificate of `client`, whose request has these headers.
fn question_with(client: &Party, headers: Value) -> Value {
    json!({ "attributes": {
        "source": {
            "address": { "socket_address": { "address": "192.0.2.7", "port_value": 4711 } },
            "certificate": escaped_pem(&client.der),
            "principal": "CN=a client",
        },
        "request": { "http": { "method": "GET", "path": "/", "headers": headers } },
        "tls_session": { "sni": "a.example" },
    } })
}

fn question(client: &Party) -> Value {
    question_with(client, json!({ "accept": "*/*" }))
}

/// The end of a call.
#[derive(Debug)]
struct Ended {
    http: StatusCode,
    grpc: String,
    message: Vec<u8>,
}

impl Ended {
    /// Whether this is a complete `CheckResponse` with this code.
    fn is(&self, code: &[u8]) -> bool {
        let status = field(1, code);
        self.http == 200
            && self.grpc == "0"
            && self.message.get(5..5 + status.len()) == Some(&status)
    }

    fn is_allowed(&self) -> bool {
        self.is(&[])
    }

    fn is_denied(&self) -> bool {
        self.is(&[8, 7]) && String::from_utf8_lossy(&self.message).contains("403 Forbidden: ")
    }
}

/// A connection to the socket; its task ends with the runtime.
async fn connect(socket: &Path) -> SendRequest<Bytes> {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn post(path: &str) -> Request<()> {
    let request = Request::post(format!("http://keygate{path}"));
    request.header("content-type", "application/grpc").body(()).unwrap()
}

/// Makes a call with the bytes of `body`, in DATA frames of at most `size` bytes.
async fn call(host: &SendRequest<Bytes>, request: Request<()>, body: &[u8], size: usize) -> Ended {
    let mut host = host.clone().ready().await.unwrap();
    let (response, mut stream) = host.send_request(request, body.is_empty()).unwrap();
    let mut pieces = body.chunks(size).peekable();
    while let Some(piece) = pieces.next() {
        let is_last = pieces.peek().is_none();
        stream.send_data(Bytes::copy_from_slice(piece), is_last).unwrap();
    }
    ended(response).await
}

async fn ended(response: h2::client::ResponseFuture) -> Ended {
    let (head, mut body) = response.await.unwrap().into_parts();
    let mut message = Vec::new();
    while let Some(data) = body.data().await {
        message.extend(data.unwrap());
    }
    let trailers = body.trailers().await.unwrap().unwrap_or_default();
    let status = head.headers.get("grpc-status").or(trailers.get("grpc-status"));
    let grpc = status.map_or("none", |status| status.to_str().unwrap()).to_owned();
    Ended { http: head.status, grpc, message }
}

async fn ask(host: &SendRequest<Bytes>, message: &[u8]) -> Ended {
    call(host, post(CHECK), &prefixed(message), usize::MAX).await
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, future).await.expect("a timely end") })
}

/// Admits clients without a certificate, so that a denial does not come from the policy.
fn lenient() -> Authorizer {
    Authorizer::of("envoy")
        .add("authorizers.client_auth", "mode = \"optional\"")
        .asked_policy("on_unchecked = \"flag\"")
}

impl RunningAuthorizer {
    fn questions(&self, result: &str) -> f64 {
        self.metric(&format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}"))
    }
}

#[test]
fn an_answer_has_all_fields_that_envoy_needs() {
    let authorizer = Authorizer::of("envoy").start();
    let Some(mut host) = GrpcHost::connect(&authorizer.socket()) else { return };
    let overwriting = |key: &str, value: &str| {
        json!({
            "header": { "key": key, "value": value },
            "append": false,
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        })
    };
    let admitted = host.run(json!(["check", question(&authorizer.good)]));
    let message = &admitted["message"];
    assert_eq!(message["status"], json!({}), "{admitted}");
    let ok = &message["ok_response"];
    assert_eq!(ok["headers"], json!([overwriting("client-key-status", "clean")]));
    let spellings = json!(["client-key_status", "client_key-status", "client_key_status"]);
    assert_eq!(ok["headers_to_remove"], spellings);
    let metadata = &message["dynamic_metadata"];
    assert_eq!((&metadata["verdict"], &metadata["action"]), (&json!("clean"), &json!("admit")));
    assert_eq!(metadata["fingerprint"].as_str().unwrap().len(), 64);
    assert!(message.get("error_response").is_none() && metadata.get("filter").is_none());

    let rejected = host.run(json!(["check", question(&authorizer.lost)]));
    let message = &rejected["message"];
    assert_eq!(message["status"], json!({ "code": 7 }), "{rejected}");
    let denied = &message["denied_response"];
    assert_eq!(denied["status"], json!({ "code": "Forbidden" }));
    let headers = json!([
        overwriting("client-key-status", "probable"),
        overwriting("content-type", "text/plain; charset=utf-8"),
        overwriting("cache-control", "no-store"),
    ]);
    assert_eq!(denied["headers"], headers);
    let body = denied["body"].as_str().unwrap();
    assert!(body.starts_with("403 Forbidden: the key of the client certificate"), "{body}");
    let metadata = &message["dynamic_metadata"];
    let found = [&metadata["verdict"], &metadata["action"], &metadata["filter"]];
    assert_eq!(found, ["probable", "reject", "lost"]);
    assert_eq!(metadata["revision"], 1.0);

    let json = question_with(&authorizer.lost, json!({ "accept": "application/json" }));
    let rejected = host.run(json!(["check", json]));
    let body = rejected["message"]["denied_response"]["body"].as_str().unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["status"], 403);

    let line = authorizer.wait_for("the client", |line| line["message"] == "client key rejected");
    assert_eq!((&line["client"], &line["sni"]), (&json!("192.0.2.7"), &json!("a.example")));
    assert_eq!(authorizer.questions("allowed"), 1.0);
    assert_eq!(authorizer.questions("denied"), 2.0);
}

#[test]
fn a_client_that_no_rule_names_is_denied() {
    let allow = "allow = { common_names = [\"good\"] }";
    let authorizer = Authorizer::of("envoy").add("authorizers.client_auth", allow).start();
    let unnamed = authorizer.pki.client("unnamed", Kind::P256);
    block_on(async {
        let host = connect(&authorizer.socket()).await;
        assert!(
            ask(&host, &about(escaped_pem(&authorizer.good.der).as_bytes())).await.is_allowed()
        );
        let denied = ask(&host, &about(escaped_pem(&unnamed.der).as_bytes())).await;
        assert!(denied.is_denied());
        let message = String::from_utf8_lossy(&denied.message).into_owned();
        assert!(message.contains("no name of the client certificate is allowed here"));
    });
    assert_eq!(authorizer.questions("client_not_allowed"), 1.0);
}

#[test]
fn faults_of_the_host_are_grpc_errors_and_never_look_like_success() {
    let authorizer = lenient().start();
    if let Some(mut host) = GrpcHost::connect(&authorizer.socket()) {
        let code = |host: &mut GrpcHost, operation| host.run(operation)["code"].clone();
        assert_eq!(code(&mut host, json!(["method", "/a.B/C"])), "UNIMPLEMENTED");
        assert_eq!(code(&mut host, json!(["watch", ""])), "UNIMPLEMENTED");
        let compressed = json!(["compressed", question(&authorizer.good)]);
        assert_eq!(code(&mut host, compressed), "UNIMPLEMENTED");
        assert_eq!(code(&mut host, json!(["serving", "orders"])), "NOT_FOUND");
    }
    block_on(async {
        let host = connect(&authorizer.socket()).await;
        let question = prefixed(&about(escaped_pem(&authorizer.good.der).as_bytes()));
        let request = |method: &str, path: &str, kind: &str| {
            let request = Request::builder().method(method).uri(format!("http://keygate{path}"));
            request.header("content-type", kind).body(()).unwrap()
        };
        for (method, path, kind, http, grpc) in [
            ("GET", "/healthz", "text/html", 415, "3"),
            ("GET", "/metrics", "application/grpc", 404, "12"),
            ("GET", CHECK, "application/grpc", 404, "12"),
            ("OPTIONS", "/", "application/grpc", 404, "12"),
            ("POST", "/readyz?a=1", "application/grpc", 404, "12"),
            ("POST", CHECK, "application/grpc-web", 415, "3"),
            ("POST", CHECK, "application/json", 415, "3"),
            ("POST", "/grpc.health.v1.Health/Watch", "application/grpc", 404, "12"),
        ] {
            let ended = call(&host, request(method, path, kind), &question, 1000).await;
            assert_eq!((ended.http.as_u16(), &*ended.grpc), (http, grpc), "{method} {path} {kind}");
        }
        let compressed = [&[1], &question[1..]].concat();
        let ended = call(&host, post(CHECK), &compressed, 1000).await;
        assert_eq!((ended.http.as_u16(), &*ended.grpc), (415, "12"));
        let ended = call(&host, post(HEALTH), b"\0\0\0\0\x01\xff", 1000).await;
        assert_eq!((ended.http.as_u16(), &*ended.grpc), (400, "3"));
        for kind in ["application/grpc", "application/grpc+proto"] {
            assert!(call(&host, request("POST", CHECK, kind), &question, 1000).await.is_allowed());
        }
    });
}

#[test]
fn every_question_that_a_client_can_spoil_is_denied() {
    let authorizer = lenient().set("authorizers.limits.max_question_size", "8KiB").start();
    let good = escaped_pem(&authorizer.good.der);
    block_on(async {
        let host = connect(&authorizer.socket()).await;
        assert!(ask(&host, &about(good.as_bytes())).await.is_allowed());
        assert!(ask(&host, &about(b"")).await.is_allowed(), "no certificate, by the policy");
        let two = good.repeat(2);
        let message = about(good.as_bytes());
        let whole = prefixed(&message);
        let large = prefixed(&about(&vec![b'a'; 8 << 10]));
        let messages: [&[u8]; 11] = [
            &about(b"not a certificate"),
            &about(two.as_bytes()),
            &about(good.replace('M', "%").as_bytes()),
            &about(&[0xff; 100]),
            &about(&good.as_bytes()[..good.len() / 2]),
            // A name from a certificate, and no certificate.
            &check_request(&field(4, b"CN=lost")),
            // Not a message, a wrong type, no attributes, no source.
            b"\xff",
            b"\x08\x01",
            b"",
            &field(1, b""),
            &message[..message.len() - 1],
        ];
        let streams = messages.iter().map(|message| prefixed(message));
        let streams = streams.chain([
            Vec::new(),
            whole[..3].to_vec(),
            whole[..whole.len() - 1].to_vec(),
            [&whole[..], b"\0"].concat(),
            whole.repeat(2),
            [&[2], &whole[1..]].concat(),
            large.clone(),
            large[..5].to_vec(),
            b"\0\xff\xff\xff\xff".to_vec(),
        ]);
        for (index, stream) in streams.enumerate() {
            for size in [usize::MAX, 700, 3] {
                let ended = call(&host, post(CHECK), &stream, size).await;
                assert!(ended.is_denied(), "{index} in pieces of {size}: {ended:?}");
            }
        }
        assert!(ask(&host, &message).await.is_allowed(), "the connection is as good as before");
    });
    assert!(authorizer.questions("oversize") >= 9.0);
    assert!(authorizer.questions("malformed") >= 30.0);
    let line = authorizer.wait_for("a denial", |line| line["result"] == "oversize");
    assert_eq!(line["asker"], format!("uid {}", own_uid()));
}

/// The user id of this process.
fn own_uid() -> String {
    let output = crate::support::system("id", &["-u"]);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_question_that_stays_incomplete_is_denied_in_time() {
    let authorizer = lenient().start();
    block_on(async {
        let mut host = connect(&authorizer.socket()).await;
        let mut request = post(CHECK);
        request.headers_mut().insert("grpc-timeout", "100m".parse().unwrap());
        let (response, mut stream) = host.send_request(request, false).unwrap();
        stream.send_data(Bytes::from_static(b"\0\0\0\0\x7f\x0a"), false).unwrap();
        assert!(ended(response).await.is_denied());
    });
}

#[test]
fn the_rest_of_an_oversized_question_is_discarded() {
    let authorizer = lenient().set("authorizers.limits.max_question_size", "8KiB").start();
    block_on(async {
        let host = connect(&authorizer.socket()).await;
        // More than is discarded, so that the last of it finds a stream that was reset.
        let large = prefixed(&about(&vec![b'a'; 16 << 20]));
        for _ in 0..4 {
            let mut host = host.clone().ready().await.unwrap();
            let (response, mut stream) = host.send_request(post(CHECK), false).unwrap();
            let _ = stream.send_data(Bytes::from(large.clone()), true);
            assert!(ended(response).await.is_denied());
        }
        assert!(ask(&host, &about(b"")).await.is_allowed());
    });
    assert!(authorizer.memory("VmHWM") < 200 << 10, "{} KiB", authorizer.memory("VmHWM"));
}

#[test]
fn a_thousand_incomplete_questions_hold_bounded_memory_and_stop_no_other() {
    let authorizer = lenient().start();
    authorizer.forget_peak();
    let before = authorizer.memory("VmHWM");
    block_on(async {
        let mut host = connect(&authorizer.socket()).await;
        let half = &prefixed(&about(&vec![b'a'; 60 << 10]))[..32 << 10];
        let mut open = Vec::new();
        for _ in 0..900 {
            host = host.ready().await.unwrap();
            let (response, mut stream) = host.send_request(post(CHECK), false).unwrap();
            stream.send_data(Bytes::copy_from_slice(half), false).unwrap();
            open.push((response, stream));
        }
        assert!(ask(&host, &about(b"")).await.is_allowed());
    });
    let grown = authorizer.memory("VmHWM") - before;
    // 900 halves of 32 KiB, in buffers of at most twice that.
    assert!(grown < 100 << 10, "{grown} KiB");
}

#[test]
fn a_thousand_connections_with_half_a_question_hold_bounded_memory_and_stop_no_other() {
    let authorizer = lenient()
        .set("authorizers.limits.max_connections", 3000)
        .set("authorizers.limits.idle_timeout", "1h")
        .start();
    authorizer.forget_peak();
    let before = authorizer.memory("VmHWM");
    let active = "keygate_askers_active{service=\"edge\"}";
    block_on(async {
        let half = &prefixed(&about(&vec![b'a'; 60 << 10]))[..32 << 10];
        let mut open = Vec::new();
        for _ in 0..1000 {
            let host = connect(&authorizer.socket()).await;
            let mut half_host = host.clone().ready().await.unwrap();
            let (response, mut stream) = half_host.send_request(post(CHECK), false).unwrap();
            stream.send_data(Bytes::copy_from_slice(half), false).unwrap();
            // An answer to a later question of the connection shows that the half has arrived.
            assert!(ask(&host, &about(b"")).await.is_allowed());
            open.push((host, response, stream));
        }
        let other = connect(&authorizer.socket()).await;
        assert!(ask(&other, &about(b"")).await.is_allowed());
        assert_eq!(authorizer.metric(active), 1001.0);
        assert!(ask(&open[0].0, &about(b"")).await.is_allowed());
    });
    let grown = authorizer.memory("VmHWM") - before;
    // 1,000 halves of 32 KiB, in buffers of at most twice that, and the state of HTTP/2.
    assert!(grown < 128 << 10, "{grown} KiB");
    authorizer.wait_for_metric(active, 0.0);
}

#[test]
fn a_thousand_parallel_and_cancelled_calls_share_one_connection() {
    let authorizer = Authorizer::of("envoy").set("authorizers.limits.max_streams", 100).start();
    let Some(mut host) = GrpcHost::connect(&authorizer.socket()) else { return };
    let (good, lost) = (question(&authorizer.good), question(&authorizer.lost));
    let questions: Vec<_> =
        (0..1000).map(|index| if index % 2 == 0 { good.clone() } else { lost.clone() }).collect();
    let answers = host.run(json!(["parallel", questions]));
    for (index, answer) in answers.as_array().unwrap().iter().enumerate() {
        let action = &answer["message"]["dynamic_metadata"]["action"];
        assert_eq!(action, if index % 2 == 0 { "admit" } else { "reject" }, "{answer}");
    }
    assert_eq!(host.run(json!(["cancelled", 1000, good]))["ended"], 1000);
    assert_eq!(host.run(json!(["check", good]))["code"], "OK");
    // A deadline that has long passed ends the call at the host, and no other.
    let late = host.run(json!(["deadline", 0.000_001, good]))["code"].clone();
    assert!(late == "DEADLINE_EXCEEDED" || late == "OK", "{late}");
    assert_eq!(host.run(json!(["check", good]))["code"], "OK");
}

/// A HEADERS frame of a call.
fn headers(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &head())
}

/// Guard: `max_pending_accept_reset_streams` in `src/ask/http2.rs`. With the default of
/// h2 clients that cancel 21 requests at once close the connection, and Envoy's questions about
/// other clients fail with it.
#[test]
fn clients_that_cancel_do_not_end_the_connection() {
    use std::io::Write;
    let authorizer = lenient().start();
    let mut tcp = BlockingStream::connect(authorizer.socket()).unwrap();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, b""));
    for stream in (1..4000).step_by(2) {
        bytes.extend(headers(stream));
        bytes.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    bytes.extend(headers(4001));
    bytes.extend(frame(DATA, END_STREAM, 4001, &prefixed(&about(b""))));
    tcp.write_all(&bytes).unwrap();
    loop {
        let (kind, _, stream, payload) = read_frame(&mut tcp).unwrap();
        assert_ne!(kind, GOAWAY, "{payload:?}");
        if (kind, stream) == (DATA, 4001) {
            assert!(payload[5..].starts_with(&field(1, &[])), "{payload:?}");
            return;
        }
    }
}

#[test]
fn any_authority_and_the_tracing_fields_of_a_client_are_accepted() {
    let authorizer = lenient().start();
    block_on(async {
        let host = connect(&authorizer.socket()).await;
        for authority in ["keygate", "keygate.internal:9191", "outbound_9191_._keygate", "[::1]:1"]
        {
            let mut request = Request::post(format!("http://{authority}{CHECK}"))
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            // More than Envoy accepts by default (60 KiB). `max_request_headers_kb` may be larger.
            let long = "a=1,".repeat(150 << 10);
            request.headers_mut().insert("tracestate", long.parse().unwrap());
            let ended = call(&host, request, &prefixed(&about(b"")), 1000).await;
            assert!(ended.is_allowed(), "{authority}: {ended:?}");
        }
    });
}

#[test]
fn health_fails_when_the_process_begins_to_drain_and_questions_are_still_answered() {
    let authorizer = Authorizer::of("envoy").set("shutdown.readiness_delay", "5m").start();
    let Some(mut host) = GrpcHost::connect(&authorizer.socket()) else { return };
    for service in ["", "envoy.service.auth.v3.Authorization"] {
        let health = host.run(json!(["serving", service]));
        assert_eq!(health["message"]["status"], "SERVING", "{service}: {health}");
    }
    authorizer.signal("TERM");
    wait_for("a failing health check", || {
        let health = host.run(json!(["serving", ""]));
        let is_failing = health["message"]["status"] == "NOT_SERVING";
        is_failing.then_some(()).ok_or_else(|| health.to_string())
    });
    let rejected = host.run(json!(["check", question(&authorizer.lost)]));
    assert_eq!(rejected["message"]["status"]["code"], 7, "{rejected}");
    let admitted = host.run(json!(["check", question(&authorizer.good)]));
    assert_eq!(admitted["message"]["status"], json!({}), "{admitted}");
}

#[test]
fn a_drain_ends_connections_with_goaway() {
    let mut authorizer = lenient().start();
    block_on(async {
        let stream = UnixStream::connect(authorizer.socket()).await.unwrap();
        let (host, connection) = h2::client::handshake::<_>(stream).await.unwrap();
        let mut connection = pin!(connection);
        let asking = async { assert!(ask(&host, &about(b"")).await.is_allowed()) };
        tokio::select! {
            () = asking => {}
            ended = &mut connection => panic!("{ended:?}"),
        }
        authorizer.signal("TERM");
        drop(host);
        assert_closed(connection.await);
    });
    assert!(authorizer.keygate.ended().success());
}

/// A connection whose peer has sent nothing has no timeout of an hour at a drain.
#[test]
fn a_silent_connection_does_not_hold_a_drain() {
    for host in ["envoy", "nginx", "haproxy"] {
        let mut authorizer = Authorizer::of(host)
            .set("authorizers.limits.idle_timeout", "1h")
            .set("shutdown.drain_timeout", "1h")
            .start();
        let _silent = BlockingStream::connect(authorizer.socket()).unwrap();
        authorizer.wait_for_metric("keygate_askers_active{service=\"edge\"}", 1.0);
        authorizer.signal("TERM");
        assert!(authorizer.keygate.ended().success(), "{host}");
    }
}

/// keygate may have closed before the host has written its own GOAWAY.
fn assert_closed(ended: Result<(), h2::Error>) {
    let Err(error) = ended else { return };
    let kind = error.get_io().map(std::io::Error::kind);
    assert_eq!(kind, Some(std::io::ErrorKind::BrokenPipe), "{error}");
}

#[test]
fn an_idle_connection_is_closed() {
    let authorizer = lenient().set("authorizers.limits.idle_timeout", "1s").start();
    block_on(async {
        let stream = UnixStream::connect(authorizer.socket()).await.unwrap();
        let (_host, connection) = h2::client::handshake::<UnixStream>(stream).await.unwrap();
        assert_closed(connection.await);
    });
}
