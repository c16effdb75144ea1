//! keygate as the authorizer of another proxy, with a configuration of `deploy/authorizer`.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;

use toml::Table;

use super::keygate::{BINARY, Keygate};
use super::keys::written;
use super::origin::Origin;
use super::pki::{Kind, Party, Pki};
use super::proxy::Configure;
use super::write_filter;

/// An authorizer before its start: certificates, a filter, the upstream of the host.
pub struct Authorizer {
    pub pki: Pki,
    /// A client whose key is in no filter.
    pub good: Party,
    /// A client whose key is in the filter, unless the test has written `lost.pkbf` itself.
    pub lost: Party,
    pub origin: Origin,
    configuration: Table,
    /// The command that starts keygate.
    command: Command,
}

impl Configure for Authorizer {
    fn table(&mut self) -> &mut Table {
        &mut self.configuration
    }
}

impl Authorizer {
    /// With `deploy/authorizer/HOST/keygate.toml`, in which addresses and paths are replaced.
    pub fn of(host: &str) -> Self {
        let pki = Pki::new();
        let [good, lost] = ["good", "lost"].map(|name| pki.client(name, Kind::P256));
        let page = match host {
            "admission" => "deploy/kubernetes/admission/keygate.toml".to_owned(),
            host => format!("deploy/authorizer/{host}/keygate.toml"),
        };
        let configuration: Table = std::fs::read_to_string(page).unwrap().parse().unwrap();
        let socket = pki.path("ask.sock");
        let verifies = configuration["authorizers"][0].get("client_auth").is_some();
        let command = Command::new(BINARY);
        let authorizer = Self { pki, good, lost, origin: Origin::start(), configuration, command }
            .set("admin.listen", "127.0.0.1:0")
            .set("filters.path", "lost.pkbf")
            .set("filters.name", "lost")
            .set("authorizers.listen", format!("unix:{}", socket.display()))
            .global("shutdown = { readiness_delay = \"0s\", drain_timeout = \"30s\" }");
        if verifies {
            authorizer.set("authorizers.client_auth.trust_anchors", "ca.pem")
        } else {
            authorizer
        }
    }

    /// Settings of the table `[authorizers.policy]`.
    pub fn asked_policy(self, settings: &str) -> Self {
        self.add("authorizers.policy", settings)
    }

    /// Starts keygate with another command, to which the arguments are added.
    pub fn run_by(mut self, command: Command) -> Self {
        self.command = command;
        self
    }

    /// Starts keygate and waits until it is ready.
    pub fn start(self) -> RunningAuthorizer {
        let Self { pki, good, lost, origin, configuration, command } = self;
        let filter = pki.path("lost.pkbf");
        if !filter.exists() {
            write_filter(&filter, &[&lost.spki]);
        }
        let keygate = Keygate::run_by(command, &pki, &written(&configuration));
        RunningAuthorizer { pki, good, lost, origin, configuration, keygate }
    }
}

/// A running authorizer; ends with the test.
pub struct RunningAuthorizer {
    pub pki: Pki,
    pub good: Party,
    pub lost: Party,
    /// The upstream of the host.
    pub origin: Origin,
    pub configuration: Table,
    pub keygate: Keygate,
}

impl Deref for RunningAuthorizer {
    type Target = Keygate;

    fn deref(&self) -> &Keygate {
        &self.keygate
    }
}

impl RunningAuthorizer {
    /// The socket that hosts connect to.
    pub fn socket(&self) -> PathBuf {
        self.pki.path("ask.sock")
    }

    /// Starts keygate again, after it has ended.
    pub fn restart(&mut self) {
        self.keygate = Keygate::configured(&self.pki, &written(&self.configuration));
    }
}
