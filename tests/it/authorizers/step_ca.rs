//! The webhooks of step-ca (`src/ask/http/step_ca.rs`). Bodies are
//! written by the tags of `webhook/types.go` of smallstep/certificates.

use std::time::Duration;

use data_encoding::BASE64;
use keygate_core::spki::Fingerprint;
use serde_json::{Value, json};

use crate::support::asker::{AskedKeygate, Asker, TCP, UNIX};
use crate::support::client::config_of;
use crate::support::http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, WINDOW_UPDATE, frame, request,
};
use crate::support::pki::{Kind, Pki};
use crate::support::proof_source::fingerprint;
use crate::support::webhook::{
    ID, SECRET, is_issued, message, request_of, signature, signed, ssh_certificate, step_ca,
    step_ca_configuration, write_secret, x509_certificate, x509_request,
};
use crate::support::{system, write_revision};

const CHECKED: &str = "keygate_key_checks_total{service=\"edge\",stage=\"requested\"";

#[test]
fn a_key_is_judged_counted_and_logged_before_it_gets_a_certificate() {
    let scene = step_ca(UNIX);
    let mut ca = scene.connect();
    let clean = ca.ask_for_certificate(&x509_certificate(&scene.good.spki));
    assert_eq!((clean.status, clean.body.as_str()), (200, "{\"allow\":true}"));
    assert_eq!(clean.field("content-type"), Some("application/json"));
    let lost = ca.ask_for_certificate(&x509_certificate(&scene.lost.spki));
    assert_eq!(lost.status, 200, "step-ca reads the body");
    let body: Value = serde_json::from_str(&lost.body).unwrap();
    let expected = format!(
        "the key with the fingerprint {} is rejected: probable;filter=\"lost\";revision=1; make a new key",
        fingerprint(&scene.lost)
    );
    let expected = json!({ "allow": false, "error": { "code": "probable", "message": expected } });
    assert_eq!(body, expected);

    let line = scene.keygate.wait_for("the line", |line| line["message"] == "client key rejected");
    for (field, expected) in [
        ("service", "edge"),
        ("object", "applicant"),
        ("stage", "requested"),
        ("verdict", "probable"),
        ("action", "reject"),
        ("filter", "lost"),
        ("fingerprint", &fingerprint(&scene.lost)),
    ] {
        assert_eq!(line[field], expected, "{line}");
    }
    assert_eq!(line["proof"], Value::Null, "no host has verified a client: {line}");
    for verdict in ["clean", "probable"] {
        assert_eq!(scene.keygate.metric(&format!("{CHECKED},verdict=\"{verdict}\"}}")), 1.0);
    }
    assert_eq!((scene.questions("allowed"), scene.questions("denied")), (1.0, 1.0));
    let asked = "keygate_key_checks_total{service=\"edge\",stage=\"asked\",verdict=\"clean\"}";
    assert_eq!(scene.keygate.metrics().get(asked), None, "nothing asks about clients here");
    let report: Value = serde_json::from_str(&scene.keygate.admin("/report").1).unwrap();
    assert_eq!(report["clients"][0]["stage"], "requested", "{report}");
    // The evidence for a CA must have no certificate that nobody has issued.
    assert_eq!(report["clients"][0].get("chain"), None, "{report}");
    assert!(report["clients"][0]["spki"].is_string(), "{report}");
}

#[test]
fn every_kind_of_certificate_has_its_key_judged() {
    let scene = step_ca(UNIX);
    let mut ca = scene.connect();
    let ssh = |name: &str| {
        let path = scene.pki.path(name).display().to_string();
        system("ssh-keygen", &["-q", "-t", "ecdsa", "-N", "", "-C", "a b", "-f", &path]);
        std::fs::read_to_string(format!("{path}.pub")).unwrap()
    };
    let [good_ssh, lost_ssh] = ["good-ssh", "lost-ssh"].map(ssh);
    let found = keygate_core::spki::keys_in(lost_ssh.as_bytes());
    let lost_ssh_key = found[0].key.clone().unwrap();
    write_revision(&scene.pki.path("lost.pkbf"), &[&scene.lost.spki, &lost_ssh_key], 2);
    scene.keygate.wait_for_generation(2);
    let ssh_request = |key: &str| {
        let key = key.split_whitespace().nth(1).unwrap();
        json!({ "sshCertificateRequest": {
            "publicKey": key, "type": "user", "keyID": "applicant", "principals": ["applicant"],
        } })
    };
    let x5c = |party: &crate::support::pki::Party| {
        let mut body = x509_certificate(&scene.good.spki);
        body["x5cCertificate"] = json!({
            "raw": BASE64.encode(&party.der),
            "publicKey": BASE64.encode(&party.spki),
            "publicKeyAlgorithm": "ECDSA",
            "notBefore": "2026-11-29T01:01:03Z",
            "notAfter": "2026-11-30T01:02:03Z",
        });
        body
    };
    for (name, good, lost) in [
        ("x509Certificate", x509_certificate(&scene.good.spki), x509_certificate(&scene.lost.spki)),
        (
            "x509CertificateRequest",
            x509_request(&request_of(&scene.good), &scene.good.spki),
            x509_request(&request_of(&scene.lost), &scene.lost.spki),
        ),
        ("sshCertificate", ssh_certificate(&good_ssh), ssh_certificate(&lost_ssh)),
        ("sshCertificateRequest", ssh_request(&good_ssh), ssh_request(&lost_ssh)),
        ("x5cCertificate", x5c(&scene.good), x5c(&scene.lost)),
        // A member that names another key hides none.
        (
            "two keys",
            x509_request(&request_of(&scene.good), &scene.good.spki),
            x509_request(&request_of(&scene.good), &scene.lost.spki),
        ),
    ] {
        let (good, lost) = (ca.ask_for_certificate(&good), ca.ask_for_certificate(&lost));
        assert!(is_issued(&good), "{name}: {}", good.body);
        assert!(message(&lost.body).contains("is rejected: probable"), "{name}: {}", lost.body);
    }
}

/// Guards: the positions in `finding_of` of `src/ask/judging.rs`.
#[test]
fn the_message_names_the_right_one_of_several_keys() {
    let scene = step_ca(UNIX);
    let mut ca = scene.connect();
    for (key, cause) in [
        (scene.lost.spki.clone(), "probable;filter=\"lost\""),
        (ml_dsa_with_parameters(&scene.pki), "an ML-DSA key with parameters"),
    ] {
        let expected =
            format!("the key with the fingerprint {} is rejected: {cause}", Fingerprint::of(&key));
        for [first, second] in [[&key, &scene.good.spki], [&scene.good.spki, &key]] {
            let mut body = x509_certificate(first);
            body["x5cCertificate"] = json!({ "publicKey": BASE64.encode(second) });
            let reply = ca.ask_for_certificate(&body);
            assert!(message(&reply.body).starts_with(&expected), "{expected}: {}", reply.body);
        }
    }
}

/// The public key of a new key, with the parameters NULL in its algorithm.
fn ml_dsa_with_parameters(pki: &Pki) -> Vec<u8> {
    let spki = pki.client("ml-dsa", Kind::MlDsa44).spki;
    let (length, algorithm, rest) = (&spki[2..4], &spki[6..17], &spki[17..]);
    let length = u16::from_be_bytes(length.try_into().unwrap()) + 2;
    [&[0x30, 0x82], &length.to_be_bytes()[..], &[0x30, 13], algorithm, &[5, 0], rest].concat()
}

/// Guard: `record_admitted` is for clients only. An applicant that holds stolen keys could otherwise
/// hold the update of a list that has them.
#[test]
fn the_keys_of_applicants_hold_no_update() {
    let pki = Pki::new();
    write_secret(&pki.path("webhook.secret"), SECRET);
    let text = step_ca_configuration(UNIX)
        .replace("path = \"lost.pkbf\"", "path = \"lost.pkbf\", max_new_hits = 0");
    let scene = AskedKeygate::configured(pki, &text);
    let question = x509_certificate(&scene.good.spki);
    assert!(is_issued(&scene.connect().ask_for_certificate(&question)));
    write_revision(&scene.pki.path("lost.pkbf"), &[&scene.lost.spki, &scene.good.spki], 2);
    scene.keygate.wait_for_generation(2);
    assert!(!is_issued(&scene.connect().ask_for_certificate(&question)));
}

/// An applicant chooses the encoding of its key.
#[test]
fn a_related_encoding_of_a_compromised_key_gets_no_certificate() {
    let scene = step_ca(UNIX);
    let rsa = scene.pki.client("rsa", Kind::Rsa2048);
    let related = |spki: &[u8]| keygate_core::spki::related(spki).last().unwrap().1.clone();
    let keys = [related(&scene.good.spki), related(&rsa.spki)];
    assert!(keys[0] != scene.good.spki && keys[1] != rsa.spki);
    write_revision(&scene.pki.path("lost.pkbf"), &[&keys[0], &keys[1]], 2);
    scene.keygate.wait_for_generation(2);
    let mut ca = scene.connect();
    for party in [&scene.good, &rsa] {
        let body = x509_request(&request_of(party), &party.spki);
        assert!(!is_issued(&ca.ask_for_certificate(&body)), "{}", party.name);
    }
    assert!(is_issued(&ca.ask_for_certificate(&x509_certificate(&scene.lost.spki))));
}

#[test]
fn every_damaged_question_is_denied() {
    let scene = step_ca(UNIX);
    let whole = x509_request(&request_of(&scene.good), &scene.good.spki);
    let text = whole.to_string();
    let mut ca = scene.connect();
    let mut is_issued_for = |body: &str| is_issued(&ca.exchange(&signed(body)).unwrap());
    assert!(is_issued_for(&text));
    for end in (0..text.len()).step_by(7) {
        assert!(!is_issued_for(&text[..end]), "{end}");
    }
    const REQUEST: &str = "x509CertificateRequest";
    let with = |member: &str, value: Value| {
        let mut body = whole.clone();
        body[REQUEST][member] = value;
        body.to_string()
    };
    let mut foreign = request_of(&scene.good);
    *foreign.last_mut().unwrap() ^= 1;
    let ssh = |key: &[u8]| json!({ "sshCertificate": { "publicKey": BASE64.encode(key) } });
    let mut with_empty_certificate = whole.clone();
    with_empty_certificate["x509Certificate"] = json!({});
    let mut challenge = whole.clone();
    challenge["scepChallenge"] = "password".into();
    // An applicant may leave its password out, and step-ca then leaves the member out.
    let mut empty_challenge = whole.clone();
    empty_challenge["scepTransactionID"] = "7".into();
    for body in [
        "{}".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        "true".to_owned(),
        format!("{text}{text}"),
        format!("{text}}}"),
        text.replacen("\"raw\"", "\"raw\":\"\",\"raw\"", 1),
        json!({ "timestamp": "2026-11-29T01:02:03Z" }).to_string(),
        json!({ REQUEST: null }).to_string(),
        json!({ REQUEST: {} }).to_string(),
        json!({ REQUEST: [1] }).to_string(),
        json!({ "x509Certificate": { "publicKey": null, "raw": null } }).to_string(),
        with("raw", "no base64".into()),
        with("raw", BASE64.encode(b"no request").into()),
        with("raw", BASE64.encode(&foreign).into()),
        with("raw", BASE64.encode(&scene.good.der).into()),
        with("raw", 7.into()),
        with("publicKey", "====".into()),
        with("publicKey", BASE64.encode(b"no key").into()),
        with("publicKey", BASE64.encode(&scene.good.spki[..40]).into()),
        ssh(b"").to_string(),
        ssh(b"\0\0\0\x07ssh-dss").to_string(),
        ssh(&scene.good.spki).to_string(),
        with_empty_certificate.to_string(),
        challenge.to_string(),
        empty_challenge.to_string(),
        format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)),
    ] {
        assert!(!is_issued_for(&body), "{body:.200}");
    }
    assert_eq!(scene.questions("not_verified"), 1.0, "the request with a changed signature");
    assert!(is_issued_for(&text), "the connection is still good");
}

#[test]
fn a_body_above_the_limit_or_without_a_length_is_denied() {
    let scene = step_ca(&format!("{UNIX}limits = {{ max_question_size = \"8KiB\" }}\n"));
    let mut body = x509_certificate(&scene.good.spki);
    body["padding"] = "x".repeat(8192 - body.to_string().len() - r#","padding":"""#.len()).into();
    let fits = body.to_string();
    assert_eq!(fits.len(), 8192);
    assert!(is_issued(&scene.connect().exchange(&signed(&fits)).unwrap()));
    let larger = fits.replace("xxxx", "xxxxx");
    let reply = scene.connect().exchange(&signed(&larger)).unwrap();
    assert!(message(&reply.body).contains("max_question_size"), "{}", reply.body);
    assert_eq!(reply.field("connection"), Some("close"));
    // The head alone says enough.
    let huge = signed(&fits).replace("Content-Length: 8192", "Content-Length: 99999999999");
    let head = huge.split_once("\r\n\r\n").unwrap().0;
    let reply = scene.connect().exchange(&format!("{head}\r\n\r\n")).unwrap();
    assert!(message(&reply.body).contains("max_question_size"), "{}", reply.body);
    assert_eq!(scene.questions("oversize"), 2.0);
    for field in ["Transfer-Encoding: chunked", "Content-Length: 8192\r\nExpect: 100-continue"] {
        let open = signed(&fits).replace("Content-Length: 8192", field);
        let reply = scene.connect().exchange(&open).unwrap();
        assert!(message(&reply.body).contains("the body has no Content-Length"), "{}", reply.body);
    }
}

/// A body that is sent again is the same question. Nothing is allowed that is not allowed now.
#[test]
fn a_body_that_is_sent_again_gets_the_answer_of_that_moment() {
    let scene = step_ca(UNIX);
    let question = signed(&x509_certificate(&scene.good.spki).to_string());
    let mut ca = scene.connect();
    for _ in 0..3 {
        assert!(is_issued(&ca.exchange(&question).unwrap()));
    }
    write_revision(&scene.pki.path("lost.pkbf"), &[&scene.lost.spki, &scene.good.spki], 2);
    scene.keygate.wait_for_generation(2);
    assert!(!is_issued(&ca.exchange(&question).unwrap()));
    assert!(!is_issued(&scene.connect().exchange(&question).unwrap()));
}

#[test]
fn a_flagged_key_gets_its_certificate_and_is_logged() {
    let scene = step_ca(&format!("{UNIX}policy = {{ on_probable = \"flag\" }}\n"));
    let reply = scene.connect().ask_for_certificate(&x509_certificate(&scene.lost.spki));
    assert!(is_issued(&reply), "{}", reply.body);
    let line = scene.keygate.wait_for("the line", |line| line["message"] == "client key flagged");
    assert_eq!(line["stage"], "requested");
}

/// A body that arrives in pieces is one question, and questions that arrive together are several.
#[test]
fn pieces_and_bursts_are_answered_in_order() {
    let scene = step_ca(TCP);
    let [good, lost] =
        [&scene.good, &scene.lost].map(|party| signed(&x509_certificate(&party.spki).to_string()));
    let mut ca = Asker::tcp(scene.address());
    let burst = [&*good, &lost, &good, &lost].concat();
    let first = ca.exchange(&burst).unwrap();
    let more = (0..3).map(|_| ca.response().unwrap());
    let issued: Vec<_> = std::iter::once(first).chain(more).map(|it| is_issued(&it)).collect();
    assert_eq!(issued, [true, false, true, false]);

    let mut tcp = std::net::TcpStream::connect(scene.address()).unwrap();
    tcp.set_nodelay(true).unwrap();
    for piece in good.as_bytes().chunks(100) {
        std::io::Write::write_all(&mut tcp, piece).unwrap();
        std::thread::sleep(Duration::from_millis(1)); // so that the pieces are read one by one
    }
    let mut answer = [0; 4096];
    let length = std::io::Read::read(&mut tcp, &mut answer).unwrap();
    let answer = std::str::from_utf8(&answer[..length]).unwrap();
    assert!(answer.ends_with("{\"allow\":true}"), "{answer}");
}

/// step-ca presents a certificate of its own. Go asks over HTTP/2 if the server offers it.
#[test]
fn step_ca_asks_over_tls_with_http_1_and_http_2() {
    let tls = "tls = { certificate = \"server.pem\", private_key = \"server.key\", client_ca = \"ca.pem\" }\n";
    let scene = step_ca(&format!("{TCP}{tls}"));
    let (pki, ca) = (&scene.pki, scene.pki.client("step-ca", Kind::P256));
    let versions = [&rustls::version::TLS12, &rustls::version::TLS13];
    let mut http1 = Asker::tls(config_of(pki, &versions, Some(&ca)), scene.address());
    let (good, lost) = (x509_certificate(&scene.good.spki), x509_certificate(&scene.lost.spki));
    assert!(is_issued(&http1.ask_for_certificate(&good)));
    assert!(!is_issued(&http1.ask_for_certificate(&lost)));

    let mut http2 = crate::support::http2::Http2::connect(pki, scene.address(), &ca);
    for (stream, body, allow) in [(1, &good, true), (3, &lost, false), (5, &good, true)] {
        let body = body.to_string();
        let signature = signature(SECRET, &body);
        let fields = [("x-smallstep-signature", &*signature), ("x-smallstep-webhook-id", ID)];
        http2.send(&frame(HEADERS, END_HEADERS, stream, &request("POST", &fields)));
        let (first, second) = body.as_bytes().split_at(100);
        http2.send(&frame(DATA, 0, stream, first));
        http2.send(&frame(DATA, END_STREAM, stream, second));
        let answer = answer_on(&mut http2, stream);
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["allow"], allow, "{answer}");
    }
    // A body above the limit, and one of a question that is cancelled.
    http2.send(&frame(HEADERS, END_HEADERS, 7, &request("POST", &[])));
    for _ in 0..4 {
        http2.send(&frame(DATA, 0, 7, &[b' '; 16_000]));
    }
    // The window of the stream has the size of the limit.
    while !matches!(http2.frame().unwrap(), (WINDOW_UPDATE, _, 7, _)) {}
    http2.send(&frame(DATA, 0, 7, &[b' '; 16_000]));
    let answer = String::from_utf8(answer_on(&mut http2, 7)).unwrap();
    assert!(message(&answer).contains("max_question_size"), "{answer}");
    http2.send(&frame(HEADERS, END_HEADERS, 9, &request("POST", &[])));
    http2.send(&frame(crate::support::http2::RST_STREAM, 0, 9, &8_u32.to_be_bytes()));
    http2.send(&frame(HEADERS, END_HEADERS | END_STREAM, 11, &request("POST", &[])));
    let answer = String::from_utf8(answer_on(&mut http2, 11)).unwrap();
    assert!(message(&answer).starts_with("no configured webhook"), "{answer}");
    assert_eq!(scene.questions("oversize"), 1.0);

    let stranger = Pki::named("Stranger").client("stranger", Kind::P256);
    let mut stranger = Asker::tls(config_of(pki, &versions, Some(&stranger)), scene.address());
    assert!(stranger.exchange(&signed(&good.to_string())).is_none());
}

/// The data of the response on `stream`.
fn answer_on(http2: &mut crate::support::http2::Http2, stream: u32) -> Vec<u8> {
    loop {
        match http2.frame().expect("an answer") {
            (DATA, _, on, payload) if on == stream && !payload.is_empty() => return payload,
            (crate::support::http2::RST_STREAM, _, on, code) if on == stream => {
                panic!("stream {stream} was reset: {code:?}")
            }
            _ => {}
        }
    }
}
