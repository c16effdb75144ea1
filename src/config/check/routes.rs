//! Checks that each connection has one service.

use std::collections::HashSet;

use super::Checker;
use crate::config::ServiceConfig;

impl Checker<'_> {
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
