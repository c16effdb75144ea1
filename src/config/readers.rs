//! The model of the address for readers: monitoring reads there, and no command is taken.

use std::path::PathBuf;

use keygate_core::tls::{ServerSettings, TlsVersion};

use super::input::Input;
use super::keys::table;
use super::{AdminConfig, KeyPlace, ListenAddress, SocketGroup};

table! {
    /// The address for readers.
    #[derive(Clone, PartialEq, Eq)]
    pub struct ReadersConfig "A second address with the paths of `admin.listen`, for [monitoring](operations.md#address-for-readers). It takes no command: they get 403. Off unless the table is there.", check {
        pub listen: ListenAddress => Restart
            r#"Address with a port, which needs `tls`, or `"unix:/PATH"`. The socket has the mode 0660. No service, no authorizer and not `admin.listen` has the address."#,
        pub socket_group: Option<SocketGroup> => Restart
            "Group of the Unix socket, as a name in `/etc/group` or as a number: its members may read. keygate must be a member of it.",
        /// TLS towards readers; a TCP address has it.
        pub tls: Option<ReadersTls>,
    }
}

table! {
    /// TLS towards readers.
    #[derive(Clone, PartialEq, Eq)]
    pub struct ReadersTls "Required for a TCP address. The label `service` of its metrics is `[admin.readers]`." {
        pub certificate: PathBuf => NewConnections
            "PEM of the certificate chain, leaf first.",
        pub private_key: PathBuf => NewConnections
            "PEM of the key: PKCS#8, PKCS#1 or SEC1.",
        pub client_ca: PathBuf => NewConnections
            "PEM: the CAs of the readers. Each reader must present a certificate, whose key is judged as well: a reader with a compromised key is rejected, whatever the policy.",
    }
}

impl AdminConfig {
    /// The key of the admin address.
    pub(crate) const LISTEN: &'static str = "admin.listen";
    /// The key of the address for readers.
    pub(crate) const READERS: &'static str = "admin.readers.listen";

    /// The admin address and the address for readers, each with its key.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (&ListenAddress, KeyPlace)> {
        let readers = self.readers.iter().map(|it| (&it.listen, Self::READERS));
        let all = readers.chain([(&self.listen, Self::LISTEN)]);
        all.map(|(address, key)| (address, KeyPlace::new(key)))
    }
}

impl ReadersConfig {
    /// The settings of the socket, without the files for TLS, which are read again.
    pub(super) fn socket(&self) -> impl PartialEq + use<'_> {
        (&self.listen, &self.socket_group, self.tls.is_some())
    }

    /// Checks that the peers that may read are named.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        let ListenAddress::Tcp(_) = self.listen else { return };
        if self.tls.is_none() {
            let problem = "the table is missing, so every peer could read; add certificate, private_key and client_ca, or set listen = \"unix:/path\"";
            input.report_at("tls", problem);
        }
        if self.socket_group.is_some() {
            let problem = "is of a Unix socket; remove it, or set listen = \"unix:/path\"";
            input.report_at("socket_group", problem);
        }
    }
}

impl ReadersTls {
    /// The name of the table among the names of services, in which no name has brackets.
    pub(crate) const NAME: &'static str = "[admin.readers]";
    /// The offers to readers.
    pub(crate) const SETTINGS: ServerSettings<'static> = ServerSettings {
        min_version: TlsVersion::V1_2,
        alpn: &[],
        key_exchange: &[],
        resumption: false,
    };
}
