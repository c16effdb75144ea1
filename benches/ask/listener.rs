//! The protocols, and keygate with one of them.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use clap::ValueEnum;

use super::grpc::GrpcPeer;
use super::harness;
use super::harness::cores::{PROXY_CORE, on_core};
use super::http::HttpPeer;
use super::peer::Peer;
use super::spop::SpopPeer;
use super::support::authorizer::{Authorizer, RunningAuthorizer};
use super::support::proxy::Configure;
use super::support::webhook;

/// A protocol of an authorizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// HTTP/1.1, as nginx asks.
    Http,
    /// Envoy's gRPC service.
    ExtAuthz,
    /// HAProxy's SPOP.
    Spop,
    /// A webhook of step-ca about an X.509 certificate.
    StepCa,
    /// An admission webhook about a CertificateSigningRequest, whose signature is verified.
    Admission,
}

impl Protocol {
    pub const ALL: [Self; 5] =
        [Self::Http, Self::ExtAuthz, Self::Spop, Self::StepCa, Self::Admission];

    /// Connections, and questions under way on each. A host sends one question at a time over
    /// HTTP/1.1, and many over the others.
    pub fn shape(self) -> (usize, usize) {
        match self {
            Self::Admission | Self::Http | Self::StepCa => (64, 1),
            Self::ExtAuthz => (4, 32),
            Self::Spop => (4, 64),
        }
    }
}

impl Protocol {
    /// Whether there is a variant with `client_auth`.
    pub fn verifies(self) -> bool {
        !matches!(self, Self::Admission | Self::StepCa)
    }
}

/// Its value in a configuration.
impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Http => "http",
            Self::ExtAuthz => "ext-authz",
            Self::Spop => "spop",
            Self::StepCa => "step-ca",
            Self::Admission => "admission",
        })
    }
}

/// keygate with one worker and a configuration of `deploy/authorizer`.
pub struct AskListener {
    pub protocol: Protocol,
    pub keygate: RunningAuthorizer,
    /// Whether it verifies the client's chain.
    verifies: bool,
    /// The last revision of the filter.
    revision: u32,
}

impl AskListener {
    /// Starts keygate on the core of proxies. With `verifies`, it verifies the client's chain, too.
    pub fn open(protocol: Protocol, verifies: bool) -> Self {
        let authorizer = match protocol {
            Protocol::Http => Authorizer::of("nginx"),
            Protocol::ExtAuthz => Authorizer::of("envoy"),
            Protocol::Spop => Authorizer::of("haproxy"),
            Protocol::Admission | Protocol::StepCa => webhook::deployed(&protocol.to_string()),
        };
        let command = on_core(PROXY_CORE, harness::keygate());
        let mut authorizer = authorizer.workers(1).run_by(command);
        if verifies {
            authorizer = authorizer.add("authorizers.client_auth", "trust_anchors = \"ca.pem\"");
        }
        harness::write_half_full_filter(&authorizer.pki.path("lost.pkbf"), 1);
        Self { protocol, keygate: authorizer.start(), verifies, revision: 1 }
    }

    /// A new connection of the host.
    pub fn connect(&self) -> (UnixStream, Box<dyn Peer>) {
        let client = &self.keygate.good;
        let mut stream = UnixStream::connect(self.keygate.socket()).unwrap();
        let mut peer: Box<dyn Peer> = match self.protocol {
            Protocol::Http => Box::new(HttpPeer::about(client)),
            Protocol::ExtAuthz => Box::new(GrpcPeer::about(client)),
            Protocol::Spop => Box::new(SpopPeer::about(client)),
            Protocol::StepCa => Box::new(HttpPeer::of_step_ca(client)),
            Protocol::Admission => Box::new(HttpPeer::of_api_server(client)),
        };
        peer.greet(&mut stream);
        (stream, peer)
    }

    /// Writes `count` further revisions of the filter.
    pub fn revisions(&mut self, count: u32) -> Vec<Revision> {
        let pki = &self.keygate.pki;
        let write = |revision| {
            let written = pki.path(&format!("{revision}.pkbf"));
            harness::write_half_full_filter(&written, revision);
            Revision { written, used: pki.path("lost.pkbf") }
        };
        let revisions = (self.revision + 1..).take(count as usize).map(write).collect();
        self.revision += count;
        revisions
    }

    /// Waits until keygate uses the last revision.
    pub fn wait_for_revision(&self) {
        if self.revision > 1 {
            self.keygate.wait_for_generation(self.revision.into());
        }
    }

    /// The number of questions to which keygate has answered "allowed".
    pub fn allowed(&self) -> f64 {
        self.keygate.metric(r#"keygate_questions_total{result="allowed",service="edge"}"#)
    }
}

impl fmt::Display for AskListener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variant = if self.verifies { ", client_auth" } else { "" };
        write!(formatter, "{}{variant}", self.protocol)
    }
}

/// A revision of the filter that is written beside the one in use.
pub struct Revision {
    written: PathBuf,
    used: PathBuf,
}

impl Revision {
    /// Replaces the filter in use.
    pub fn put(&self) {
        std::fs::rename(&self.written, &self.used).unwrap();
    }
}
