//! Checks that each connection has one service.

use std::collections::HashSet;
use std::net::SocketAddr;

use super::Checker;
use crate::config::{ListenAddress, ServiceConfig};

impl Checker<'_> {
    /// Checks that no service has the address of the admin server.
    pub(super) fn admin_address(&self, admin: &ListenAddress, services: &[ServiceConfig]) {
        let ListenAddress::Tcp(admin) = admin else { return };
        if let Some(service) = services.iter().find(|it| overlap(*admin, it.listen)) {
            let problem = format!(
                "{admin}: service {:?} listens on {} too; give the admin server a port of its own",
                service.name, service.listen
            );
            self.conflict("admin.listen", problem);
        }
    }

    /// Checks that services on one address have distinct names, by which connections are routed.
    pub(super) fn routes(&self, services: &[ServiceConfig]) {
        let mut taken = HashSet::new();
        for (index, service) in services.iter().enumerate() {
            let path = |key: &str| format!("services[{index}].{key}");
            // The PROXY header precedes the ClientHello with the name.
            let mut others = services.iter().filter(|other| other.listen == service.listen);
            if let Some(other) = others.find(|other| other.accept_proxy != service.accept_proxy) {
                let problem = format!(
                    "differs from that of service {:?} on the same address; write the same networks for both, or give one of them another address",
                    other.name
                );
                self.conflict(path("accept_proxy"), problem);
            }
            if service.server_names.is_empty() && !taken.insert((service.listen, "")) {
                let problem = format!(
                    "another service is already the default of {}; give the host names of this one",
                    service.listen
                );
                self.conflict(path("server_names"), problem);
            }
            for name in &service.server_names {
                if !taken.insert((service.listen, name)) {
                    let problem = format!(
                        "{name:?} occurs twice for the address {}; remove one of the two",
                        service.listen
                    );
                    self.conflict(path("server_names"), problem);
                }
            }
        }
    }
}

/// Whether only one socket can listen on both addresses. Sockets of services for `[::]` take no
/// IPv4 connections.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (ip, other_ip) = (one.ip(), other.ip());
    let is_same_family = ip.is_ipv4() == other_ip.is_ipv4();
    let is_any = is_same_family && (ip.is_unspecified() || other_ip.is_unspecified());
    // Port 0 is another port for each socket.
    one.port() != 0 && one.port() == other.port() && (is_any || ip == other_ip)
}
