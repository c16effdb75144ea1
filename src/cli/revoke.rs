//! `keygate revoke`: lets an ACME server revoke a certificate whose private key is at hand.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueHint;
use data_encoding::BASE64URL_NOPAD;
use keygate_core::jws::SigningKey;
use keygate_core::printable::printable;
use keygate_core::spki::{self, Fingerprint, for_each_point_form};
use keygate_core::tls::CertificateSummary;
use serde_json::json;

use super::duration::parse_duration;
use super::input::certificates_in;
use super::{CliError, Exit, print, proof, resolver, runtime};
use crate::config::{FetchConfig, SourceUrl};
use crate::fetch;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The certificate (PEM or DER); the first one in the file.
    #[arg(value_name = "CERTIFICATE", value_hint = ValueHint::FilePath)]
    certificate: PathBuf,
    /// The private key of the certificate, not encrypted (PEM or DER), '-' for standard input.
    #[arg(long, value_name = "KEY", value_hint = ValueHint::FilePath)]
    key: PathBuf,
    /// URL of the directory of the CA's ACME server: https://, or http:// to loopback.
    #[arg(long, value_name = "URL", value_parser = acme_url, value_hint = ValueHint::Url)]
    acme: SourceUrl,
    /// CAs that may issue the certificate of the server (PEM). Default: the CAs of the system.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trust_anchors: Option<PathBuf>,
    /// HTTP proxy, http://HOST:PORT. Variables such as https_proxy are not read.
    #[arg(long, value_name = "URL", value_parser = proxy_url, value_hint = ValueHint::Url)]
    proxy: Option<SourceUrl>,
    /// Maximum time for each of the requests.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// Send the request. A revocation cannot be undone.
    #[arg(long)]
    yes: bool,
}

/// `keyCompromise` (RFC 5280, section 5.3.1).
const KEY_COMPROMISE: u8 = 1;

/// CAs and what they make of the request. Sources: `docs/after-a-hit.md`.
const CAS: &str = "\
Let's Encrypt takes the request as proof, blocks the key and revokes all its certificates.
step-ca and other servers of RFC 8555 revoke this certificate.
DigiCert takes a certificate request that the key signed: see `keygate evidence --key`.";

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let certificate = certificates_in(&args.certificate)?.into_iter().next();
    let none = || CliError::file(&args.certificate, "no certificate; give one in PEM or DER");
    let certificate = certificate.ok_or_else(none)?;
    let content = proof::read(&args.key)?;
    let key = proof::private_key(&args.key, &content)?;
    let failed = |error| CliError::file(&args.key, error);
    let signer = SigningKey::new(key.secret_der()).map_err(failed)?;
    let of_certificate = spki::of_certificate(&certificate).unwrap_or_default();
    let mut is_own = false;
    for_each_point_form(&signer.spki, |spki| is_own |= spki == of_certificate);
    if !is_own {
        let [own, other] = [&signer.spki, of_certificate].map(Fingerprint::of);
        let path = args.certificate.display();
        let problem = format!("it has the fingerprint {own}, and the key in {path} has {other}");
        return Err(CliError::file(&args.key, problem + "; give the key of the certificate"));
    }
    let config = FetchConfig {
        proxy: args.proxy.clone(),
        timeout: args.timeout,
        trust_anchors: args.trust_anchors.clone(),
        ..FetchConfig::at(args.acme.clone())
    };
    let CertificateSummary { subject, issuer, serial, fingerprint, .. } =
        CertificateSummary::new(&certificate);
    print(format_args!("certificate of {}, serial {serial}", printable(&subject)))?;
    print(format_args!("issued by {}", printable(&issuer)))?;
    print(format_args!("key {fingerprint}, signs with {}", signer.algorithm))?;
    let encoded = BASE64URL_NOPAD.encode(&certificate);
    let payload = json!({ "certificate": encoded, "reason": KEY_COMPROMISE });
    if !args.yes {
        print(format_args!("POST to revokeCert of {}: {payload}\n{CAS}", config.url))?;
        print("nothing was sent; --yes sends the request, and a revocation cannot be undone")?;
        return Ok(Exit::Done);
    }
    let sent = runtime()?.block_on(fetch::revoke(&config, resolver()?, &signer, &payload));
    sent.map_err(|error| CliError::Operation(printable(&error.to_string())))?;
    print("revoked, with the reason keyCompromise").map(|()| Exit::Done)
}

fn acme_url(text: &str) -> Result<SourceUrl, &'static str> {
    let url = SourceUrl::parse_file(text).filter(SourceUrl::is_authenticated);
    url.ok_or("not a URL with TLS; write https://HOST/DIRECTORY")
}

fn proxy_url(text: &str) -> Result<SourceUrl, &'static str> {
    let url = SourceUrl::parse(text).filter(|url| !url.is_secure && url.path.is_empty());
    url.ok_or("not an HTTP proxy; write http://HOST:PORT")
}
