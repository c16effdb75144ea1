//! The admission webhooks of Kubernetes (`src/ask/http/admission.rs`). Reviews are written by the
//! tags of `admission/v1/types.go`.

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::support::asker::{AskedKeygate, HttpReply, TCP, UNIX};
use crate::support::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, Http2, frame, request};
use crate::support::pki::Kind;
use crate::support::proof_source::fingerprint;
use crate::support::webhook::{
    CERTIFICATE_REQUEST, CSR, SECRET_RESOURCE, UID, admission, denial, files, is_stored, pem, post,
    request_of, review, tls_secret, with_request,
};
use crate::support::{system, write_revision};

fn review_of(scene: &AskedKeygate, review: &Value) -> HttpReply {
    scene.connect().review(review)
}

#[test]
fn a_request_is_judged_and_the_review_is_answered() {
    let scene = admission(UNIX);
    for resource in [CSR, CERTIFICATE_REQUEST] {
        let [good, lost] = [&scene.good, &scene.lost]
            .map(|party| review(resource, "CREATE", with_request(&request_of(party))));
        let allowed = review_of(&scene, &good);
        let expected = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": { "uid": UID, "allowed": true },
        });
        assert_eq!(serde_json::from_str::<Value>(&allowed.body).unwrap(), expected);
        assert_eq!(allowed.field("content-type"), Some("application/json"));
        let denied = review_of(&scene, &lost);
        let message = format!(
            "keygate: the key with the fingerprint {} is rejected: probable;filter=\"lost\";revision=1; make a new key",
            fingerprint(&scene.lost)
        );
        let status = json!({ "code": 403, "reason": "Forbidden", "message": message });
        let expected = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": { "uid": UID, "allowed": false, "status": status },
        });
        assert_eq!(serde_json::from_str::<Value>(&denied.body).unwrap(), expected);
    }
    let line = scene.keygate.wait_for("the line", |line| line["message"] == "client key rejected");
    for (field, expected) in [
        ("object", "certificatesigningrequests shop/web by alice"),
        ("stage", "requested"),
        ("subject", "CN=applicant"),
        ("dns_names", "a.example"),
        ("verdict", "probable"),
    ] {
        assert_eq!(line[field], expected, "{line}");
    }
    let series =
        "keygate_key_checks_total{service=\"edge\",stage=\"requested\",verdict=\"probable\"}";
    assert_eq!(scene.keygate.metric(series), 2.0);
}

#[test]
fn the_message_names_list_and_finding() {
    let scene = admission(UNIX);
    let list = format!("{}\n", fingerprint(&scene.good));
    std::fs::write(scene.pki.path("deny.txt"), list).unwrap();
    let path = scene.pki.path("keygate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let lists = "lists = [{ name = \"incident\", path = \"deny.txt\" }]\n[[authorizers]]";
    std::fs::write(&path, text.replace("[[authorizers]]", lists)).unwrap();
    scene.keygate.wait_for_generation(2);
    let denied = review_of(&scene, &review(CSR, "CREATE", with_request(&request_of(&scene.good))));
    let message = denial(&denied);
    assert!(message.contains("is rejected: listed;list=\"incident\""), "{message}");
    assert!(message.contains(&fingerprint(&scene.good)), "{message}");
}

/// Kubernetes cuts warnings above 256 characters.
#[test]
fn a_flagged_key_is_stored_with_a_warning() {
    let scene = admission(&format!("{UNIX}policy = {{ on_probable = \"flag\" }}\n"));
    let [certificate, key] = files(&scene.lost);
    for flagged in [
        review(CSR, "CREATE", with_request(&request_of(&scene.lost))),
        review(SECRET_RESOURCE, "CREATE", tls_secret(&certificate, &key)),
    ] {
        let reply = review_of(&scene, &flagged);
        assert!(is_stored(&reply, UID), "{}", reply.body);
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        let warnings = body["response"]["warnings"].as_array().unwrap();
        let warning = warnings[0].as_str().unwrap();
        let expected = format!(
            "keygate: the key with the fingerprint {} is flagged: probable;filter=\"lost\";revision=1",
            fingerprint(&scene.lost)
        );
        assert_eq!((warnings.len(), warning), (1, &*expected));
        assert!(warning.len() <= 256 && body["response"].get("status").is_none());
    }
    let clean = review_of(&scene, &review(CSR, "CREATE", with_request(&request_of(&scene.good))));
    assert!(!clean.body.contains("warnings"), "{}", clean.body);
}

/// Guard: `Signed::verify` in `requested_certificate`.
#[test]
fn a_request_that_its_key_has_not_signed_is_denied() {
    let scene = admission(UNIX);
    let whole = request_of(&scene.good);
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    let other = scene.pki.client("other", Kind::P256);
    let at = whole.windows(scene.good.spki.len()).position(|it| it == scene.good.spki).unwrap();
    let mut stolen = whole.clone();
    stolen[at..at + other.spki.len()].copy_from_slice(&other.spki);
    for wrong in [changed, stolen] {
        let denied = review_of(&scene, &review(CSR, "CREATE", with_request(&wrong)));
        let message = denial(&denied);
        assert!(message.contains("is not signed with its own key"), "{message}");
    }
    assert_eq!(scene.questions("not_verified"), 2.0);
    // MD5 and SHA-1 are broken, and an algorithm that is not known is not verified.
    let path = scene.pki.path("sha1.csr").display().to_string();
    let key = scene.pki.client("rsa", Kind::Rsa2048).private_key.display().to_string();
    let made =
        ["req", "-new", "-sha1", "-subj", "/CN=a", "-outform", "DER", "-key", &key, "-out", &path];
    system("openssl", &made);
    let sha1 = review(CSR, "CREATE", with_request(&std::fs::read(&path).unwrap()));
    let message = denial(&review_of(&scene, &sha1));
    assert!(message.contains("an algorithm that is not accepted"), "{message}");
}

#[test]
fn a_request_in_another_encoding_of_its_key_is_judged_as_the_same_key() {
    let scene = admission(UNIX);
    let keys = [Kind::P256, Kind::P384, Kind::Rsa2048, Kind::Ed25519]
        .map(|kind| scene.pki.client(&format!("{kind:?}"), kind));
    for (revision, party) in (2..).zip(&keys) {
        let related = keygate_core::spki::related(&party.spki).pop().unwrap().1;
        write_revision(&scene.pki.path("lost.pkbf"), &[&related], revision);
        scene.keygate.wait_for_generation(revision.into());
        let denied = review_of(&scene, &review(CSR, "CREATE", with_request(&request_of(party))));
        assert!(denial(&denied).contains("is rejected: probable"), "{}", party.name);
    }
}

/// Another program could read another one of two sections.
#[test]
fn a_request_must_be_one_section() {
    let scene = admission(UNIX);
    let [good, lost] =
        [&scene.good, &scene.lost].map(|it| pem("CERTIFICATE REQUEST", &request_of(it)));
    let of = |text: &str| json!({ "spec": { "request": BASE64.encode(text.as_bytes()) } });
    assert!(is_stored(&review_of(&scene, &review(CSR, "CREATE", of(&good))), UID));
    let described = format!("Certificate Request:\n    Data:\n{good}\n");
    assert!(is_stored(&review_of(&scene, &review(CSR, "CREATE", of(&described))), UID));
    let label = |text: &str, label: &str| text.replace("CERTIFICATE REQUEST", label);
    let inner = good.replace(
        "-----BEGIN CERTIFICATE REQUEST-----\n",
        "-----BEGIN CERTIFICATE REQUEST-----\nA: b\n\n",
    );
    for text in [
        String::new(),
        "no PEM".to_owned(),
        format!("{good}{lost}"),
        format!("{lost}{good}"),
        format!("{}{good}", label(&lost, "NEW CERTIFICATE REQUEST")),
        format!("{good}{}", label(&lost, "X")),
        label(&good, "NEW CERTIFICATE REQUEST"),
        label(&good, "CERTIFICATE"),
        good.replace("-----END CERTIFICATE REQUEST-----\n", ""),
        good.replace("-----END", "----END"),
        inner,
        pem("CERTIFICATE REQUEST", b"no request"),
        pem("CERTIFICATE REQUEST", &scene.good.der),
        BASE64.encode(&request_of(&scene.good)),
    ] {
        let reply = review_of(&scene, &review(CSR, "CREATE", of(&text)));
        assert!(!is_stored(&reply, UID), "{text}");
        assert!(!denial(&reply).is_empty());
    }
}

#[test]
fn operations_and_resources_that_hide_a_key_are_never_allowed() {
    let scene = admission(UNIX);
    let [certificate, key] = files(&scene.lost);
    let (lost, good) =
        (with_request(&request_of(&scene.lost)), with_request(&request_of(&scene.good)));
    let secret = tls_secret(&certificate, &key);
    let update = |resource, old: &Value, new: &Value| {
        let mut review = review(resource, "UPDATE", new.clone());
        review["request"]["oldObject"] = old.clone();
        review
    };
    let labelled = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["labels"] = json!({ "a": "b" });
        object["status"] = json!({ "conditions": [] });
        object
    };
    let mut dry_run = review(CSR, "CREATE", lost.clone());
    dry_run["request"]["dryRun"] = true.into();
    let mut approval = update(CSR, &lost, &labelled(&lost));
    approval["request"]["subResource"] = "approval".into();
    let other = |resource| review(resource, "CREATE", secret.clone());
    for (name, review, stored) in [
        ("DELETE", review(CSR, "DELETE", Value::Null), true),
        ("DELETE of another resource", review(("", "pods"), "DELETE", Value::Null), true),
        ("CONNECT", review(CSR, "CONNECT", Value::Null), false),
        ("an unknown operation", review(CSR, "PATCH", good.clone()), false),
        ("CREATE without an object", review(CSR, "CREATE", Value::Null), false),
        ("CREATE of an empty object", review(CSR, "CREATE", json!({})), false),
        ("CREATE without a request", review(CSR, "CREATE", json!({ "spec": {} })), false),
        ("a dry run", dry_run, false),
        ("an update to a lost key", update(CSR, &good, &lost), false),
        ("an update of a Secret", update(SECRET_RESOURCE, &tls_secret(b"", b""), &secret), false),
        ("an update without an old object", update(CSR, &Value::Null, &lost), false),
        ("an update of labels", update(CSR, &lost, &labelled(&lost)), true),
        (
            "an update of labels of a Secret",
            update(SECRET_RESOURCE, &secret, &labelled(&secret)),
            true,
        ),
        ("an approval", approval, true),
        ("pods", other(("", "pods")), false),
        ("config maps", other(("", "configmaps")), false),
        ("secrets of another group", other(("example.org", "secrets")), false),
        ("a request of another group", other(("", "certificatesigningrequests")), false),
    ] {
        let reply = review_of(&scene, &review);
        assert_eq!(is_stored(&reply, UID), stored, "{name}: {}", reply.body);
    }
}

#[test]
fn every_damaged_review_is_denied() {
    let scene = admission(UNIX);
    let whole = review(CSR, "CREATE", with_request(&request_of(&scene.good)));
    let text = whole.to_string();
    let mut server = scene.connect();
    let mut reply_to = |body: &str| server.exchange(&post(&[], body)).unwrap();
    assert!(is_stored(&reply_to(&text), UID));
    for end in (0..text.len()).step_by(7) {
        let reply = reply_to(&text[..end]);
        assert_eq!(reply.status, 403, "{end}: {}", reply.body);
        assert!(!reply.body.contains("allowed\":true"));
    }
    let with = |pointer: &str, value: Value| {
        let mut body = whole.clone();
        *body.pointer_mut(pointer).unwrap() = value;
        body.to_string()
    };
    for body in [
        "{}".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        format!("{text}{text}"),
        text.replacen("\"uid\"", "\"uid\":\"x\",\"uid\"", 1),
        text.replacen("\"request\":{", "\"request\":{\"object\":{},", 1),
        with("/apiVersion", "admission.k8s.io/v1beta1".into()),
        with("/kind", "Review".into()),
        with("/request", Value::Null),
        with("/request/uid", "".into()),
        with("/request/uid", "x".repeat(129).into()),
        with("/request/uid", 7.into()),
        with("/request/resource", Value::Null),
        with("/request/operation", Value::Null),
        with("/request/object", "text".into()),
        with("/request/object/spec", "text".into()),
        format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)),
    ] {
        let reply = reply_to(&body);
        assert!(!is_stored(&reply, UID) && reply.status == 403, "{body:.200}: {}", reply.body);
    }
    let object = with("/request/object/spec/request", "no base64".into());
    assert!(denial(&reply_to(&object)).contains("not base64"));
    assert!(is_stored(&reply_to(&text), UID), "the connection is still good");
}

/// The API server asks over TLS, and over HTTP/2 if the server offers it.
#[test]
fn the_api_server_asks_over_tls_with_http_2() {
    let tls = "tls = { certificate = \"server.pem\", private_key = \"server.key\" }\n";
    let scene = admission(&format!("{TCP}{tls}"));
    let mut http2 = Http2::connect(&scene.pki, scene.address(), &scene.good);
    for (stream, party, stored) in [(1, &scene.good, true), (3, &scene.lost, false)] {
        let body = review(CSR, "CREATE", with_request(&request_of(party))).to_string();
        http2.send(&frame(HEADERS, END_HEADERS, stream, &request("POST", &[])));
        http2.send(&frame(DATA, END_STREAM, stream, body.as_bytes()));
        let answer = loop {
            match http2.frame().expect("an answer") {
                (DATA, _, on, payload) if on == stream && !payload.is_empty() => break payload,
                _ => {}
            }
        };
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["response"]["allowed"], stored, "{answer}");
    }
}
