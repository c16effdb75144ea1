//! `keygate evidence`: writes a folder about a compromised key, for its CA and for an audit.
//!
//! Reads what running proxies and the directories of proofs have, and asks no other server.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueHint;
use data_encoding::BASE64;
use keygate_core::printable::printable;
use keygate_core::spki::{self, Algorithm, Fingerprint, related};
use keygate_core::unix_time::{self, utc};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::admin_client::AdminClient;
use super::admin_error::AdminError;
use super::{CliError, ConfigArgs, Exit, print, print_error, proof, report};
use crate::config::{Config, ListenAddress};
use crate::confirm::proof_files;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Fingerprint of the key: SHA-256 of its SubjectPublicKeyInfo, in hex or base64.
    #[arg(value_name = "FINGERPRINT", value_parser = fingerprint, value_hint = ValueHint::Other)]
    fingerprint: Fingerprint,
    /// Admin address of a proxy, IP:PORT or unix:/PATH; several if given several times. Default:
    /// the address of the configuration.
    #[arg(long, value_name = "ADDRESS", value_parser = address, value_hint = ValueHint::Other)]
    admin: Vec<ListenAddress>,
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

/// Maximum time for each response, which a proxy sends from memory.
const TIMEOUT: Duration = Duration::from_secs(10);
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
    let mut addresses = args.admin.clone();
    if addresses.is_empty() {
        addresses.push(ListenAddress::read_admin(&config)?);
    }
    let (instances, clients, files) = Default::default();
    let mut evidence =
        Evidence { fingerprint: args.fingerprint, spki: None, instances, clients, files };
    let mut exit = Exit::Done;
    for address in addresses {
        let client = AdminClient::new(address.clone(), TIMEOUT)?;
        let instance = evidence.ask(&client, &address.to_string()).unwrap_or_else(|error| {
            exit = Exit::Incomplete;
            print_error(&error);
            json!({ "error": error.to_string() })
        });
        evidence.instances.insert(address.to_string(), instance);
    }
    evidence.take_certificates();
    args.key.as_ref().map_or(Ok(()), |path| evidence.sign(path))?;
    if let Ok(config) = Config::read(&config) {
        let saved = config.state.dir.map(|directory| directory.join("proofs"));
        let configured = config.confirm.and_then(|confirm| confirm.proofs);
        saved.into_iter().chain(configured).for_each(|it| evidence.take_proofs(&it));
    }
    evidence.write(&directory)?;
    print(directory.display()).map(|()| exit)
}

impl Evidence {
    /// Adds the rows of a proxy about the key. Returns its host and version.
    fn ask(&mut self, client: &AdminClient, instance: &str) -> Result<Value, AdminError> {
        let status: Value = client.get_json("/status")?;
        let report: Value = client.get_json("/report")?;
        let admitted = report::admitted(client, 0)?.into_iter().map(|it| json!(it));
        let own = self.fingerprint.to_string();
        let is_own = |row: &Value| {
            ["fingerprint", "found_fingerprint", "proof"].iter().any(|it| text(row, it) == own)
        };
        let rows = rows_of(report.get("clients")).iter().cloned().chain(admitted).filter(is_own);
        for mut row in rows {
            let named = |kind: &str, sources: &str| {
                let mut sources = rows_of(status.get(sources)).iter().cloned();
                sources.find(|it| text(it, "name") == text(&row, kind))
            };
            let source = named("list", "lists");
            let source = source.or_else(|| named("filter", "filters"));
            let loaded = source.as_ref().and_then(|it| number(it, "loaded"));
            // A list that was replaced after the eviction has a later time.
            let seconds =
                number(&row, "evicted").zip(loaded).and_then(|(end, start)| end.checked_sub(start));
            if let Some(row) = row.as_object_mut() {
                row.insert("instance".to_owned(), json!(instance));
                row.insert("source".to_owned(), json!(source));
                row.insert("seconds_to_eviction".to_owned(), json!(seconds));
            }
            self.clients.push(row);
        }
        Ok(json!({ "host": text(&status, "host"), "version": text(&status, "version") }))
    }

    /// Moves certificates out of the rows into files, which the rows then name.
    fn take_certificates(&mut self) {
        let mut names = BTreeMap::new();
        for row in &mut self.clients {
            let decoded = |it: &Value| BASE64.decode(it.as_str()?.as_bytes()).ok();
            let chain: Vec<_> = rows_of(row.get("chain")).iter().filter_map(decoded).collect();
            let mut keys: Vec<_> = row.get("spki").and_then(decoded).into_iter().collect();
            let of_chain = chain.iter().filter_map(|it| spki::of_certificate(it).ok());
            keys.extend(of_chain.map(<[u8]>::to_vec));
            let own = keys.into_iter().find(|spki| Fingerprint::of(spki) == self.fingerprint);
            self.spki = own.or(self.spki.take());
            let mut files = Vec::new();
            for der in chain {
                let number = names.len() + 1;
                if number <= MAX_CERTIFICATES || names.contains_key(&der) {
                    let name = names.entry(der);
                    files.push(name.or_insert_with(|| format!("certificate-{number}.pem")).clone());
                }
            }
            if let Some(row) = row.as_object_mut() {
                row.insert("chain".to_owned(), json!(files));
            }
        }
        self.files.extend(names.into_iter().map(|(der, name)| (name, pem("CERTIFICATE", &der))));
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
            let found = proof_files(directory, &fingerprint).filter_map(Result::ok);
            let proofs = found
                .filter(|(_, body)| keygate_core::proof::verify_with_rsa_1024(body, &spki).is_ok());
            self.files.extend(proofs.map(|(_, body)| (proof::file_name(fingerprint), body)));
        }
    }

    fn write(mut self, directory: &Path) -> Result<(), CliError> {
        if self.clients.is_empty() && self.files.is_empty() {
            return Err(CliError::Operation(format!(
                "no proxy knows the key {}",
                self.fingerprint
            )));
        }
        if let Some(spki) = &self.spki {
            self.files.insert("key.pem".to_owned(), pem("PUBLIC KEY", spki));
        }
        let all = |name| self.clients.iter().filter_map(move |row| number(row, name));
        let json = json!({
            "algorithm": self.spki.as_deref().map(|spki| Algorithm::of(spki).to_string()),
            "clients": self.clients,
            "count": all("count").sum::<u64>(),
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
        Ok(())
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

fn rows_of(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name)?.as_u64()
}

fn fingerprint(text: &str) -> Result<Fingerprint, String> {
    let problem = "not the SHA-256 of a key, in hex or base64; `keygate key` prints it";
    Fingerprint::parse(text).ok_or_else(|| problem.to_owned())
}

fn address(text: &str) -> Result<ListenAddress, String> {
    let unix = text.strip_prefix("unix:").map(|path| ListenAddress::Unix(path.into()));
    let address = unix.or_else(|| text.parse().map(ListenAddress::Tcp).ok());
    address.ok_or_else(|| "not an address; write 10.0.0.1:9464 or unix:/PATH".to_owned())
}
