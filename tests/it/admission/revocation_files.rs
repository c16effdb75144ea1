//! The content of files with revocation lists: PEM, DER, and text around them.
//!
//! Guards: `CrlLoader` in `crates/core/src/tls/crls/loader.rs`.

use std::fs::{read_to_string, write};

use super::revocation::{A_DAY, configuration, scene, validate, validation_fails};
use crate::support::keygate::keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, shell, write_filter};

#[test]
fn a_list_under_another_label_is_an_error() {
    let scene = scene(A_DAY, "");
    let newer = scene.pki.signed_crl(&RevocationList::new(9, &[&scene.good])).pem().unwrap();
    for label in ["CERTIFICATE", "TRUSTED CERTIFICATE", "PRIVATE KEY", "X509 CRL OLD"] {
        let file = read_to_string(scene.pki.path("clients.crl")).unwrap();
        write(scene.pki.path("both.crl"), file + &newer.replace("X509 CRL", label)).unwrap();
        let config =
            configuration(&scene.origin, "").set("services.client_auth.crls", vec!["both.crl"]);
        write(scene.pki.path("other.toml"), config.text()).unwrap();
        let output = keygate(&["validate", scene.pki.path("other.toml").to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(3), "{label}: {}", output_text(&output));
        let problem = "may be a revocation list";
        assert!(output_text(&output).contains(problem), "{label}: {}", output_text(&output));
    }
}

#[test]
fn an_unusable_revocation_list_at_the_start_is_named() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let config = pki.path("keygate.toml");
    std::fs::write(&config, configuration(&origin, "").text()).unwrap();
    for (content, problem) in [
        (None, "client_auth.crls"),
        (Some(&b"no list"[..]), "there is no revocation list in it"),
        (Some(b"0\x03\x02\x01\x01"), "the list at position 1 cannot be used"),
    ] {
        if let Some(content) = content {
            std::fs::write(pki.path("clients.crl"), content).unwrap();
        }
        validation_fails(&pki, problem);
    }
}

#[test]
fn a_list_that_the_reader_of_pem_skips_is_an_error() {
    let scene = scene(A_DAY, "");
    let all = [&scene.good, &scene.revoked];
    let older = scene.pem(&RevocationList::new(2, &[]));
    let newer = scene.pem(&RevocationList::new(3, &all));
    for (index, (end, begin)) in [("", ""), ("\n", "\u{feff}"), ("\n", " ")].iter().enumerate() {
        // The older list alone would admit a client that the newer one revokes.
        scene.publish([&older.repeat(index), older.trim_end(), end, begin, &newer].concat());
        let problem =
            format!("{} revocation lists begin in it, and {} can be read", index + 2, index + 1);
        scene.is_rejected("encoding", &problem);
    }
    // Editors on Windows write a byte order mark.
    scene.publish(format!("\u{feff}{newer}"));
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.good, "certificate revoked");
}

#[test]
fn a_list_outside_of_the_pem_sections_is_an_error() {
    let scene = scene(A_DAY, "");
    let all = [&scene.good, &scene.revoked];
    let older = scene.pem(&RevocationList::new(2, &[]));
    let newer = scene.pki.signed_crl(&RevocationList::new(3, &all));
    let pem = newer.pem().unwrap();
    let base64: Vec<_> = pem.lines().filter(|line| !line.starts_with('-')).collect();
    // The older list alone would admit a client that the newer one revokes.
    scene.publish([older.as_bytes(), newer.der()].concat());
    scene.is_rejected("encoding", "binary data outside of the PEM sections");
    scene.publish(older + &base64.join("\n"));
    scene.is_rejected("encoding", "base64 outside of the PEM sections");
    // OpenSSL writes the list as text before the section.
    write(scene.pki.path("next.pem"), pem).unwrap();
    let text = shell(scene.pki.directory(), "openssl crl -text -in next.pem");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("Certificate Revocation List (CRL):"), "{text}");
    scene.publish(text);
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.good, "certificate revoked");
}

#[test]
fn lists_made_by_openssl_are_accepted_in_pem_and_der_for_every_type_of_key() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let kinds =
        ["RSA -pkeyopt rsa_keygen_bits:2048", "EC -pkeyopt ec_paramgen_curve:P-384", "ED25519"];
    let commands = r#"
openssl genpkey -algorithm $KIND -out crl-ca.key
openssl req -x509 -new -key crl-ca.key -subj "/O=Example/CN=List CA" -days 2 -out crl-ca.pem \
  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
printf 'R\t991231235959Z\t260101000000Z,keyCompromise\t2A\tunknown\t/CN=x\n' > index.txt
echo 1000 > crlnumber
cat > ca.cnf <<'END'
[ca]
default_ca = it
[it]
database = index.txt
crlnumber = crlnumber
default_md = default
default_crl_days = 1
crl_extensions = extensions
[extensions]
authorityKeyIdentifier = keyid:always
END
openssl ca -gencrl -config ca.cnf -keyfile crl-ca.key -cert crl-ca.pem -out clients.crl
openssl crl -in clients.crl -outform DER -out clients.der
cat ca.pem crl-ca.pem > both.pem
"#;
    for kind in kinds {
        let made = shell(pki.directory(), &commands.replace("$KIND", kind));
        assert!(made.status.success(), "{kind}: {}", output_text(&made));
        for file in ["clients.crl", "clients.der"] {
            let config = Configuration::new(origin.address())
                .client_auth(&format!("trust_anchors = \"both.pem\", crls = [{file:?}]"));
            write(pki.path("keygate.toml"), config.text()).unwrap();
            let output = validate(&pki);
            let text = output_text(&output);
            assert!(output.status.success(), "{kind}, {file}: {text}");
            assert!(
                text.contains("revocation list of CN=List CA,O=Example, CRL number 4096, 1 entry"),
                "{text}"
            );
        }
    }
}
