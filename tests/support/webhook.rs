//! A CA or a cluster that asks an authorizer before a key gets a certificate.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_lc_rs::hmac;
use data_encoding::{BASE64, HEXLOWER};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};

use super::asker::{AskedKeygate, Asker, HttpReply, configuration};
use super::authorizer::Authorizer;
use super::pki::{Party, Pki};
use super::proxy::Configure;

/// The id and the secret of the webhook of a test.
pub const ID: &str = "7d3c64dc-ec0e-4a0f-a489-241650554bd7";
pub const SECRET: &[u8] = b"sixty-four bytes, as many as step-ca draws for a signing secret.";

/// The configuration of keygate for step-ca. `edge` is the table without name and protocol.
pub fn step_ca_configuration(edge: &str) -> String {
    let webhook = format!("webhooks = [{{ id = {ID:?}, secret = \"webhook.secret\" }}]\n");
    with_protocol("step-ca", &format!("{webhook}{edge}"))
}

/// The configuration of keygate for another protocol than `http`.
pub fn with_protocol(protocol: &str, edge: &str) -> String {
    let http =
        "protocol = \"http\"\ncertificate_from = \"client-cert\"\naddress_from = \"X-Real-IP\"\n";
    let text = configuration(edge);
    assert!(text.contains(http));
    text.replace(http, &format!("protocol = {protocol:?}\n"))
}

/// keygate as the webhook of a step-ca, with this table.
pub fn step_ca(edge: &str) -> AskedKeygate {
    let pki = Pki::new();
    write_secret(&pki.path("webhook.secret"), SECRET);
    AskedKeygate::configured(pki, &step_ca_configuration(edge))
}

/// keygate as an admission webhook, with this table.
pub fn admission(edge: &str) -> AskedKeygate {
    AskedKeygate::configured(Pki::new(), &with_protocol("admission", edge))
}

/// keygate with the configuration that is deployed for a webhook of `protocol`, on a Unix socket.
pub fn deployed(protocol: &str) -> Authorizer {
    let authorizer = Authorizer::of(protocol).set("authorizers.name", "edge");
    let authorizer = authorizer.unset("authorizers.tls");
    if protocol == "admission" {
        let authorizer = authorizer.unset("authorizers.askers").unset("authorizers.policy");
        return authorizer.unset("filters.source").unset("state").unset("sandbox");
    }
    let secret = authorizer.pki.path("webhook.secret");
    write_secret(&secret, SECRET);
    let webhook = format!("webhooks = [{{ id = {ID:?}, secret = {secret:?} }}]");
    let webhooks = webhook.parse::<toml::Table>().unwrap().remove("webhooks").unwrap();
    authorizer.set("authorizers.webhooks", webhooks)
}

/// Writes a secret as step-ca prints it.
pub fn write_secret(path: &Path, secret: &[u8]) {
    std::fs::write(path, format!("{}\n", BASE64.encode(secret))).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// HMAC-SHA256 of `body` in hex.
pub fn signature(secret: &[u8], body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    HEXLOWER.encode(hmac::sign(&key, body.as_bytes()).as_ref())
}

/// A POST with these fields and this body.
pub fn post(fields: &[(&str, &str)], body: &str) -> String {
    let fields = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    format!(
        "POST /any HTTP/1.1\r\nHost: keygate\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n{body}",
        fields.collect::<String>(),
        body.len()
    )
}

/// A question of step-ca with this body, which it has signed.
pub fn signed(body: &str) -> String {
    let signature = signature(SECRET, body);
    post(&[("X-Smallstep-Signature", &signature), ("X-Smallstep-Webhook-ID", ID)], body)
}

/// Whether step-ca would issue a certificate: status below 400, and `allow` is `true` in a JSON
/// object (`DoWithContext` in `authority/provisioner/webhook.go`).
pub fn is_issued(reply: &HttpReply) -> bool {
    let allow = || serde_json::from_str::<Value>(&reply.body).ok()?.get("allow")?.as_bool();
    reply.status < 400 && allow() == Some(true)
}

/// The message of a denial by step-ca's webhook.
pub fn message(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["allow"], false, "{body}");
    body["error"]["message"].as_str().unwrap().to_owned()
}

/// The message to the author of an object that is not stored.
pub fn denial(reply: &HttpReply) -> String {
    let body: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!((reply.status, &body["response"]["allowed"]), (200, &json!(false)), "{body}");
    assert_eq!(body["response"]["uid"], UID);
    body["response"]["status"]["message"].as_str().unwrap().to_owned()
}

/// Whether the API server would store the object: status 200, and the response of a review with this
/// uid says `allowed`.
pub fn is_stored(reply: &HttpReply, uid: &str) -> bool {
    let response = || serde_json::from_str::<Value>(&reply.body).ok()?.get("response").cloned();
    let response = response().unwrap_or_default();
    reply.status == 200 && response["uid"] == uid && response["allowed"] == true
}

/// A request for a certificate in DER, signed with the key of `party`.
pub fn request_of(party: &Party) -> Vec<u8> {
    let key = KeyPair::from_pem(&std::fs::read_to_string(&party.private_key).unwrap()).unwrap();
    let mut parameters = CertificateParams::new(["a.example".to_owned()]).unwrap();
    parameters.distinguished_name.push(DnType::CommonName, "applicant");
    parameters.serialize_request(&key).unwrap().der().to_vec()
}

/// PEM with this label.
pub fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64.encode(der))
}

/// The body of step-ca for a certificate, by the tags of `webhook.RequestBody`,
/// `webhook.X509Certificate` and `x509util.Certificate`.
pub fn x509_certificate(spki: &[u8]) -> Value {
    json!({
        "timestamp": "2026-11-29T01:02:03.456789Z",
        "x509Certificate": {
            "version": 0,
            "subject": { "commonName": "applicant" },
            "rawSubject": null,
            "sans": [{ "type": "dns", "value": "a.example" }],
            "dnsNames": ["a.example"],
            "emailAddresses": null,
            "ipAddresses": null,
            "uris": null,
            "extensions": null,
            "keyUsage": ["digitalSignature"],
            "extKeyUsage": ["serverAuth", "clientAuth"],
            "serialNumber": "",
            "publicKey": BASE64.encode(spki),
            "publicKeyAlgorithm": "ECDSA",
            "notBefore": "2026-11-29T01:01:03Z",
            "notAfter": "2026-11-30T01:02:03Z",
            "raw": null,
        },
    })
}

/// The body for a request, by the tags of `webhook.X509CertificateRequest`.
pub fn x509_request(request: &[u8], spki: &[u8]) -> Value {
    json!({
        "timestamp": "2026-11-29T01:02:03.456789Z",
        "x509CertificateRequest": {
            "version": 0,
            "subject": { "commonName": "applicant" },
            "dnsNames": ["a.example"],
            "publicKey": BASE64.encode(spki),
            "publicKeyAlgorithm": "ECDSA",
            "raw": BASE64.encode(request),
        },
    })
}

/// The body for an SSH certificate, by the tags of `webhook.SSHCertificate` and
/// `sshutil.Certificate`. `key` is the line of a `.pub` file.
pub fn ssh_certificate(key: &str) -> Value {
    json!({
        "timestamp": "2026-11-29T01:02:03.456789Z",
        "sshCertificate": {
            "nonce": null,
            "serial": 0,
            "type": "user",
            "keyId": "applicant",
            "principals": ["applicant"],
            "validAfter": 1_795_910_523_u64,
            "validBefore": 1_795_967_523_u64,
            "criticalOptions": null,
            "extensions": { "permit-pty": "" },
            "reserved": null,
            "publicKey": key.split_whitespace().nth(1).unwrap(),
            "signatureKey": null,
        },
    })
}

/// A review by the tags of `AdmissionReview` and `AdmissionRequest` of `admission.k8s.io/v1`.
pub fn review(resource: (&str, &str), operation: &str, object: Value) -> Value {
    let (group, resource) = resource;
    json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": UID,
            "kind": { "group": group, "version": "v1", "kind": "Any" },
            "resource": { "group": group, "version": "v1", "resource": resource },
            "requestKind": { "group": group, "version": "v1", "kind": "Any" },
            "requestResource": { "group": group, "version": "v1", "resource": resource },
            "name": "web",
            "namespace": "shop",
            "operation": operation,
            "userInfo": { "username": "alice", "groups": ["system:authenticated"] },
            "object": object,
            "oldObject": null,
            "dryRun": false,
            "options": { "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" },
        },
    })
}

pub const UID: &str = "0df28fbd-5f5f-11e8-bc74-36e6bb280816";
pub const CSR: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests");
pub const CERTIFICATE_REQUEST: (&str, &str) = ("cert-manager.io", "certificaterequests");
pub const SECRET_RESOURCE: (&str, &str) = ("", "secrets");

/// An object whose `spec.request` is this request.
pub fn with_request(request: &[u8]) -> Value {
    let request = BASE64.encode(pem("CERTIFICATE REQUEST", request).as_bytes());
    json!({
        "metadata": { "name": "web", "creationTimestamp": null },
        "spec": { "request": request, "signerName": "example.org/clients", "usages": ["client auth"] },
        "status": {},
    })
}

/// A Secret with these entries.
pub fn secret(kind: &str, entries: &[(&str, &[u8])]) -> Value {
    let data =
        entries.iter().map(|(name, value)| ((*name).to_owned(), BASE64.encode(value).into()));
    let data: serde_json::Map<String, Value> = data.collect();
    json!({
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": { "name": "web", "namespace": "shop" },
        "type": kind,
        "data": data,
    })
}

/// Certificate and private key of a party, in PEM.
pub fn files(party: &Party) -> [Vec<u8>; 2] {
    [&party.certificate, &party.private_key].map(|path| std::fs::read(path).unwrap())
}

/// A Secret of the type `kubernetes.io/tls`.
pub fn tls_secret(certificate: &[u8], key: &[u8]) -> Value {
    secret("kubernetes.io/tls", &[("tls.crt", certificate), ("tls.key", key)])
}

impl Asker {
    /// Asks as step-ca does.
    pub fn ask_for_certificate(&mut self, body: &Value) -> HttpReply {
        self.exchange(&signed(&body.to_string())).expect("an answer")
    }

    /// Asks as the API server does.
    pub fn review(&mut self, review: &Value) -> HttpReply {
        self.exchange(&post(&[], &review.to_string())).expect("an answer")
    }
}
