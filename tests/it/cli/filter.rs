//! Filters made, changed and compared on the command line.

use std::fs::{create_dir_all, read, write};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::BASE64;
use serde_json::{Value, json};

use super::bench::{Bench, problem};
use crate::support::keygate::{BINARY, keygate};
use crate::support::{output_text, skip, system, wait_until};

impl Bench {
    /// With a filter of a sensible size.
    fn with_filter() -> Self {
        let bench = Self::new("filter");
        bench.run(0, &["create", "a.pkbf", "--hash-count", "20", "--hash-length", "16"]);
        bench
    }

    /// The only line of JSON that it writes.
    fn object(&self, code: i32, arguments: &[&str]) -> Value {
        let [object] = self.json(code, arguments).try_into().unwrap();
        object
    }

    fn info(&self) -> Value {
        self.object(0, &["info", "a.pkbf"])
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

fn vector(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    directory.join(name).to_str().unwrap().to_owned()
}

/// A line of base64: the SPKI of an Ed25519 key without a private key.
fn line(number: u64) -> String {
    let prefix = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
    BASE64.encode(&[&prefix[..], &[0; 24], &number.to_be_bytes()].concat())
}

fn lines(numbers: std::ops::Range<u64>) -> String {
    numbers.map(|number| line(number) + "\n").collect()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn create_makes_the_filter_that_the_reference_implementation_would() {
    for (entries, rate, hash_count, hash_length) in [
        ("42", "0.1", 2, 8),
        ("1000", "0.01", 3, 14),
        ("1200000", "0.01", 3, 24),
        ("100", "0.5", 1, 8),
        ("1", "0.01", 3, 4),
    ] {
        let bench = Bench::new("filter");
        let made = bench.object(0, &["create", "a.pkbf", "--entries", entries, "--fp-rate", rate]);
        assert_eq!(
            (&made["hash_count"], &made["hash_length"]),
            (&hash_count.into(), &hash_length.into())
        );
        assert_eq!(
            (&made["revision"], &made["updated"], &made["entries"]),
            (&json!(0), &json!(0), &json!(0))
        );
        let mut info = bench.info();
        assert_eq!(info.as_object_mut().unwrap().remove("signature"), Some(Value::Null));
        assert_eq!(made, info);
        let size = 24 + (1_u64 << hash_length) / 8;
        assert_eq!(std::fs::metadata(bench.path("a.pkbf")).unwrap().len(), size);
        assert_eq!(bench.names(), ["a.pkbf"]);
    }
}

#[test]
fn create_overwrites_only_with_force() {
    let bench = Bench::with_filter();
    write(bench.path("keys"), lines(0..1)).unwrap();
    bench.run(0, &["add", "a.pkbf", "keys"]);
    let before = read(bench.path("a.pkbf")).unwrap();
    let again = ["create", "a.pkbf", "--hash-count", "3", "--hash-length", "8"];
    let output = bench.run(3, &again);
    assert!(problem(&output).contains("a.pkbf: already exists; --force overwrites it"));
    assert_eq!(read(bench.path("a.pkbf")).unwrap(), before);
    bench.run(0, &[&again[..], &["--force"]].concat());
    assert_eq!(bench.info()["entries"], 0);
}

#[test]
fn create_names_parameters_that_are_out_of_range() {
    let bench = Bench::new("filter");
    for arguments in [
        &["--entries", "0", "--fp-rate", "0.1"][..],
        &["--entries", "10", "--fp-rate", "1"],
        &["--entries", "10", "--fp-rate", "0"],
        &["--hash-count", "0", "--hash-length", "8"],
        &["--hash-count", "3", "--hash-length", "2"],
        &["--hash-count", "3", "--hash-length", "64"],
        &["--hash-count", "3"],
        &["--entries", "10"],
        &["--entries", "10", "--fp-rate", "0.1", "--hash-count", "3", "--hash-length", "8"],
        &[],
    ] {
        let output = bench.run(2, &[&["create", "a.pkbf"], arguments].concat());
        assert!(!problem(&output).is_empty());
    }
    // More than any machine has.
    let output = bench.run(3, &["create", "a.pkbf", "--hash-count", "3", "--hash-length", "62"]);
    assert!(problem(&output).contains("cannot allocate"), "{}", output_text(&output));
    assert_eq!(bench.names(), Vec::<String>::new());
}

/// The reference implementation wrote the vectors from the same keys.
#[test]
fn add_sets_the_bits_and_the_header_of_the_reference_implementation() {
    let keys = ["rsa-2048-a", "rsa-4096", "p256-a", "p384", "ed25519"];
    let keys = keys.map(|key| vector(&format!("{key}.key.pem")));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for (hash_count, hash_length) in
        [(20, 20), (12, 18), (255, 16), (5, 12), (3, 14), (3, 6), (2, 4), (1, 3)]
    {
        let bench = Bench::new("filter");
        let (k, l) = (hash_count.to_string(), hash_length.to_string());
        bench.run(0, &["create", "a.pkbf", "--hash-count", &k, "--hash-length", &l]);
        let start = now();
        bench.run(0, &[&["add", "a.pkbf"], &keys[..]].concat());
        let reference = read(vector(&format!("{hash_count}_{hash_length}.pkbf"))).unwrap();
        let ours = read(bench.path("a.pkbf")).unwrap();
        assert_eq!(ours[..10], reference[..10], "marker and revision");
        let updated = bench.info()["updated"].as_u64().unwrap();
        assert!((start..=now()).contains(&updated), "{updated}");
        assert_eq!(ours[18..], reference[18..], "entries, parameters and bits, k={k} L={l}");
    }
}

#[test]
fn add_counts_new_keys_known_keys_and_other_inputs() {
    let bench = Bench::with_filter();
    let key = vector("p256-a.key.pem");
    let added = bench.object(0, &["add", "a.pkbf", &key]);
    let expected = json!({
        "path": "a.pkbf", "keys": 1, "added": 2, "known": 0, "unusable": 0, "revision": 1,
        "updated": added["updated"], "entries": 2, "fill_ratio": added["fill_ratio"],
        "false_positive_ratio": added["false_positive_ratio"],
    });
    assert_eq!(added, expected);
    assert!(added["fill_ratio"].as_f64().unwrap() > 0.0);

    // A run without new keys does not change the file.
    let before =
        (read(bench.path("a.pkbf")).unwrap(), std::fs::metadata(bench.path("a.pkbf")).unwrap());
    let added = bench.object(0, &["add", "a.pkbf", &key]);
    assert_eq!(
        (&added["added"], &added["known"], &added["revision"]),
        (&json!(0), &json!(2), &json!(1))
    );
    let after = std::fs::metadata(bench.path("a.pkbf")).unwrap();
    assert_eq!(read(bench.path("a.pkbf")).unwrap(), before.0);
    assert_eq!(after.modified().unwrap(), before.1.modified().unwrap());

    // An invalid line does not stop the others, and is named by file and line.
    write(bench.path("mixed"), format!("{}\nnonsense\n{}\n", line(1), line(2))).unwrap();
    write(
        bench.path("locked.pem"),
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n",
    )
    .unwrap();
    let output = bench.run(3, &["add", "a.pkbf", "mixed", "missing", "locked.pem", "--json"]);
    let added: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&added["keys"], &added["added"], &added["unusable"]),
        (&json!(2), &json!(2), &json!(3))
    );
    assert_eq!((&added["revision"], &added["entries"]), (&json!(2), &json!(4)));
    for part in [
        "mixed:2: neither PEM",
        "missing: No such file",
        "locked.pem:1: the private key is encrypted",
    ] {
        assert!(problem(&output).contains(part), "{part} is not in {}", problem(&output));
    }
    let added = bench.object(0, &["add", "a.pkbf", "--revision", "42", &key]);
    assert_eq!((&added["added"], &added["revision"]), (&json!(0), &json!(42)));
    assert_eq!(bench.info()["revision"], 42);
}

#[test]
fn add_updates_the_checksum_and_rejects_a_file_that_does_not_match_it() {
    let bench = Bench::with_filter();
    let sum =
        |bench: &Bench| system("sha256sum", &["-b", bench.path("a.pkbf").to_str().unwrap()]).stdout;
    write(bench.path("a.pkbf.sha256"), sum(&bench)).unwrap();
    write(bench.path("keys"), lines(0..3)).unwrap();
    bench.run(0, &["add", "a.pkbf", "keys"]);
    let check = Command::new("sha256sum")
        .args(["-c", "a.pkbf.sha256"])
        .current_dir(bench.directory())
        .output();
    assert!(check.unwrap().status.success(), "sha256sum finds the new checksum true");
    let mut damaged = read(bench.path("a.pkbf")).unwrap();
    damaged[100] ^= 1;
    write(bench.path("a.pkbf"), &damaged).unwrap();
    for command in
        [&["add", "a.pkbf", "keys"][..], &["info", "a.pkbf"], &["query", "a.pkbf", "keys"]]
    {
        let output = bench.run(3, command);
        assert!(problem(&output).contains("one of the two is damaged"), "{}", output_text(&output));
    }
    assert_eq!(read(bench.path("a.pkbf")).unwrap(), damaged);
}

#[test]
fn concurrent_additions_wait_for_each_other_and_none_is_lost() {
    let bench = Bench::with_filter();
    let adding: Vec<Child> = (0..12)
        .map(|number| {
            write(bench.path(&format!("keys-{number}")), lines(number * 5..number * 5 + 5))
                .unwrap();
            bench.command(&["add", "a.pkbf", &format!("keys-{number}")]).spawn().unwrap()
        })
        .collect();
    for child in adding {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", output_text(&output));
    }
    let info = bench.info();
    assert_eq!((&info["entries"], &info["revision"]), (&json!(60), &json!(12)));
    write(bench.path("all"), lines(0..60)).unwrap();
    let responses = bench.json(1, &["query", "a.pkbf", "all"]);
    assert!(responses.iter().all(|response| response["verdict"] == "probable"));
    assert_eq!(responses[41]["line"], 42);
}

/// The limit on file sizes ends the process with a signal in the middle of a write, as the loss of
/// power would; ignored, it is an error in the same place, as a full disk is.
#[test]
fn an_addition_killed_while_writing_leaves_the_old_file() {
    let bench = Bench::new("filter");
    bench.run(0, &["create", "a.pkbf", "--hash-count", "20", "--hash-length", "23"]);
    write(bench.path("keys"), lines(0..10)).unwrap();
    let before = read(bench.path("a.pkbf")).unwrap();
    let limited = |trap: &str| {
        let script = format!("{trap}\nulimit -f 600; exec {BINARY} filter add a.pkbf keys");
        Command::new("bash").args(["-c", &script]).current_dir(bench.directory()).output().unwrap()
    };
    let killed = limited("");
    assert_eq!(killed.status.code(), None, "{}", output_text(&killed));
    assert_eq!(read(bench.path("a.pkbf")).unwrap(), before);
    assert_eq!(bench.names().len(), 3, "what was written so far is beside it: {:?}", bench.names());

    let failed = limited("trap '' XFSZ");
    assert_eq!(failed.status.code(), Some(3), "{}", output_text(&failed));
    assert!(problem(&failed).contains("File too large"), "{}", output_text(&failed));
    assert_eq!(read(bench.path("a.pkbf")).unwrap(), before);
    assert_eq!(bench.names(), ["a.pkbf", "keys"], "nothing of this run or of the killed one");

    // A process that is killed while it reads its keys also leaves the file as it was.
    let mut child = bench.command(&["add", "a.pkbf", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines(0..10).as_bytes()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    bench.run(0, &["add", "a.pkbf", "keys"]);
    assert_eq!(bench.info()["entries"], 10);
}

/// strace kills the command at its first call, the next run at its second call, and so on.
#[test]
fn an_add_that_is_killed_at_any_step_leaves_a_usable_filter_and_the_next_one_removes_its_files() {
    if skip::without("strace") {
        return;
    }
    for calls in ["fsync", "/^rename", "/^unlink", "openat"] {
        let bench = Bench::with_filter();
        let sum = |name: &str| {
            let directory = bench.directory().to_str().unwrap();
            let sum = system("env", &["--chdir", directory, "sha256sum", name]);
            write(bench.path(&format!("{name}.sha256")), sum.stdout).unwrap();
        };
        sum("a.pkbf");
        for at in 1_u64.. {
            write(bench.path("key"), line(at)).unwrap();
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
            command.args(["-e", &format!("inject={calls}:signal=KILL:when={at}")]);
            command.args([BINARY, "filter", "add", "a.pkbf", "key"]).current_dir(bench.directory());
            let output = command.output().unwrap();
            // A filter that does not match its checksum file is an error.
            bench.info();
            if output.status.success() {
                assert!(at > 2 || calls == "/^unlink", "{calls}: {at}");
                break;
            }
            assert_eq!(output.status.code(), None, "{calls}: {at}: {}", output_text(&output));
        }
        bench.run(0, &["add", "a.pkbf", "key"]);
        assert_eq!(bench.names(), ["a.pkbf", "a.pkbf.sha256", "key"], "{calls}");
        let only = std::fs::read_to_string(bench.path("a.pkbf.sha256")).unwrap();
        assert_eq!(only.lines().count(), 1, "{calls}: {only}");
    }
}

#[test]
fn query_waits_for_the_lock_of_a_writer() {
    let bench = Bench::with_filter();
    write(bench.path("keys"), lines(0..2)).unwrap();
    let file = std::fs::File::open(bench.path("a.pkbf")).unwrap();
    file.lock().unwrap();
    let child = bench.command(&["query", "a.pkbf", "keys"]).spawn().unwrap();
    let waits = format!(" {} ", child.id());
    // The kernel lists the processes that wait for a lock after an arrow.
    wait_until("the query waits for the lock", || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains("->") && line.contains(&waits))
    });
    file.unlock().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 2);
}

#[test]
fn a_directory_is_read_recursively() {
    let bench = Bench::with_filter();
    create_dir_all(bench.path("keys/a/b")).unwrap();
    write(bench.path("keys/one"), line(1)).unwrap();
    write(bench.path("keys/a/two"), line(2)).unwrap();
    write(bench.path("keys/a/b/three"), line(3)).unwrap();
    write(bench.path("keys/a/README"), "no key in here\n").unwrap();
    write(bench.path("elsewhere"), line(4)).unwrap();
    symlink(bench.path("elsewhere"), bench.path("keys/link")).unwrap();
    symlink(bench.path("keys"), bench.path("keys/a/circle")).unwrap();
    symlink("nowhere", bench.path("keys/broken")).unwrap();
    assert!(system("mkfifo", &[bench.path("keys/pipe").to_str().unwrap()]).status.success());

    let output = bench.run(3, &["add", "a.pkbf", "keys", "--json"]);
    let added: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&added["keys"], &added["unusable"]),
        (&json!(4), &json!(3)),
        "{}",
        output_text(&output)
    );
    for part in
        ["keys/a/README:1: neither", "keys/broken: No such file", "keys/pipe: not a regular file"]
    {
        assert!(problem(&output).contains(part), "{part} is not in {}", problem(&output));
    }
    let responses = bench.json(1, &["query", "a.pkbf", "keys/a/b", "elsewhere"]);
    assert_eq!(responses[0]["input"], "keys/a/b/three");
    assert_eq!(responses[1]["input"], "elsewhere");
}

#[test]
fn a_named_pipe_is_read() {
    let bench = Bench::with_filter();
    let script = format!("{BINARY} filter add a.pkbf <(printf '%s' {})", line(7));
    let output = Command::new("bash").args(["-c", &script]).current_dir(bench.directory()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    assert_eq!(bench.info()["entries"], 1);
}

#[test]
fn every_json_object_has_exactly_the_documented_fields() {
    let bench = Bench::with_filter();
    write(bench.path("keys"), line(1)).unwrap();
    let fields = |value: &Value| {
        let names = value.as_object().unwrap().keys().map(String::as_str);
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names.join(" ")
    };
    let info = "entries false_positive_ratio fill_ratio hash_count hash_length path plausible revision set_bits sha256 size_bytes updated";
    assert_eq!(
        fields(&bench.object(0, &["create", "b.pkbf", "--entries", "9", "--fp-rate", "0.1"])),
        info
    );
    assert_eq!(fields(&bench.info()), info.replace("size_bytes", "signature size_bytes"));
    assert_eq!(
        fields(&bench.object(0, &["add", "a.pkbf", "keys"])),
        "added entries false_positive_ratio fill_ratio keys known path revision unusable updated"
    );
    assert_eq!(
        fields(&bench.object(1, &["query", "a.pkbf", "keys"])),
        "algorithm encoding fingerprint input line verdict"
    );
    let [diff, changed] = bench.json(1, &["diff", "b.pkbf", "a.pkbf", "keys"]).try_into().unwrap();
    assert_eq!(fields(&diff), "after before bits_gained bits_lost changed_ratio same");
    assert_eq!(
        (fields(&diff["before"]), fields(&diff["after"])),
        (info.to_owned(), info.to_owned())
    );
    assert_eq!(fields(&changed), "after algorithm before fingerprint input line");
    let output = keygate(&["key", "--json", bench.path("keys").to_str().unwrap()]);
    let key: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(fields(&key), "algorithm encodings fingerprint input line weak");
}

#[test]
fn diff_shows_the_changes_and_the_keys_they_concern() {
    let bench = Bench::with_filter();
    std::fs::copy(bench.path("a.pkbf"), bench.path("b.pkbf")).unwrap();
    let same = bench.object(0, &["diff", "a.pkbf", "b.pkbf"]);
    assert_eq!((&same["same"], &same["changed_ratio"]), (&json!(true), &json!(0.0)));

    write(bench.path("keys"), lines(0..3)).unwrap();
    write(bench.path("known"), lines(0..1)).unwrap();
    bench.run(0, &["add", "a.pkbf", "known"]);
    bench.run(0, &["add", "b.pkbf", "keys"]);
    let [diff, first, second] =
        bench.json(1, &["diff", "a.pkbf", "b.pkbf", "keys"]).try_into().unwrap();
    let (before, after) = (&diff["before"]["set_bits"], &diff["after"]["set_bits"]);
    let gained = after.as_u64().unwrap() - before.as_u64().unwrap();
    assert_eq!((&diff["bits_gained"], &diff["bits_lost"]), (&gained.into(), &json!(0)));
    let ratio = diff["changed_ratio"].as_f64().unwrap();
    assert!((ratio - gained as f64 / 65536.0).abs() < 1e-12, "{ratio}");
    for (changed, line) in [(first, 2), (second, 3)] {
        assert_eq!((&changed["before"], &changed["after"]), (&json!("clean"), &json!("probable")));
        assert_eq!(changed["line"], line);
    }
    // In the other direction keys are lost. Filters of different sizes have no bits to compare.
    let back = bench.json(1, &["diff", "b.pkbf", "a.pkbf", "keys"]);
    assert_eq!((&back[0]["bits_lost"], &back[1]["after"]), (&gained.into(), &json!("clean")));
    bench.run(0, &["create", "c.pkbf", "--hash-count", "20", "--hash-length", "17"]);
    let other = bench.object(1, &["diff", "a.pkbf", "c.pkbf"]);
    assert_eq!((&other["bits_lost"], &other["changed_ratio"]), (&Value::Null, &Value::Null));

    let text = bench.run(1, &["diff", "a.pkbf", "b.pkbf", "keys"]).stdout;
    let text = String::from_utf8(text).unwrap();
    for part in [
        &format!("* entries         {:<40}3", 1),
        &format!("{gained} bits gained, 0 lost"),
        "clean -> probable ",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let output = bench.run(3, &["diff", "a.pkbf", "missing.pkbf"]);
    assert!(problem(&output).contains("missing.pkbf: No such file"));
}

#[test]
fn long_work_shows_progress_on_a_terminal_and_none_in_a_pipe() {
    let bench = Bench::with_filter();
    write(bench.path("keys"), lines(0..20_000)).unwrap();
    bench.run(0, &["create", "b.pkbf", "--entries", "20000", "--fp-rate", "0.001"]);
    let shown = bench.on_terminal("add b.pkbf keys");
    assert!(shown.contains(" keys in ") && shown.contains(" writing b.pkbf in "), "{shown:?}");
    let shown = bench.on_terminal("create c.pkbf --entries 1000 --fp-rate 0.001");
    assert!(shown.contains(" writing c.pkbf in "), "{shown:?}");
    let shown = bench.on_terminal("query b.pkbf keys > verdicts");
    assert!(shown.contains(" keys in "), "its report goes elsewhere: {shown:?}");
    let shown = bench.on_terminal("query b.pkbf keys");
    assert!(!shown.contains(" keys in "), "the report itself is on the terminal");
    for command in [&["add", "b.pkbf", "keys"][..], &["query", "b.pkbf", "keys"]] {
        let output = bench.command(command).output().unwrap();
        assert_eq!(problem(&output), "", "nothing but results in a pipe");
    }
}

#[test]
fn memory_does_not_grow_with_the_number_of_keys() {
    let bench = Bench::new("filter");
    bench.run(0, &["create", "a.pkbf", "--entries", "500000", "--fp-rate", "0.001"]);
    let many = lines(0..100_000);
    assert!(many.len() > 6_000_000);
    for command in ["add", "query"] {
        // In KiB, after the whole input was read and before its end.
        let peak = |input: &str| {
            let mut command = bench.command(&[command, "a.pkbf", "-"]);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            child.stdin.as_mut().unwrap().write_all(input.as_bytes()).unwrap();
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
            assert!(matches!(child.wait().unwrap().code(), Some(0 | 1)));
            peak
        };
        // More than a pipe holds, so that the process has begun to read.
        let (few, many) = (peak(&lines(0..4000)), peak(&many));
        assert!(many < few + (2 << 10), "{command}: {few} KiB, then {many} KiB");
    }
}
