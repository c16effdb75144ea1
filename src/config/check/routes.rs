//! Checks that each connection has one service or authorizer.

use std::collections::HashSet;
use std::net::SocketAddr;

use super::Input;
use crate::config::{AdminConfig, Config, ListenAddress};

/// Checks that services on one address have distinct names, by which connections are routed, and
/// that each authorizer and the admin server have an address of their own.
pub(super) fn check(input: &Input<'_>, config: &Config) {
    let (services, admin) = (&config.services, &config.admin.listen);
    let mut names = HashSet::new();
    for (index, service) in services.iter().enumerate() {
        let report = |key: &str, problem: String| {
            input.report_at(&format!("services[{index}].{key}"), problem);
        };
        let address = service.listen;
        // The PROXY header precedes the ClientHello with the name.
        let mut others = services.iter().filter(|other| other.listen == address);
        if let Some(other) = others.find(|other| other.accept_proxy != service.accept_proxy) {
            let problem = format!(
                "differs from service {:?} on the same address; write the same networks for both, or give one of them another address",
                other.name
            );
            report("accept_proxy", problem);
        }
        if service.server_names.is_empty() && !names.insert((address, "")) {
            let problem = format!(
                "another service is already the default of {address}; give the host names of this one"
            );
            report("server_names", problem);
        }
        for name in service.server_names.iter().filter(|name| !names.insert((address, name))) {
            let problem =
                format!("{name:?} occurs twice for the address {address}; remove one of the two");
            report("server_names", problem);
        }
    }
    if let ListenAddress::Tcp(admin) = admin
        && let Some(service) = services.iter().find(|it| overlap(*admin, it.listen))
    {
        let problem = format!(
            "{admin}: service {:?} listens on {} too; give the admin server a port of its own",
            service.name, service.listen
        );
        input.report_at("admin.listen", problem);
    }
    let services = services.iter().map(|service| ListenAddress::Tcp(service.listen));
    // Port 0 is another port for the admin server and for readers.
    let has_port = |it: &ListenAddress| !matches!(it, ListenAddress::Tcp(it) if it.port() == 0);
    let admin = Some(admin).filter(|it| has_port(it));
    let mut taken: HashSet<ListenAddress> = services.chain(admin.cloned()).collect();
    let authorizers = config.authorizers.iter().enumerate().map(|(index, it)| {
        (format!("authorizers[{index}].listen"), &it.listen, "authorizer an address of its own")
    });
    let readers = config.admin.readers.iter().map(|it| &it.listen).filter(|it| has_port(it));
    let readers =
        readers.map(|it| (AdminConfig::READERS.to_owned(), it, "readers an address of their own"));
    for (key, listen, owner) in authorizers.chain(readers) {
        let is_taken = taken.iter().any(|it| match (it, listen) {
            (ListenAddress::Tcp(one), ListenAddress::Tcp(other)) => overlap(*one, *other),
            _ => it == listen,
        });
        taken.insert(listen.clone());
        if is_taken {
            let problem = format!(
                "a service, another authorizer or the admin server listens on {listen} too; give the {owner}"
            );
            input.report_at(&key, problem);
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
