//! Checks the peers that may ask, and the permissions of a Unix socket.

use super::Checker;
use crate::config::units::quoted;
use crate::config::{AskersConfig, AuthorizerTls, ListenAddress, SocketGroup};

/// Default of `socket_mode`: the owner and the group may connect.
const SOCKET_MODE: u32 = 0o660;

impl Checker<'_> {
    pub(super) fn socket_owner(
        &self,
        path: &str,
        listen: &ListenAddress,
        mode: Option<&str>,
        group: Option<String>,
    ) -> (u32, Option<SocketGroup>) {
        if matches!(listen, ListenAddress::Tcp(_)) {
            for (key, is_set) in
                [("socket_mode", mode.is_some()), ("socket_group", group.is_some())]
            {
                if is_set {
                    let problem = "is of a Unix socket; remove it, or set listen = \"unix:/path\"";
                    self.conflict(format!("{path}.{key}"), problem);
                }
            }
        }
        let parse = |text: &str| u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        let mode = mode.map_or(SOCKET_MODE, |text| {
            parse(text).unwrap_or_else(|| {
                let problem = format!("{} is not a file mode, such as \"0660\"", quoted(text));
                self.invalid(format!("{path}.socket_mode"), problem);
                SOCKET_MODE
            })
        });
        let group = group.map(|group| match group.parse() {
            Ok(id) => SocketGroup::Id(id),
            Err(_) => {
                if group.is_empty() || group.contains([':', '\n', '\0']) {
                    let problem = format!(
                        "{} is not a group, such as \"www-data\" or \"33\"",
                        quoted(&group)
                    );
                    self.invalid(format!("{path}.socket_group"), problem);
                }
                SocketGroup::Name(group)
            }
        });
        (mode, group)
    }

    /// Checks that the peers that may ask are named.
    pub(super) fn who_may_ask(
        &self,
        path: &str,
        listen: &ListenAddress,
        askers: &AskersConfig,
        tls: Option<&AuthorizerTls>,
    ) {
        match listen {
            ListenAddress::Tcp(address) => {
                if !askers.uids.is_empty() {
                    let problem = "the kernel reports user ids for Unix sockets only; use askers.from or tls.client_ca, or listen on \"unix:/path\"";
                    self.conflict(format!("{path}.askers.uids"), problem);
                }
                let is_open =
                    askers.from.0.is_empty() && tls.is_none_or(|tls| tls.client_ca.is_none());
                if is_open && !address.ip().is_loopback() {
                    let problem = format!(
                        "{address} is not loopback, so every peer could ask about copied certificates; give tls.client_ca or askers.from"
                    );
                    self.conflict(format!("{path}.listen"), problem);
                }
            }
            ListenAddress::Unix(_) => {
                if !askers.from.0.is_empty() {
                    let problem = "a Unix socket has no networks; use askers.uids, socket_mode and socket_group";
                    self.conflict(format!("{path}.askers.from"), problem);
                }
                if tls.is_some() {
                    let problem = "a Unix socket needs no TLS; use askers.uids, socket_mode and socket_group, or listen on a TCP address";
                    self.conflict(format!("{path}.tls"), problem);
                }
            }
        }
    }
}
