//! `keygate fetch --badkeys`: metadata, packed lists, hostile values, a proxy that watches.
//!
//! Guards: `named_list` in `src/fetch/blocklist.rs`, `unpack` in `src/fetch/unpack.rs`.

use std::fs::{copy, create_dir, read, read_to_string, remove_file, write};

use serde_json::{Value, json};

use super::badkeys_scene::{BadkeysScene, pack};
use super::scene::{names, rejected};
use crate::support::blocklist::Blocklist;
use crate::support::keygate::BINARY;
use crate::support::mirror::{AT_ONCE, Fetch};
use crate::support::output_text;
use crate::support::pki::Kind;
use crate::support::proxy::{Configuration, Configure, Proxy};
use crate::support::terminal::Terminal;
use crate::support::write_filter;

#[test]
fn a_list_is_unpacked_and_replaced_with_its_metadata() {
    let Some(scene) = BadkeysScene::new() else { return };
    let first = scene.list(1000);
    scene.publish(&first);
    let row = scene.fetched();
    assert_eq!((row["result"].as_str(), row["entries"].as_u64()), (Some("installed"), Some(1000)));
    assert!(scene.has(&first));
    assert_eq!(
        names(&scene.pki.path("badkeys")),
        [".blocklist.dat.fetch", "badkeysdata.json", "blocklist.dat"]
    );
    assert_eq!(scene.fetched()["result"], "unchanged");
    assert!(scene.mirror.requests(3)[2].contains(" 304 "), "only the metadata are requested");

    // New metadata for the same list: the list itself is not requested.
    let renamed = first.clone().with("date", "2026-08-21".into());
    scene.publish(&renamed);
    assert_eq!(scene.fetched()["result"], "installed");
    assert!(
        read_to_string(scene.pki.path("badkeys/badkeysdata.json")).unwrap().contains("2026-08-21")
    );
    scene.mirror.requests(4);

    let second = scene.list(1500).with("date", "2026-08-22".into());
    scene.publish(&second);
    assert_eq!(scene.fetched()["entries"], 1500);
    assert!(scene.has(&second));
    // A file that was removed is fetched again.
    remove_file(scene.pki.path("badkeys/blocklist.dat")).unwrap();
    assert_eq!(scene.fetched()["result"], "installed");
    assert!(scene.has(&second));
    // Most of the records are gone.
    scene.publish(&scene.list(700).with("date", "2026-08-23".into()));
    scene.fails("the number of entries falls from 1500 to 700");
    assert!(scene.has(&second));
}

#[test]
fn hostile_metadata_are_rejected_and_name_the_member() {
    let Some(scene) = BadkeysScene::new() else { return };
    let good = scene.list(1000);
    scene.publish(&good);
    scene.fetched();
    let no_url = "is not the URL of a file";
    let (_, port) = scene
        .mirror
        .url("")
        .trim_end_matches('/')
        .rsplit_once(':')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    for (member, value, problem) in [
        ("bkformat", json!(1), "bkformat: 1, and keygate reads 0"),
        (
            "bkformat",
            json!("0"),
            "badkeysdata.json: not the metadata of a blocklist: bkformat: invalid type: string \"0\", expected i64 at line 1 column ",
        ),
        (
            "blocklists",
            json!(7),
            "blocklists: invalid type: integer `7`, expected a sequence at line 1 column ",
        ),
        (
            "blocklists",
            json!([{ "id": 256, "name": "a" }]),
            "blocklists[0].id: invalid value: integer `256`",
        ),
        (
            "blocklists",
            json!([{ "id": 1, "name": "a\u{1b}[2J" }]),
            "blocklists[0].name: \"a\\u{1b}[2J\"",
        ),
        ("date", json!("soon"), "date: \"soon\""),
        ("blocklist_sha256", json!("e3b0"), "blocklist_sha256: \"e3b0\" is not 64 hex digits"),
        ("blocklist_sha256", json!("0".repeat(64)), "but blocklist_sha256 is 000000"),
        ("blocklist_sha256", Value::Null, "blocklist_sha256 is missing"),
        ("blocklist_url", Value::Null, "blocklist_url is missing: the list is not published"),
        ("blocklist_url", json!("http://169.254.169.254/latest"), "/v0/latest: 404 Not Found"),
        ("blocklist_url", json!("file:///etc/passwd"), no_url),
        ("blocklist_url", json!("blocklist.dat.xz"), no_url),
        ("blocklist_url", json!(format!("https://127.0.0.1:{port}")), no_url),
        (
            "blocklist_url",
            json!(format!("https://user@127.0.0.1:{port}/v0/blocklist.dat.xz")),
            no_url,
        ),
        (
            "blocklist_url",
            json!(scene.mirror.url("v0/missing.xz")),
            "/v0/missing.xz: 404 Not Found",
        ),
        (
            "blocklist_url",
            json!(scene.mirror.url("moved/v0/blocklist.dat.xz")),
            "redirects are followed to redirect_hosts",
        ),
        // The file is not a list, although its digest is right.
        (
            "blocklist_url",
            json!(scene.mirror.url("v0/badkeysdata.json")),
            "but blocklist_sha256 is",
        ),
    ] {
        // Another list, so that it would be requested.
        let list = scene.list(1100).with(member, value.clone());
        scene.publish(&list);
        if value.is_null() {
            let path = scene.mirror.path("v0/badkeysdata.json");
            let mut metadata: Value = serde_json::from_slice(&read(&path).unwrap()).unwrap();
            metadata.as_object_mut().unwrap().remove(member);
            write(path, metadata.to_string()).unwrap();
        }
        scene.fails(problem);
    }
    for text in ["", "[]", "{", &" ".repeat((1 << 20) + 1)] {
        write(scene.mirror.path("v0/badkeysdata.json"), text).unwrap();
        scene.fails("/v0/badkeysdata.json: ");
    }
    scene.publish(&good);
    scene.fetched();
    assert!(scene.has(&good));
}

#[test]
fn a_deprecated_list_is_installed_and_reported() {
    let Some(scene) = BadkeysScene::new() else { return };
    let list = scene.list(1000).with("deprecated", "use v1,\u{1b}[2J see badkeys.info".into());
    scene.publish(&list);
    let textfile = scene.pki.path("a.prom");
    for result in ["installed", "unchanged"] {
        let output = scene.run(&["--json", "--textfile", textfile.to_str().unwrap()]);
        let problem = "the format of the list is deprecated (use v1,[2J see badkeys.info), it may";
        rejected(&output, problem);
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (row["result"].as_str(), row["deprecated"].as_bool()),
            (Some(result), Some(true))
        );
        let text = read_to_string(&textfile).unwrap();
        assert!(text.contains("keygate_fetch_deprecated{kind=\"list\",name=\"badkeys\"} 1\n"));
    }
    assert!(scene.has(&list));
    // The list is gone, and the text says where to look.
    let path = scene.mirror.path("v0/badkeysdata.json");
    let mut metadata: Value = serde_json::from_slice(&read(&path).unwrap()).unwrap();
    metadata.as_object_mut().unwrap().remove("blocklist_url");
    write(path, metadata.to_string()).unwrap();
    scene.fails("in this format any more (use v1,[2J see badkeys.info); look for a newer keygate");
    assert!(scene.has(&list));
}

#[test]
fn a_packed_file_takes_neither_the_disk_nor_the_memory() {
    let Some(mut scene) = BadkeysScene::new() else { return };
    let good = scene.list(1000);
    scene.publish(&good);
    scene.fetched();
    scene.publish(&scene.list(1100));
    let path = scene.mirror.path("v0/blocklist.dat");
    let packed = scene.mirror.path("v0/blocklist.dat.xz");

    // 64 MiB of zeros, of which 1 MiB is accepted, in some 10 KiB.
    let zeros = std::fs::File::create(&path).unwrap();
    zeros.set_len(64 << 20).unwrap();
    pack(&path, &["-0"]);
    assert!(std::fs::metadata(&packed).unwrap().len() < 20_000);
    let before = scene.in_use();
    let settings = format!(
        "[[lists]]\nname = \"badkeys\"\nformat = \"badkeys\"\npath = \"badkeys/blocklist.dat\"\n\
         max_size = \"1MiB\"\nsource = {{ url = {:?}, trust_anchors = \"ca.pem\" }}",
        scene.url()
    );
    let config = scene.pki.path("keygate.toml");
    write(&config, Configuration::new("127.0.0.1:9").global(&settings).text()).unwrap();
    let output = Fetch::start(&["--config", config.to_str().unwrap()]).ended();
    rejected(
        &output,
        "/v0/blocklist.dat.xz: it is unpacked larger than max_size, 1 MiB; correct the URL, or raise max_size",
    );
    assert!(scene.in_use() == before);
    assert_eq!(names(&scene.pki.path("badkeys/.blocklist.dat.fetch")), ["lock", "state.json"]);

    // A dictionary of 4 GiB, which the header of a small file asks for.
    write(&path, scene.list(1100).content()).unwrap();
    pack(&path, &["-0"]);
    let right = read(&packed).unwrap();
    write(&packed, with_dictionary(&right, 40)).unwrap();
    scene.fails("/v0/blocklist.dat.xz: it cannot be unpacked: ");
    write(&packed, with_dictionary(&right, 30)).unwrap(); // 128 MiB
    scene.fails("/v0/blocklist.dat.xz: it cannot be unpacked: ");

    // Every byte counts: damage, a missing end, bytes after the end.
    let damaged = |at: usize| {
        let mut damaged = right.clone();
        damaged[at] ^= 0x10;
        damaged
    };
    let (damage, end) = ("it cannot be unpacked: ", "the xz file ends early: it is truncated at");
    for (content, problem) in [
        (damaged(7), damage),
        (damaged(30), damage),
        (damaged(right.len() / 2), damage),
        (damaged(right.len() - 30), damage),
        (damaged(right.len() - 1), damage),
        (right[..right.len() - 1].to_vec(), end),
        (right[..right.len() / 2].to_vec(), end),
        (right[..13].to_vec(), end),
        ([&right[..], b"more"].concat(), damage),
        (
            scene.list(1100).content().to_vec(),
            "its name ends in .xz, but it is no xz file; correct",
        ),
        (b"<html>maintenance</html>".to_vec(), "its name ends in .xz, but it is no xz file"),
    ] {
        write(&packed, content).unwrap();
        scene.fails(&format!("/v0/blocklist.dat.xz: {problem}"));
    }
    write(&packed, &right).unwrap();
    scene.fetched();
    assert!(scene.has(&scene.list(1100)));
    // A mirror may have the list unpacked.
    let plain = scene.list(1200).with("blocklist_url", scene.mirror.url("v0/blocklist.dat").into());
    plain.write(&scene.mirror.path("v0"));
    scene.fetched();
    assert!(scene.has(&plain));
    scene.mirror.kill();
    scene.fails("Connection refused");
}

/// An xz file whose first block asks for another dictionary size (xz format, 5.3.1).
fn with_dictionary(file: &[u8], size: u8) -> Vec<u8> {
    let mut file = file.to_vec();
    let header = &mut file[12..];
    let length = (usize::from(header[0]) + 1) * 4;
    let at = header[..length].windows(2).position(|it| it == [0x21, 0x01]).unwrap() + 2;
    header[at] = size;
    let crc = crc32(&header[..length - 4]);
    header[length - 4..length].copy_from_slice(&crc.to_le_bytes());
    file
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// The URL of the list comes from its metadata, and not from the configuration.
#[test]
fn a_killed_download_of_a_blocklist_is_continued() {
    let Some(scene) = BadkeysScene::new() else { return };
    let list = scene.list(10_000);
    scene.publish(&list);
    scene.mirror.slow_down(true);
    let ca = scene.pki.path("ca.pem");
    let directory = scene.pki.path("badkeys");
    let arguments = ["--badkeys", directory.to_str().unwrap(), "--url", &scene.url()];
    let run = Fetch::start(&[&arguments[..], &["--trust-anchors", ca.to_str().unwrap()]].concat());
    run.wait_for_part(&directory.join("blocklist.dat"), AT_ONCE);
    run.kill();
    scene.mirror.slow_down(false);
    assert!(scene.fetched()["resumed"].as_u64().unwrap() >= AT_ONCE);
    assert!(scene.has(&list));
}

#[test]
fn a_download_shows_its_size_on_a_terminal() {
    let Some(scene) = BadkeysScene::new() else { return };
    scene.publish(&scene.list(10_000));
    scene.mirror.slow_down(true);
    let url = scene.url();
    let command = format!("{BINARY} fetch --badkeys badkeys --url {url} --trust-anchors ca.pem");
    let Some(mut terminal) = Terminal::start(&command, scene.pki.directory()) else { return };
    terminal.wait_for(" KiB");
}

#[test]
fn a_running_proxy_uses_the_list_that_was_fetched() {
    let Some(scene) = BadkeysScene::new() else { return };
    let BadkeysScene { pki: source, mirror } = &scene;
    let proxy = Proxy::new();
    let thief = proxy.pki.client("thief", Kind::P256);
    write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    create_dir(proxy.pki.path("bk")).unwrap();
    copy(source.path("ca.pem"), proxy.pki.path("mirror-ca.pem")).unwrap();
    let url = mirror.url("v0/blocklist.dat.xz");
    let list = |keys: &[(&[u8], u8)]| {
        Blocklist::new(keys).with_others(0, 100).with("blocklist_url", url.clone().into())
    };
    scene.publish(&list(&[]));
    let settings = format!(
        "[[lists]]\nname = \"badkeys\"\nformat = \"badkeys\"\npath = \"bk/blocklist.dat\"\n\
         source = {{ url = {:?}, trust_anchors = \"mirror-ca.pem\" }}",
        scene.url()
    );
    let proxy = proxy.global(&settings);
    let config = proxy.pki.path("keygate.toml");
    write(&config, proxy.configuration.text()).unwrap();
    let fetch = || {
        let run = Fetch::start(&["--config", config.to_str().unwrap()]);
        let output = run.ended();
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    };
    fetch();
    let proxy = proxy.start();
    proxy.admits(&thief);
    scene.publish(&list(&[(&thief.spki, 1)]));
    fetch();
    proxy.wait_for_metric("keygate_list_entries{list=\"badkeys\"}", 101.0);
    proxy.rejects(&thief);
    proxy.admits(&proxy.good);
    assert!(proxy.lines("list update rejected, keeping the one in use").is_empty());
}

/// wget and caching registries copy the metadata as they are.
#[test]
fn the_list_of_a_copy_of_the_metadata_is_beside_them() {
    let Some(scene) = BadkeysScene::new() else { return };
    for (day, url) in [
        (1, "https://update.badkeys.info/v0/blocklist.dat.xz"),
        (2, "https://update.badkeys.info/elsewhere/blocklist.dat.xz"),
        (3, "http://127.0.0.1/blocklist.dat.xz"),
    ] {
        let list = scene.list(1000 + day).with("blocklist_url", url.into());
        let list = list.with("date", format!("2026-09-0{day}").into());
        scene.publish(&list);
        assert_eq!(scene.fetched()["result"], "installed", "{url}");
        assert!(scene.has(&list), "{url}");
    }
}
