//! Files that change under the running proxy: a valid one is loaded however it arrives, no other
//! is.

use std::fs::{File, OpenOptions, create_dir, read, remove_dir_all, remove_file, rename};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::Configure;
use crate::support::scene::{LOADED, REFUSED, Scene, contains, refusals};
use crate::support::{output_text, write_filter, write_revision};

fn open(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

#[test]
fn a_filter_renamed_over_the_old_one_is_loaded() {
    let scene = Scene::new();
    let update = scene.update();
    let content = read(&update).unwrap();
    rename(update, scene.pki.path("lost.pkbf")).unwrap();
    scene.is_replaced_by(&content);
}

#[test]
fn a_filter_edited_in_place_under_a_lock_is_loaded_once_complete() {
    let scene = Scene::new();
    let content = read(scene.update()).unwrap();
    let file = open(&scene.pki.path("lost.pkbf"));
    file.lock().unwrap();
    for (position, piece) in content.chunks(64).enumerate() {
        file.write_all_at(piece, position as u64 * 64).unwrap();
    }
    file.unlock().unwrap();
    scene.is_replaced_by(&content);
    assert_eq!(scene.keygate.metric(REFUSED), 0.0);
}

#[test]
fn a_filter_written_in_pieces_without_a_lock_is_loaded_once_complete() {
    let scene = Scene::new();
    let content = read(scene.update()).unwrap();
    let mut file = File::create(scene.pki.path("lost.pkbf")).unwrap();
    for piece in content.chunks(100) {
        file.write_all(piece).unwrap();
    }
    drop(file);
    scene.is_replaced_by(&content);
}

#[test]
fn a_filter_that_is_deleted_and_recreated_is_loaded() {
    let scene = Scene::new();
    let update = scene.update();
    let content = read(&update).unwrap();
    remove_file(scene.pki.path("lost.pkbf")).unwrap();
    scene.is_refused("io", "No such file");
    scene.is_as_it_was();
    rename(update, scene.pki.path("lost.pkbf")).unwrap();
    scene.is_replaced_by(&content);
}

#[test]
fn a_kubernetes_volume_whose_data_link_is_swapped_is_followed() {
    let scene = Scene::with("volume/lost.pkbf", |pki, first| {
        create_dir(pki.path("volume")).unwrap();
        create_dir(pki.path("volume/..2026_a")).unwrap();
        rename(first, pki.path("volume/..2026_a/lost.pkbf")).unwrap();
        symlink("..2026_a", pki.path("volume/..data")).unwrap();
        symlink("..data/lost.pkbf", pki.path("volume/lost.pkbf")).unwrap();
    });
    let update = scene.update();
    let content = read(&update).unwrap();
    create_dir(scene.pki.path("volume/..2026_b")).unwrap();
    rename(update, scene.pki.path("volume/..2026_b/lost.pkbf")).unwrap();
    symlink("..2026_b", scene.pki.path("volume/..data_tmp")).unwrap();
    rename(scene.pki.path("volume/..data_tmp"), scene.pki.path("volume/..data")).unwrap();
    remove_dir_all(scene.pki.path("volume/..2026_a")).unwrap();
    scene.is_replaced_by(&content);
}

#[test]
fn a_link_into_another_directory_is_followed_to_where_its_target_changes() {
    let scene = Scene::with("lost.pkbf", |pki, first| {
        create_dir(pki.path("elsewhere")).unwrap();
        rename(first, pki.path("elsewhere/real.pkbf")).unwrap();
        symlink("elsewhere/real.pkbf", pki.path("lost.pkbf")).unwrap();
    });
    let content = read(scene.update()).unwrap();
    let file = open(&scene.pki.path("elsewhere/real.pkbf"));
    file.lock().unwrap();
    file.write_all_at(&content, 0).unwrap();
    drop(file);
    scene.is_replaced_by(&content);
}

#[test]
fn a_torn_filter_is_rejected_until_it_is_complete() {
    let scene = Scene::new();
    let content = read(scene.update()).unwrap();
    let file = open(&scene.pki.path("lost.pkbf"));
    file.set_len(content.len() as u64 / 2).unwrap();
    scene.is_refused("size", "bytes long, its header");
    assert_eq!(scene.keygate.metric(&refusals("size")), 1.0);
    assert_eq!(scene.keygate.metric(REFUSED), 1.0);
    assert_eq!(scene.keygate.metric(LOADED), 1.0);
    scene.is_as_it_was();

    file.lock().unwrap();
    file.write_all_at(&content, 0).unwrap();
    drop(file);
    scene.is_replaced_by(&content);
    assert_eq!(scene.keygate.metric(&refusals("size")), 1.0);
}

#[test]
fn a_filter_locked_by_its_writer_is_not_loaded_until_unlocked() {
    let other = "[[filters]]
name = \"other\"
path = \"other.pkbf\"";
    let scene = Scene::configured(
        |pki, first| {
            write_filter(&pki.path("other.pkbf"), &[]);
            rename(first, pki.path("lost.pkbf")).unwrap();
        },
        |configuration| configuration.global(other),
    );
    let content = read(scene.update()).unwrap();
    let file = open(&scene.pki.path("lost.pkbf"));
    file.lock().unwrap();
    file.write_all_at(&content[..content.len() / 2], 0).unwrap();

    // One refresh checks all files. When this file is in use, the locked one, which changed earlier
    // and has settled, was checked as well.
    write_revision(&scene.pki.path("other.pkbf"), &[], 2);
    scene.keygate.wait_for_generation(2);
    let status = scene.keygate.wait_for_status("the other", |status| status["generation"] == 2);
    assert_eq!(status["filters"][1]["revision"], 2);
    assert_eq!(scene.keygate.metric(LOADED), 1.0);
    assert_eq!(scene.keygate.metric(REFUSED), 0.0);
    scene.is_as_it_was();

    file.write_all_at(&content[content.len() / 2..], content.len() as u64 / 2).unwrap();
    file.unlock().unwrap();
    scene.keygate.wait_for_generation(3);
    scene.refuses(&scene.next);
    scene.admits(&scene.good);
    assert_eq!(scene.keygate.metric(LOADED), 2.0);
    assert_eq!(scene.keygate.metric(REFUSED), 0.0);
}

#[test]
fn an_unusable_filter_update_is_rejected_with_its_reason() {
    let scene = Scene::new();
    let content = read(scene.update()).unwrap();
    let header = |position: usize, value: u8| {
        let mut changed = content.clone();
        changed[position] = value;
        changed
    };
    for (bad, reason, problem) in [
        (header(0, b'P'), "marker", "not a pkbfv1 filter"),
        (header(22, 0), "range", "hash count is 0"),
        (header(23, 2), "range", "hash length is 2"),
        (header(23, 255), "range", "hash length is 255"),
        (header(23, 40), "size", "hash length 40"),
        (Vec::new(), "size", "0 bytes long"),
    ] {
        let path = scene.pki.path("made/bad.pkbf");
        std::fs::write(&path, bad).unwrap();
        rename(path, scene.pki.path("lost.pkbf")).unwrap();
        scene.is_refused(reason, problem);
        scene.is_as_it_was();
    }
    for (reason, count) in [("marker", 1.0), ("range", 3.0), ("size", 2.0), ("io", 0.0)] {
        assert_eq!(scene.keygate.metric(&refusals(reason)), count, "{reason}");
    }
    assert!(scene.keygate.lines("snapshot in use").is_empty());

    rename(scene.update(), scene.pki.path("lost.pkbf")).unwrap();
    scene.is_replaced_by(&content);
}

#[test]
fn unchanged_content_written_again_makes_no_new_snapshot() {
    let scene = Scene::new();
    let path = scene.pki.path("made/same.pkbf");
    std::fs::copy(scene.pki.path("lost.pkbf"), &path).unwrap();
    rename(path, scene.pki.path("lost.pkbf")).unwrap();
    let status = scene.keygate.wait_for_status("an unchanged filter", |status| {
        status["filters"][0]["last_reload"]["result"] == "unchanged"
    });
    assert_eq!(status["generation"], 1);
    let unchanged = "keygate_filter_reloads_total{filter=\"lost\",result=\"unchanged\"}";
    assert_eq!(scene.keygate.metric(unchanged), 1.0);
    assert_eq!(scene.keygate.metric(LOADED), 1.0);
    assert_eq!(scene.keygate.metric("keygate_snapshots_total"), 1.0);
    assert!(scene.keygate.lines("snapshot in use").is_empty());
}

#[test]
fn a_replaced_ca_admits_its_own_clients_and_no_longer_those_of_the_old_one() {
    let scene = Scene::configured(
        |pki, first| {
            rename(first, pki.path("lost.pkbf")).unwrap();
            // The CA of the server, which clients need, stays.
            std::fs::copy(pki.path("ca.pem"), pki.path("clients.pem")).unwrap();
        },
        |configuration| configuration.client_auth("trust_anchors = \"clients.pem\""),
    );
    let theirs = Pki::named("Another CA");
    let stranger = theirs.client("stranger", Kind::P256);
    let response = scene.keygate.curl(&stranger, &[]);
    assert!(output_text(&response).contains("unknown ca"), "{}", output_text(&response));

    std::fs::copy(theirs.path("ca.pem"), scene.pki.path("made/ca.pem")).unwrap();
    rename(scene.pki.path("made/ca.pem"), scene.pki.path("clients.pem")).unwrap();
    scene.keygate.wait_for_generation(2);
    scene.admits(&stranger);
    let response = scene.keygate.curl(&scene.good, &[]);
    assert!(output_text(&response).contains("unknown ca"), "{}", output_text(&response));
    let refused = r#"{result="unknown_issuer",resumed="false",service="test"}"#;
    scene.keygate.wait_for_metric(&format!("keygate_handshakes_total{refused}"), 2.0);
}

#[test]
fn a_replaced_server_certificate_is_served_on_new_connections() {
    let scene = Scene::new();
    let pins = |server: &Party| {
        let pin = scene.pki.path(&format!("made/{}.der", server.name));
        std::fs::write(&pin, &server.spki).unwrap();
        scene.keygate.curl(&scene.good, &["--pinnedpubkey", pin.to_str().unwrap()])
    };
    let server = scene.pki.server("another");
    assert_eq!(pins(&server).status.code(), Some(90), "curl: the key is not the pinned one");

    // Between the two renames the files may not match. The old ones then stay in use.
    rename(&server.private_key, scene.pki.path("server.key")).unwrap();
    rename(&server.certificate, scene.pki.path("server.pem")).unwrap();
    scene.keygate.wait_for_generation(2);
    let response = pins(&server);
    assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
    scene.refuses(&scene.lost);
}

#[test]
fn a_server_certificate_without_its_key_is_rejected_and_the_old_one_is_served() {
    let scene = Scene::new();
    let server = scene.pki.server("another");
    rename(&server.certificate, scene.pki.path("server.pem")).unwrap();
    scene.keygate.wait_for("a refused certificate", |line| {
        line["message"] == "certificate update rejected, keeping those in use"
            && contains(&line["error"], "does not belong to the certificate")
    });
    let status = scene.keygate.wait_for_status("the refusal", |status| {
        status["services"][0]["last_reload"]["result"] == "refused"
    });
    let error = &status["services"][0]["last_reload"]["error"];
    assert!(contains(error, "server.key") && contains(error, "does not belong"), "{error}");
    assert_eq!(status["generation"], 1);
    scene.is_as_it_was();

    rename(&server.private_key, scene.pki.path("server.key")).unwrap();
    scene.keygate.wait_for_generation(2);
    scene.keygate.wait_for_status("the certificate", |status| {
        status["services"][0]["last_reload"]["result"] == "loaded"
    });
    scene.admits(&scene.good);
}

#[test]
fn sighup_checks_all_files_without_waiting_for_the_next_poll() {
    // A changed link in the middle of a chain causes no event. Without the signal, the poll finds
    // it.
    let scene = Scene::with("lost.pkbf", |pki, first| {
        for directory in ["middle", "one", "two"] {
            create_dir(pki.path(directory)).unwrap();
        }
        rename(first, pki.path("one/lost.pkbf")).unwrap();
        symlink(pki.path("one/lost.pkbf"), pki.path("middle/link")).unwrap();
        symlink("middle/link", pki.path("lost.pkbf")).unwrap();
        write_filter(&pki.path("other.pkbf"), &[]);
    });
    // After this refresh of all files, the next poll is ten seconds away.
    let same = scene.pki.path("made/same.pkbf");
    std::fs::copy(scene.pki.path("one/lost.pkbf"), &same).unwrap();
    rename(same, scene.pki.path("one/lost.pkbf")).unwrap();
    scene.keygate.wait_for_status("a look", |status| {
        status["filters"][0]["last_reload"]["result"] == "unchanged"
    });

    let update = scene.update();
    let content = read(&update).unwrap();
    rename(update, scene.pki.path("two/lost.pkbf")).unwrap();
    symlink(scene.pki.path("two/lost.pkbf"), scene.pki.path("middle/new")).unwrap();
    rename(scene.pki.path("middle/new"), scene.pki.path("middle/link")).unwrap();
    scene.keygate.signal("HUP");
    scene.is_replaced_by(&content);
}
