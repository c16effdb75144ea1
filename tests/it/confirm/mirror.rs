//! A mirror of proofs on a real server of static files.

use std::process::Command;

use crate::support::pki::Kind;
use crate::support::program::{Program, reserved_address};
use crate::support::proof_source::{canary, fingerprint, proof_of};
use crate::support::proxy::{Configure, Proxy};
use crate::support::{skip, write_filter};

/// The lines for nginx on the page about confirmation.
fn documented() -> &'static str {
    let page = include_str!("../../../docs/confirm.md");
    let (_, rest) = page.split_once("```nginx\n").unwrap();
    rest.split_once("```").unwrap().0
}

#[test]
fn nginx_as_documented_is_a_mirror_that_confirms_and_clears() {
    if skip::without("nginx") {
        return;
    }
    let proxy = Proxy::new();
    let proved = proxy.pki.client("proved", Kind::P256);
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki, &proved.spki]);
    let (proofs, address) = (proxy.pki.path("mirror"), reserved_address());
    std::fs::create_dir(&proofs).unwrap();
    // `keygate proof create` writes names with an extension, and other mirrors without.
    let names = [(canary(&proxy.pki), ".jws"), (proved, "")];
    for (party, extension) in &names {
        let name = format!("{}{extension}", fingerprint(party));
        std::fs::write(proofs.join(name), proof_of(party)).unwrap();
    }
    let location = documented().replace("/srv/proofs", proofs.to_str().unwrap());
    let text = format!(
        "daemon off; master_process off; pid nginx.pid; error_log error.log;\nevents {{}}\nhttp {{\n\
         access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f;\n\
         uwsgi_temp_path u; scgi_temp_path s;\nserver {{\nlisten {address};\n{location}}}\n}}\n"
    );
    std::fs::write(proxy.pki.path("nginx.conf"), text).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(proxy.pki.directory()).arg("-c").arg(proxy.pki.path("nginx.conf"));
    let _nginx = Program::start(&mut command).listening_on(address);
    let table = format!(
        "url = \"http://{address}\"\ncanary = \"canary.pem\"\nwait = \"1h\"\ntimeout = \"1h\"\n"
    );
    let proxy = proxy.add("confirm", &table).start();
    proxy.wait_for_status("the canary", |status| status["confirm"]["canary"] == "ok");
    proxy.admits(&proxy.lost);
    let [_, (proved, _)] = &names;
    assert_ne!(proxy.curl(proved, &[]).stdout, b"hello\n");
    proxy.revokes(proved); // in the handshake
    for result in ["confirmed", "cleared"] {
        let series = format!("keygate_confirmations_total{{result=\"{result}\"}}");
        proxy.wait_for_metric(&series, 1.0);
    }
}
