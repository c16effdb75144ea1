//! The checks before a file is replaced: the checks of a reload, the checksum, odd responses.
//!
//! Guards: `check_filter_candidate` in `src/sources/candidate.rs`, `check_head` in
//! `src/fetch/client.rs`, `companions` in `src/fetch/companion.rs`.

use std::fs::{read, remove_file, write};
use std::io::Write;
use std::os::unix::fs::{chown, symlink};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;

use super::scene::{Scene, names, rejected, succeeded, write_large};
use crate::support::minisign::{Minisign, beside};
use crate::support::mirror::Fetch;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::server::{Server, read_until};
use crate::support::{output_text, skip};

fn sum(content: &[u8]) -> String {
    format!("{}  lost.pkbf\n", HEXLOWER.encode(digest(&SHA256, content).as_ref()))
}

#[test]
fn a_filter_that_a_reload_would_reject_is_not_installed() {
    let Some(mut scene) = Scene::new("") else { return };
    write_large(&scene.mirror.path("lost.pkbf"), 100, 7);
    scene.fetched();
    let name = scene.mirror.url("lost.pkbf");
    let rejected = |text: &str| format!("filter \"lost\": {name}: rejected: {text}");

    write(scene.mirror.path("lost.pkbf"), b"<html>404</html>").unwrap();
    scene.fails(&rejected("")); // the marker
    let large = read(scene.target()).unwrap();
    write(scene.mirror.path("lost.pkbf"), &large[..large.len() - 1]).unwrap();
    scene.fails(&rejected(""));
    let mut implausible = large.clone();
    implausible[24..].fill(0xff);
    implausible[17] += 1; // the date, in seconds
    write(scene.mirror.path("lost.pkbf"), implausible).unwrap();
    scene.fails("implausible: ");
    write_large(&scene.mirror.path("lost.pkbf"), 100, 6);
    scene.fails(&rejected("rollback: revision 6 of "));
    write_large(&scene.mirror.path("lost.pkbf"), 50, 8);
    scene.fails(&rejected("the number of entries falls from 100 to 50"));
    scene.fails("; keygate fetch --allow-shrunk lets the proxy hold it for that\n");

    // After an error, the version in use is still known.
    write_large(&scene.mirror.path("lost.pkbf"), 100, 7);
    let row = scene.fetched();
    assert_eq!((row["result"].as_str(), row["bytes"].as_u64()), (Some("unchanged"), Some(0)));

    write_large(&scene.mirror.path("lost.pkbf"), 101, 8);
    let canary = scene.pki.client("canary", Kind::P256);
    let plain = scene.configuration.clone();
    scene.configuration = plain.clone().filter("canaries = [\"canary.pem\"]");
    scene.configure();
    scene.fails("canary.pem is not in the filter");
    drop(canary);
    scene.configuration = plain.clone().filter("max_size = \"200KiB\"");
    scene.configure();
    scene.fails("larger than 200 KiB, the maximum; correct the URL, or raise max_size");
    scene.configuration = plain;
    scene.configure();
    assert_eq!(scene.fetched()["entries"], 101);
    assert_eq!(names(&scene.pki.path(".lost.pkbf.fetch")), ["lock", "state.json"]);

    write_large(&scene.mirror.path("lost.pkbf"), 50, 9);
    let row = succeeded(&scene.run(&["--json", "--allow-shrunk"]));
    assert_eq!((row["result"].as_str(), row["entries"].as_u64()), (Some("installed"), Some(50)));
}

#[test]
fn a_list_of_fingerprints_that_shrank_is_not_installed() {
    let Some(mut scene) = Scene::new("") else { return };
    let list = |count: u8| (0..count).map(|it| format!("{it:064x}\n")).collect::<String>();
    let url = scene.mirror.url("deny.txt");
    let table = format!(
        "[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\n\
         source = {{ url = {url:?}, trust_anchors = \"ca.pem\" }}"
    );
    scene.configuration = scene.configuration.global(&table).unset("filters");
    scene.configure();
    write(scene.mirror.path("deny.txt"), list(10)).unwrap();
    succeeded(&scene.run(&["--json"]));
    for (content, entries) in [(list(5), 5), ("# none\n".to_owned(), 0)] {
        write(scene.mirror.path("deny.txt"), content).unwrap();
        scene.fails(&format!("rejected: the number of entries falls from 10 to {entries}"));
        scene.fails("; keygate fetch --allow-shrunk lets the proxy hold it for that\n");
    }
    write(scene.mirror.path("deny.txt"), list(4)).unwrap();
    let row = succeeded(&scene.run(&["--json", "--allow-shrunk"]));
    assert_eq!((row["result"].as_str(), row["entries"].as_u64()), (Some("installed"), Some(4)));
}

#[test]
fn a_filter_that_is_older_than_the_one_that_the_proxy_used_is_not_installed() {
    let Some(mut scene) = Scene::new("") else { return };
    std::fs::create_dir(scene.pki.path("state")).unwrap();
    scene.configuration = scene.configuration.global("state = { dir = \"state\" }");
    scene.configure();
    let state = r#"{"filters":{"lost":{"updated":1700000009,"revision":9}}}"#;
    write(scene.pki.path("state/filters.json"), state).unwrap();
    scene.publish(8);
    scene.fails("rollback: revision 8 of ");
    scene.publish(9);
    scene.fetched();
}

#[test]
fn a_checksum_of_the_source_is_installed_with_the_file() {
    let Some(scene) = Scene::new(", checksum = true") else { return };
    let first = scene.publish(1);
    scene.fails("/lost.pkbf.sha256: 404 Not Found");
    let left = names(&scene.pki.path(".lost.pkbf.fetch"));
    assert_eq!(left, ["lock", "part", "part.json", "state.json"]);
    let sidecar = scene.mirror.path("lost.pkbf.sha256");
    write(&sidecar, sum(b"other")).unwrap();
    scene.fails("/lost.pkbf: rejected: ");
    assert!(!scene.pki.path("lost.pkbf.sha256").exists());
    remove_file(&sidecar).unwrap();
    scene.fails("/lost.pkbf.sha256: 404 Not Found");
    write(&sidecar, sum(&first)).unwrap();
    // The part is the whole file, and is not requested again.
    let row = scene.fetched();
    assert_eq!(row["result"], "installed");
    assert_eq!(row["resumed"], first.len());
    assert_eq!(scene.fetched()["result"], "unchanged");
    let second = scene.publish(2);
    write(&sidecar, sum(&first)).unwrap();
    scene.fails("/lost.pkbf: rejected: ");
    assert_eq!(std::fs::read_to_string(scene.pki.path("lost.pkbf.sha256")).unwrap(), sum(&first));
    write(&sidecar, sum(&second)).unwrap();
    assert_eq!(scene.fetched()["result"], "installed");
    assert!(read(scene.target()).unwrap() == second);
    assert_eq!(std::fs::read_to_string(scene.pki.path("lost.pkbf.sha256")).unwrap(), sum(&second));
    // Another text for the same file.
    write(&sidecar, sum(&second).replace("lost.pkbf", "other")).unwrap();
    assert_eq!(scene.fetched()["result"], "installed");
    assert_eq!(scene.fetched()["result"], "unchanged");
}

/// A reload requires the checksum if it exists.
#[test]
fn a_checksum_beside_the_file_is_fetched_without_a_setting() {
    let Some(scene) = Scene::new("") else { return };
    let first = scene.publish(1);
    scene.fetched();
    write(scene.pki.path("lost.pkbf.sha256"), sum(&first)).unwrap();
    let second = scene.publish(2);
    scene.fails("/lost.pkbf.sha256: 404 Not Found");
    write(scene.mirror.path("lost.pkbf.sha256"), sum(&second)).unwrap();
    scene.fetched();
    assert!(read(scene.target()).unwrap() == second);
    let page = keygate_core::pkbf::read(&scene.target(), 1 << 20);
    assert!(page.is_ok(), "the pair fits: {page:?}");
}

#[test]
fn a_packed_filter_and_a_list_of_fingerprints_are_installed() {
    if skip::without("xz") {
        return;
    }
    let Some(mut scene) = Scene::new(", checksum = true") else { return };
    let filter = scene.publish(1);
    crate::support::system("xz", &[scene.mirror.path("lost.pkbf").to_str().unwrap()]);
    write(scene.mirror.path("lost.pkbf.sha256"), sum(&filter)).unwrap();
    let list = format!(
        "[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\nsource = {{ url = {:?}, trust_anchors = \"ca.pem\" }}",
        scene.mirror.url("deny.txt")
    );
    let url = scene.mirror.url("lost.pkbf.xz");
    scene.configuration = scene.configuration.set("filters.source.url", url.as_str()).global(&list);
    scene.configure();
    let text = format!("{}\n", "ab".repeat(32));
    write(scene.mirror.path("deny.txt"), &text).unwrap();
    let output = scene.run(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    assert!(read(scene.target()).unwrap() == filter);
    assert_eq!(std::fs::read_to_string(scene.pki.path("deny.txt")).unwrap(), text);
    write(scene.mirror.path("deny.txt"), "").unwrap();
    rejected(&scene.run(&[]), "deny.txt: rejected: empty, and the list in use has keys (1)");
    write(scene.mirror.path("deny.txt"), "nonsense\n").unwrap();
    rejected(&scene.run(&[]), "deny.txt: rejected: line 1");
    assert_eq!(std::fs::read_to_string(scene.pki.path("deny.txt")).unwrap(), text);
}

/// The owner of a directory can put links in place of files that are written.
#[test]
fn root_writes_in_no_directory_of_another_user_and_through_no_link() {
    let Some(scene) = Scene::new("") else { return };
    let directory = scene.pki.path(".");
    if skip::unless(chown(&directory, Some(65534), None).is_ok(), "it needs root") {
        return;
    }
    scene.publish(1);
    scene.fails("it belongs to user 65534, and keygate fetch runs as user 0; run it as user 65534");
    assert!(!scene.target().exists());
    chown(&directory, Some(0), None).unwrap();
    let work = scene.pki.path(".lost.pkbf.fetch");
    std::fs::create_dir(&work).unwrap();
    chown(&work, Some(65534), None).unwrap();
    scene.fails(".lost.pkbf.fetch: it belongs to user 65534");
    chown(&work, Some(0), None).unwrap();
    let victim = scene.pki.path("victim");
    for name in ["lock", "part"] {
        symlink(&victim, work.join(name)).unwrap();
        let output = scene.run(&[]);
        assert!(!victim.exists(), "{name}: {}", output_text(&output));
        let _ = std::fs::remove_file(work.join(name)); // a run may have removed it
    }
    scene.fetched();
}

/// Responses of a server that is not nginx. The file in use stays.
#[test]
fn odd_responses_are_errors_that_name_the_cause() {
    let (pki, server) = (Pki::new(), Server::start());
    let url = format!("http://{}/lost.pkbf", server.address);
    let source = format!("source = {{ url = {url:?} }}, max_size = \"1KiB\"");
    let configuration = Configuration::new("127.0.0.1:9").filter(&source);
    write(pki.path("keygate.toml"), configuration.text()).unwrap();
    write(pki.path("lost.pkbf"), b"in use").unwrap();
    let body = "x".repeat(2000);
    let long = "x".repeat(20_000);
    let chunked = format!("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n{body}\r\n0\r\n\r\n");
    for (response, problem) in [
        (
            "200 OK\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n\r\nhello".to_owned(),
            "has a Content-Encoding",
        ),
        ("200 OK\r\n\r\nhello".to_owned(), "neither Content-Length nor chunks"),
        (
            "200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello".to_owned(),
            "neither Content-Length nor chunks",
        ),
        (format!("200 OK\r\nContent-Length: 2000\r\n\r\n{body}"), "larger than 1 KiB"),
        // The server announces more than it sends, and more than is accepted.
        ("200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_owned(), "larger than 1 KiB"),
        (chunked, "larger than 1 KiB, the maximum; correct the URL, or raise max_size"),
        ("200 OK\r\nContent-Length: 100\r\n\r\nhello".to_owned(), "broke off after 5 bytes: "),
        (
            "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".to_owned(),
            "broke off after 5 bytes: ",
        ),
        ("200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned(), "rejected: "),
        (String::new(), "the server closed the connection without a response"),
        (
            "206 Partial Content\r\nContent-Range: bytes 3-7/8\r\nContent-Length: 5\r\n\r\nhello"
                .to_owned(),
            "206 Partial Content; correct the URL",
        ),
        ("304 Not Modified\r\n\r\n".to_owned(), "304 Not Modified; correct the URL"),
        (
            "302 Found\r\nLocation: http://u:pw@169.254.169.254/?sig=a#b\r\n\r\n".to_owned(),
            "302 Found to \"http://169.254.169.254/\": redirects are followed to redirect_hosts over",
        ),
        (
            "403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "403 Forbidden; let the source permit",
        ),
        ("404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(), "404 Not Found; correct the URL"),
        (
            "429 Too Many Requests\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "429 Too Many Requests; try again later",
        ),
        (
            "503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "503 Service Unavailable; try again later",
        ),
        (format!("200 OK\r\nX: {long}\r\n\r\n"), "the head of the response is larger than 16 KiB"),
    ] {
        let run = Fetch::start(&["--config", pki.path("keygate.toml").to_str().unwrap()]);
        let mut tcp = server.connection();
        let head = read_until(&mut tcp, "\r\n\r\n");
        assert!(head.starts_with("GET /lost.pkbf HTTP/1.1\r\n"), "{head}");
        assert!(!head.contains("proxy") && !head.contains("range:"), "{head}");
        let _ = tcp.write_all(format!("HTTP/1.1 {response}").as_bytes()); // it may have been enough
        drop(tcp);
        let output = run.ended();
        rejected(&output, problem);
        assert!(output_text(&output).contains(&url), "{}", output_text(&output));
        assert_eq!(read(pki.path("lost.pkbf")).unwrap(), b"in use");
        assert!(!pki.path(".lost.pkbf.fetch/next").exists());
        // Without a validator, a part cannot be continued, and the next run begins anew.
    }
}

/// A server that answers a request for the rest of a file with something else.
#[test]
fn a_wrong_rest_of_a_file_is_not_appended() {
    let (pki, server) = (Pki::new(), Server::start());
    let url = format!("http://{}/lost.pkbf", server.address);
    let configuration =
        Configuration::new("127.0.0.1:9").filter(&format!("source = {{ url = {url:?} }}"));
    write(pki.path("keygate.toml"), configuration.text()).unwrap();
    write_large(&pki.path("whole"), 1, 1);
    let whole = read(pki.path("whole")).unwrap();
    let run = |respond: &dyn Fn(&str) -> Vec<u8>| {
        let run = Fetch::start(&["--json", "--config", pki.path("keygate.toml").to_str().unwrap()]);
        let mut tcp = server.connection();
        let head = read_until(&mut tcp, "\r\n\r\n");
        let _ = tcp.write_all(&respond(&head)); // it may have been enough
        drop(tcp);
        run.ended()
    };
    let length = whole.len();
    let response =
        |head: String, body: &[u8]| [format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), body].concat();
    let cut_short = |head: &str| {
        assert!(!head.contains("range"), "{head}");
        let head = format!("200 OK\r\nContent-Length: {length}\r\nETag: \"a\"");
        response(head, &whole[..1000])
    };
    for rest in [
        "bytes 999-1999/262168",
        "bytes 1000-1999/262168",
        "bytes 1000-999/262168",
        "bytes */5",
        "nonsense",
        "",
    ] {
        rejected(&run(&cut_short), "broke off after 1000 bytes");
        let output = run(&|head| {
            assert!(
                head.contains("range: bytes=1000-\r\n") && head.contains("if-range: \"a\"\r\n")
            );
            response(
                format!("206 Partial Content\r\nContent-Range: {rest}\r\nContent-Length: 5"),
                b"hello",
            )
        });
        rejected(&output, "Content-Range");
    }
    // Another version, although If-Range forbids it.
    rejected(&run(&cut_short), "broke off after 1000 bytes");
    let output = run(&|_| {
        let range = format!("bytes 1000-{}/{length}", length - 1);
        let head = format!(
            "206 Partial Content\r\nContent-Range: {range}\r\nETag: \"b\"\r\nContent-Length: {}",
            length - 1000
        );
        response(head, &whole[1000..])
    });
    rejected(&output, "Content-Range");
    // A server without ranges sends the whole file.
    rejected(&run(&cut_short), "broke off after 1000 bytes");
    let output = run(&|head| {
        assert!(head.contains("range: bytes=1000-\r\n"));
        response(format!("200 OK\r\nContent-Length: {length}\r\nETag: \"b\""), &whole)
    });
    assert_eq!(succeeded(&output)["resumed"], 0);
    assert!(read(pki.path("lost.pkbf")).unwrap() == whole);
    // A weak validator does not identify the bytes.
    remove_file(pki.path("lost.pkbf")).unwrap();
    let output = run(&|_| {
        let head = format!("200 OK\r\nContent-Length: {length}\r\nETag: W/\"a\"");
        response(head, &whole[..1000])
    });
    rejected(&output, "broke off after 1000 bytes");
    let output = run(&|head| {
        assert!(!head.contains("range"), "{head}");
        response(format!("200 OK\r\nContent-Length: {length}\r\nETag: W/\"a\""), &whole)
    });
    succeeded(&output);
}

#[test]
fn a_signature_is_installed_with_the_file_and_verified_with_the_keys_of_now() {
    if skip::without("minisign") {
        return;
    }
    let Some(mut scene) = Scene::new("") else { return };
    let [ours, next, other] = [Minisign::new(), Minisign::new(), Minisign::new()];
    let keys = scene.pki.path("keys.pub");
    std::fs::copy(ours.public_key(), &keys).unwrap();
    scene.configuration = scene.configuration.filter("minisign_key = \"keys.pub\"");
    scene.configure();
    let first = scene.publish(1);
    let published = scene.mirror.path("lost.pkbf");
    scene.fails("/lost.pkbf.minisig: 404 Not Found");
    other.sign(&published, "by another key");
    scene.fails("/lost.pkbf: rejected: ");
    write(beside(&published), "<html>").unwrap();
    scene.fails("/lost.pkbf: rejected: ");
    write(beside(&published), "x".repeat(20_000)).unwrap();
    scene.fails("/lost.pkbf.minisig: larger than 16 KiB, the maximum; correct the URL, because no setting raises");
    scene.publish(2);
    ours.sign(&published, "of revision 2");
    let second = scene.publish(3);
    scene.fails("/lost.pkbf: rejected: "); // the signature of revision 2
    assert!(!scene.target().exists() && first != second);
    ours.sign(&published, "of revision 3");
    assert_eq!(scene.fetched()["result"], "installed");
    assert!(read(scene.target()).unwrap() == second);
    assert_eq!(read(beside(&scene.target())).unwrap(), read(beside(&published)).unwrap());
    assert_eq!(scene.fetched()["result"], "unchanged");

    // The key was replaced here, and the file is not signed with the next one yet.
    std::fs::copy(next.public_key(), &keys).unwrap();
    scene.fails("/lost.pkbf: rejected: ");
    next.sign(&published, "by the next key");
    let row = scene.fetched();
    assert_eq!(row["result"], "installed");
    assert!(row["bytes"].as_u64().unwrap() < 1000, "only the signature is downloaded: {row}");
    assert_eq!(read(beside(&scene.target())).unwrap(), read(beside(&published)).unwrap());
}
