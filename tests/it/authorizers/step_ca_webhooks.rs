//! Webhooks of step-ca: their signatures, their secrets, and the end of their connections
//! (`src/ask/http/step_ca.rs`, `src/sources/webhook_keys.rs`).

use data_encoding::{BASE64, HEXLOWER};

use crate::support::asker::{AskedKeygate, Asker, TCP, UNIX};
use crate::support::keygate::Keygate;
use crate::support::pki::{Party, Pki};
use crate::support::webhook::{
    ID, SECRET, admission, is_issued, message, pem, post, request_of, signature, signed, step_ca,
    step_ca_configuration, with_protocol, write_secret, x509_certificate,
};
use crate::support::{blocks, output_text, shell, skip, wait_for, wait_until, write_filter};

/// RFC 4231, section 4: key, data, HMAC-SHA256. Cases 2 and 5 have a key that is too short, and a
/// shorter output.
#[test]
fn signatures_are_the_hmac_of_rfc_4231() {
    let long = [0xaa; 131];
    let counting: Vec<u8> = (1..=25).collect();
    let cases: [(&[u8], &[u8], &str); 5] = [
        (
            &[0x0b; 20],
            b"Hi There",
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
        ),
        (
            &[0xaa; 20],
            &[0xdd; 50],
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
        ),
        (
            &counting,
            &[0xcd; 50],
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b",
        ),
        (
            &long,
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        ),
        (
            &long,
            b"This is a test using a larger than block-size key and a larger than block-size data. The key needs to be hashed before being used by the HMAC algorithm.",
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
        ),
    ];
    let pki = Pki::new();
    let webhooks = cases.iter().enumerate().map(|(number, (key, ..))| {
        let name = format!("secret-{number}");
        write_secret(&pki.path(&name), key);
        format!("{{ id = \"{number}\", secret = {name:?} }}")
    });
    let webhooks = webhooks.collect::<Vec<_>>().join(", ");
    let text = with_protocol("step-ca", &format!("webhooks = [{webhooks}]\n{TCP}"));
    let scene = AskedKeygate::configured(pki, &text);
    let reason = |id: &str, data: &[u8], mac: &str| {
        let mut tcp = std::net::TcpStream::connect(scene.address()).unwrap();
        let head = post(&[("X-Smallstep-Signature", mac), ("X-Smallstep-Webhook-ID", id)], "");
        let head = head.replace("Content-Length: 0", &format!("Content-Length: {}", data.len()));
        let head = head.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let mut response = String::new();
        std::io::Write::write_all(&mut tcp, &[head.as_bytes(), data].concat()).unwrap();
        std::io::Read::read_to_string(&mut tcp, &mut response).unwrap();
        message(response.split_once("\r\n\r\n").unwrap().1)
    };
    for (number, (_, data, mac)) in cases.iter().enumerate() {
        let id = number.to_string();
        // The data is no question. Only a verified body is read.
        assert_eq!(reason(&id, data, mac), "the body is not a question of step-ca", "{number}");
        let mut wrong = HEXLOWER.decode(mac.as_bytes()).unwrap();
        wrong[31] ^= 1;
        for wrong in [&HEXLOWER.encode(&wrong), &mac[..62], &mac[..32], "", "zz"] {
            let reason = reason(&id, data, wrong);
            assert!(reason.starts_with("no configured webhook has signed"), "{number}: {reason}");
        }
    }
}

/// Guards: `signed_body` and `RequestFields::only`.
#[test]
fn a_question_that_no_configured_webhook_has_signed_is_denied() {
    let pki = Pki::new();
    let other = [b'x'; 64];
    write_secret(&pki.path("webhook.secret"), SECRET);
    write_secret(&pki.path("other.secret"), &other);
    let text = step_ca_configuration(UNIX)
        .replace("webhooks = [", "webhooks = [{ id = \"other\", secret = \"other.secret\" }, ");
    let scene = AskedKeygate::configured(pki, &text);
    let body = x509_certificate(&scene.good.spki).to_string();
    let right = signature(SECRET, &body);
    let of_other = signature(&other, &body);
    const SIGNATURE: &str = "X-Smallstep-Signature";
    const WEBHOOK: &str = "X-Smallstep-Webhook-ID";
    let mut ca = scene.connect();
    let mut ask = |fields: &[(&str, &str)], body: &str| {
        let reply = ca.exchange(&post(fields, body)).unwrap();
        (is_issued(&reply), reply.body)
    };
    assert!(ask(&[(SIGNATURE, &right), (WEBHOOK, ID)], &body).0);
    assert!(ask(&[(SIGNATURE, &right.to_uppercase()), (WEBHOOK, ID)], &body).0);
    assert!(ask(&[(SIGNATURE, &of_other), (WEBHOOK, "other")], &body).0);
    let longer = format!("{right}00");
    let changed = body.replace("applicant", "Applicant");
    for (fields, body) in [
        (vec![], &body),
        (vec![(SIGNATURE, &*right)], &body),
        (vec![(WEBHOOK, ID)], &body),
        (vec![(SIGNATURE, &right), (WEBHOOK, "other")], &body),
        (vec![(SIGNATURE, &of_other), (WEBHOOK, ID)], &body),
        (vec![(SIGNATURE, &right), (WEBHOOK, "unknown")], &body),
        (vec![(SIGNATURE, &right), (WEBHOOK, "")], &body),
        (vec![(SIGNATURE, ""), (WEBHOOK, ID)], &body),
        (vec![(SIGNATURE, &longer), (WEBHOOK, ID)], &body),
        (vec![(SIGNATURE, &right[..62]), (WEBHOOK, ID)], &body),
        (vec![(SIGNATURE, &right), (WEBHOOK, ID)], &changed),
        (vec![(SIGNATURE, &right), (WEBHOOK, ID)], &format!("{body} ")),
        (vec![(SIGNATURE, &right), (SIGNATURE, &right), (WEBHOOK, ID)], &body),
        (vec![(SIGNATURE, &right), ("X_Smallstep_Signature", "00"), (WEBHOOK, ID)], &body),
        (vec![(SIGNATURE, &right), (WEBHOOK, ID), (WEBHOOK, "other")], &body),
    ] {
        let (issued, answer) = ask(&fields, body);
        assert!(!issued && message(&answer).starts_with("no configured webhook"), "{fields:?}");
    }
    assert_eq!(scene.questions("not_verified"), 15.0);
    let line = scene.keygate.wait_for("the line", |line| line["result"] == "not_verified");
    assert!(!line.to_string().contains(&right), "{line}");
}

/// The commands of the page, with curl and openssl in the place of step-ca and of an API server.
#[test]
fn the_questions_of_the_page_are_answered() {
    if skip::without("openssl") || skip::without("curl") {
        return;
    }
    let page = include_str!("../../../docs/authorizers.md");
    for (heading, scene, denial) in [
        ("### step-ca\n", step_ca(TCP), "\"allow\":false"),
        ("### Kubernetes\n", admission(TCP), "\"allowed\":false"),
    ] {
        let section = page.split_once(heading).unwrap().1.split_once("\n## ").unwrap().0;
        let commands = blocks(section, "sh").remove(0);
        let url = format!("http://{}/", scene.address());
        let asked = |party: &Party| {
            let request = pem("CERTIFICATE REQUEST", &request_of(party));
            std::fs::write(scene.pki.path("client.csr"), request).unwrap();
            let commands = format!("ID={ID}\nURL={url}\n{commands}");
            output_text(&shell(scene.pki.directory(), &commands))
        };
        assert!(!asked(&scene.good).contains(denial));
        let denied = asked(&scene.lost);
        assert!(denied.contains(denial) && denied.contains("is rejected: probable"), "{denied}");
    }
}

#[test]
fn a_secret_is_read_again_and_a_broken_one_never_replaces_it() {
    let scene = step_ca(UNIX);
    let path = scene.pki.path("webhook.secret");
    let body = x509_certificate(&scene.good.spki).to_string();
    let issued_with = |secret: &[u8]| {
        let signature = signature(secret, &body);
        let fields = [("X-Smallstep-Signature", &*signature), ("X-Smallstep-Webhook-ID", ID)];
        is_issued(&scene.connect().exchange(&post(&fields, &body)).unwrap())
    };
    let next = [b'n'; 64];
    assert!(issued_with(SECRET) && !issued_with(&next));
    write_secret(&path, &next);
    scene.keygate.wait_for_generation(2);
    assert!(!issued_with(SECRET) && issued_with(&next));
    for broken in ["", "c2hvcnQ=", "no base64!", &BASE64.encode(&[b'x'; 5000])] {
        std::fs::write(&path, broken).unwrap();
        scene.keygate.wait_for("the rejection", |line| {
            line["files"] == "webhooks"
                && line["error"].as_str().is_some_and(|error| error.contains("webhook.secret"))
        });
        assert!(issued_with(&next), "{broken}");
        write_secret(&path, &next);
        wait_until("the good file", || {
            scene.keygate.metric(
                "keygate_credential_last_reload_successful{files=\"webhooks\",service=\"edge\"}",
            ) > 0.0
        });
    }
    assert!(!scene.keygate.lines("certificate update rejected, keeping those in use").is_empty());
}

#[test]
fn a_new_webhook_is_known_after_a_reload_and_a_removed_one_is_not() {
    let scene = step_ca(UNIX);
    let body = x509_certificate(&scene.good.spki).to_string();
    let mut open = scene.connect();
    assert!(is_issued(&open.exchange(&signed(&body)).unwrap()));
    let text = step_ca_configuration(UNIX).replace(ID, "another");
    std::fs::write(scene.pki.path("keygate.toml"), text).unwrap();
    scene.keygate.wait_for_generation(2);
    assert!(!is_issued(&open.exchange(&signed(&body)).unwrap()));
    let renamed = signed(&body).replace(ID, "another");
    wait_for("the new id", || {
        let reply = open.exchange(&renamed).ok_or("closed")?;
        if is_issued(&reply) { Ok(()) } else { Err(reply.body) }
    });
}

#[test]
fn an_open_connection_is_answered_until_the_drain_closes_it() {
    let mut scene = step_ca(UNIX);
    let body = x509_certificate(&scene.good.spki);
    let mut ca = scene.connect();
    assert!(is_issued(&ca.ask_for_certificate(&body)));
    scene.keygate.signal("TERM");
    scene.keygate.wait_for("the drain", |line| line["message"] == "draining");
    if let Some(reply) = ca.exchange(&signed(&body.to_string())) {
        assert!(is_issued(&reply), "{}", reply.body);
        assert_eq!(reply.field("connection"), Some("close"));
    }
    assert!(scene.keygate.ended().success());
}

/// step-ca asks once more after an error of the connection (`retries` in `DoWithContext`).
#[test]
fn no_question_fails_while_one_of_two_instances_is_drained() {
    let mut first = step_ca(UNIX);
    let second = {
        let pki = Pki::new();
        write_secret(&pki.path("webhook.secret"), SECRET);
        write_filter(&pki.path("lost.pkbf"), &[&first.lost.spki]);
        let keygate = Keygate::configured(&pki, &step_ca_configuration(UNIX));
        (pki, keygate)
    };
    let [good, lost] =
        [&first.good, &first.lost].map(|party| signed(&x509_certificate(&party.spki).to_string()));
    let sockets = [first.pki.path("ask.sock"), second.0.path("ask.sock")];
    let mut open: [Option<Asker>; 2] = [None, None];
    // As a balancer in front of both: in turn, with one more attempt at the other instance.
    let mut ask = |number: usize, question: &str| {
        for attempt in 0..2 {
            let to = (number + attempt) % 2;
            let mut asker = match open[to].take() {
                Some(asker) => asker,
                None => match std::os::unix::net::UnixStream::connect(&sockets[to]) {
                    Ok(_) => Asker::unix(&sockets[to]),
                    Err(_) => continue,
                },
            };
            if let Some(reply) = asker.exchange(question) {
                if reply.field("connection").is_none() {
                    open[to] = Some(asker);
                }
                return is_issued(&reply);
            }
        }
        panic!("no instance answers")
    };
    for number in 0..2000 {
        if number == 500 {
            first.keygate.signal("TERM");
        }
        assert!(ask(number, &good), "{number}");
        assert!(!ask(number + 1, &lost), "{number}");
    }
    assert!(first.keygate.ended().success());
}
