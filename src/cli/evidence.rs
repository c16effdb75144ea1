//! `keygate evidence`: writes a folder about a compromised key, for its CA and for an audit.
//!
//! Reads what running proxies and the directories of proofs have, and asks no other server.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::ValueHint;
use data_encoding::BASE64;
use keygate_core::printable::printable;
use keygate_core::proof::verify_with_rsa_1024;
use keygate_core::spki::{Algorithm, Fingerprint, related};
use keygate_core::unix_time::{self, utc};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Map, Value, json};

use super::admin_client::AdminClient;
use super::admin_error::AdminError;
use super::instances::{InstanceAnswer, InstanceArgs, number, rows_of, text};
use super::{CliError, ConfigArgs, Exit, print, print_error, proof, report};
use crate::config::Config;
use crate::confirm::proof_files;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Fingerprint of the key: SHA-256 of its SubjectPublicKeyInfo, in hex or base64.
    #[arg(value_name = "FINGERPRINT", value_parser = fingerprint, value_hint = ValueHint::Other)]
    fingerprint: Fingerprint,
    #[command(flatten)]
    instances: InstanceArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// The folder, which must be empty if it exists [default: evidence-FINGERPRINT].
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    output: Option<PathBuf>,
    /// The private key, not encrypted (PEM or DER): it signs proofs and certificate requests, which
    /// cannot be withdrawn, and is not copied.
    #[arg(long, value_name = "KEY", value_hint = ValueHint::FilePath)]
    key: Option<PathBuf>,
}

/// Maximum number of certificates in the folder; further ones are left out.
const MAX_CERTIFICATES: usize = 100;
/// File names of certificate requests and their common names. Sources: `docs/after-a-hit.md`.
const REQUESTS: [(&str, &str); 2] = [
    ("digicert.csr", "Proof of Key Compromise for DigiCert"),
    (
        "compromised.csr",
        "The key that signed this CSR has been publicly disclosed. It should not be used for any purpose.",
    ),
];
/// Names of times in the rows of a proxy.
const TIMES: [&str; 7] =
    ["evicted", "first_seen", "last_seen", "loaded", "updated", "written", "at"];
/// The end of `README.txt`. Sources: `docs/after-a-hit.md`.
const FOR_CAS: &str = include_str!("evidence.txt");

/// The evidence so far.
struct Evidence {
    fingerprint: Fingerprint,
    spki: Option<Vec<u8>>,
    exit: Exit,
    /// The proxies by their admin addresses: host and version, or the error.
    instances: BTreeMap<String, Value>,
    /// Rows of `/report` and `/key-uses`. Each has its `instance`; `source`, the list or filter in
    /// use; and `seconds_to_eviction`, from the load of `source` to the end of a connection.
    clients: Vec<Value>,
    /// Content of the files by name.
    files: BTreeMap<String, Vec<u8>>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let named = || PathBuf::from(format!("evidence-{}", args.fingerprint));
    let directory = args.output.clone().unwrap_or_else(named);
    let config = args.config.path();
    let known = args
        .instances
        .ask(&config, |client, instance| Evidence::ask(args.fingerprint, client, instance))?;
    let mut evidence = Evidence {
        fingerprint: args.fingerprint,
        spki: None,
        exit: Exit::Done,
        instances: BTreeMap::new(),
        clients: Vec::new(),
        files: BTreeMap::new(),
    };
    for InstanceAnswer { instance, response } in known {
        let (about, rows) = response.unwrap_or_else(|error| {
            evidence.report(&error);
            (json!({ "error": error.to_string() }), Vec::new())
        });
        rows.into_iter().for_each(|row| evidence.add(row));
        evidence.instances.insert(instance, about);
    }
    args.key.as_ref().map_or(Ok(()), |path| evidence.sign(path))?;
    match Config::read(&config) {
        Ok(config) => {
            let saved = config.state.dir.map(|directory| directory.join("proofs"));
            let configured = config.confirm.and_then(|confirm| confirm.proofs);
            saved.into_iter().chain(configured).for_each(|it| evidence.take_proofs(&it));
        }
        Err(error) if config.exists() => evidence.report(&error),
        Err(_) => {}
    }
    evidence.write(&directory)
}

impl Evidence {
    /// Reports a part that is missing.
    fn report(&mut self, error: &dyn Display) {
        self.exit = Exit::Incomplete;
        print_error(error);
    }

    /// The host and version of a proxy, and its rows about the key.
    fn ask(
        own: Fingerprint,
        client: &AdminClient,
        instance: &str,
    ) -> Result<(Value, Vec<Map<String, Value>>), AdminError> {
        let status: Value = client.get_json("/status")?;
        let report: Value = client.get_json("/report")?;
        let admitted = report::admitted(client, 0)?.into_iter().map(|it| json!(it));
        let (own, mut clients) = (own.to_string(), Vec::new());
        let is_own = |row: &Value| {
            ["fingerprint", "found_fingerprint", "proof"].iter().any(|it| text(row, it) == own)
        };
        let rows = rows_of(report.get("clients")).iter().cloned().chain(admitted);
        for row in rows.filter(is_own) {
            let named = |kind: &str, sources: &str| {
                let mut all = rows_of(status.get(sources)).iter();
                all.find(|it| it.get("name") == row.get(kind))
            };
            let source = named("list", "lists").or_else(|| named("filter", "filters"));
            let loaded = source.and_then(|it| number(it, "loaded"));
            // A list that was replaced after the eviction has a later time.
            let evicted = number(&row, "evicted").zip(loaded);
            let seconds = evicted.and_then(|(end, start)| end.checked_sub(start));
            let added = [
                ("instance", json!(instance)),
                ("seconds_to_eviction", json!(seconds)),
                ("source", json!(source)),
            ];
            if let Value::Object(mut row) = row {
                row.extend(added.map(|(name, value)| (name.to_owned(), value)));
                clients.push(row);
            }
        }
        let about = json!({ "host": text(&status, "host"), "version": text(&status, "version") });
        Ok((about, clients))
    }

    /// Adds a row. Its certificates become files.
    fn add(&mut self, mut row: Map<String, Value>) {
        let chain = self.take_certificates(rows_of(row.get("chain")));
        row.insert("chain".to_owned(), json!(chain));
        let spki = row.get("spki").and_then(Value::as_str);
        let spki = spki.and_then(|it| BASE64.decode(it.as_bytes()).ok());
        let spki = spki.filter(|spki| Fingerprint::of(spki) == self.fingerprint);
        self.spki = spki.or(self.spki.take());
        self.clients.push(row.into());
    }

    /// Adds the certificates of a client, before other files. Returns the names of their files.
    fn take_certificates(&mut self, chain: &[Value]) -> Vec<String> {
        let mut names = Vec::new();
        for der in chain.iter().filter_map(|it| BASE64.decode(it.as_str()?.as_bytes()).ok()) {
            let (content, count) = (pem("CERTIFICATE", &der), self.files.len());
            let known = self.files.iter().find(|(_, it)| **it == content);
            let new = (count < MAX_CERTIFICATES).then(|| format!("certificate-{}.pem", count + 1));
            let Some(name) = known.map(|(name, _)| name.clone()).or(new) else { continue };
            self.files.insert(name.clone(), content);
            names.push(name);
        }
        names
    }

    /// Signs proofs and certificate requests with the private key of the fingerprint.
    fn sign(&mut self, path: &Path) -> Result<(), CliError> {
        let content = proof::read(path)?;
        let key = proof::private_key(path, &content)?;
        let created = keygate_core::proof::create(key.secret_der());
        let created = created.map_err(|error| CliError::file(path, error))?;
        let Some(own) = created.iter().find(|it| it.fingerprint == self.fingerprint) else {
            let problem = format!("its fingerprint is not {}", self.fingerprint);
            return Err(CliError::file(path, problem + "; give the compromised key"));
        };
        self.spki = Some(own.spki.clone());
        let proofs = created.into_iter();
        self.files.extend(proofs.map(|it| (proof::file_name(it.fingerprint), it.json.into())));
        for (name, common_name) in REQUESTS {
            let mut parameters = CertificateParams::default();
            parameters.distinguished_name = DistinguishedName::new();
            parameters.distinguished_name.push(DnType::CommonName, common_name);
            let key = KeyPair::try_from(&*key);
            let request = key.and_then(|key| parameters.serialize_request(&key)?.pem());
            let request = request.map_err(|error| CliError::file(path, error))?;
            self.files.insert(name.to_owned(), request.into());
        }
        Ok(())
    }

    /// Adds the proofs in a directory that the key signed, in each of its encodings.
    fn take_proofs(&mut self, directory: &Path) {
        for (_, spki) in self.spki.as_deref().map(related).unwrap_or_default() {
            let fingerprint = Fingerprint::of(&spki);
            for proof in proof_files(directory, &fingerprint) {
                match proof {
                    Ok((_, body)) if verify_with_rsa_1024(&body, &spki).is_ok() => {
                        self.files.insert(proof::file_name(fingerprint), body);
                    }
                    Ok(_) => {}
                    Err(error) => self.report(&error),
                }
            }
        }
    }

    fn write(mut self, directory: &Path) -> Result<Exit, CliError> {
        if self.clients.is_empty() && self.files.is_empty() {
            let problem = format!("no proxy knows the key {}", self.fingerprint);
            return Err(CliError::Operation(problem));
        }
        if let Some(spki) = &self.spki {
            self.files.insert("key.pem".to_owned(), pem("PUBLIC KEY", spki));
        }
        let all = |name| self.clients.iter().filter_map(move |row| number(row, name));
        let json = json!({
            "algorithm": self.spki.as_deref().map(|spki| Algorithm::of(spki).to_string()),
            "clients": self.clients,
            "count": all("count").fold(0, u64::saturating_add),
            "files": self.files.keys().collect::<Vec<_>>(),
            "fingerprint": self.fingerprint.to_string(),
            "first_seen": all("first_seen").chain(all("last_seen")).min(),
            "instances": self.instances,
            "last_seen": all("last_seen").max(),
            "written": unix_time::now(),
        });
        let mut readme = "Evidence about a compromised key, by keygate\n\n".to_owned();
        describe(&json, 0, &mut readme);
        self.files.insert("evidence.json".to_owned(), format!("{json:#}\n").into());
        self.files.insert("README.txt".to_owned(), (readme + FOR_CAS).into());
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        let entries = made.and_then(|()| directory.read_dir());
        if entries.map_err(|error| CliError::io(directory, &error))?.next().is_some() {
            return Err(CliError::file(directory, "it is not empty; give another --output"));
        }
        for (name, content) in &self.files {
            let path = directory.join(name);
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            let written = file.and_then(|mut file| file.write_all(content));
            written.map_err(|error| CliError::io(&path, &error))?;
        }
        print(directory.display()).map(|()| self.exit)
    }
}

/// Adds `value` as indented lines for people: times as dates, and without the bytes of keys.
fn describe(value: &Value, indent: usize, lines: &mut String) {
    let members = value.as_object().into_iter().flatten().map(|(name, it)| (printable(name), it));
    let elements =
        rows_of(Some(value)).iter().zip(1..).map(|(it, number)| (number.to_string(), it));
    for (name, value) in members.chain(elements).filter(|(name, _)| name != "spki") {
        let is_time = TIMES.contains(&name.as_str());
        let shown = match value {
            Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
            Value::Number(_) if is_time => utc(value.as_u64().unwrap_or_default()),
            Value::String(text) => printable(text),
            Value::Bool(_) | Value::Number(_) => value.to_string(),
        };
        *lines += &format!("{:indent$}{name}: {shown}\n", "");
        describe(value, indent + 2, lines);
    }
}

fn pem(label: &str, der: &[u8]) -> Vec<u8> {
    let base64 = BASE64.encode(der);
    let lines: Vec<_> = base64.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n")).into_bytes()
}

fn fingerprint(text: &str) -> Result<Fingerprint, String> {
    let problem = "not the SHA-256 of a key, in hex or base64; `keygate key` prints it";
    Fingerprint::parse(text).ok_or_else(|| problem.to_owned())
}
