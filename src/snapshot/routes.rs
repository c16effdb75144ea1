//! Selects a service by address and server name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;

use crate::config::ServiceConfig;

/// The ids of services by address and server name.
#[derive(Debug)]
pub struct Routes {
    addresses: HashMap<SocketAddr, Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// By lower-case host name, or by wildcard (`*.example.com`).
    named: HashMap<String, usize>,
    /// The service without server names.
    default: Option<usize>,
}

impl Routes {
    /// The routes to services, each with its id.
    #[must_use]
    pub fn new<'a>(services: impl IntoIterator<Item = (usize, &'a ServiceConfig)>) -> Self {
        let mut addresses: HashMap<SocketAddr, Names> = HashMap::new();
        for (id, service) in services {
            let names = addresses.entry(service.listen).or_default();
            if service.server_names.is_empty() {
                names.default = Some(id);
            }
            names.named.extend(service.server_names.iter().map(|name| (name.clone(), id)));
        }
        Self { addresses }
    }

    /// Id of the service for `name` on `listen`. An exact name takes precedence over a wildcard for
    /// the first label, and a wildcard over the default of the address.
    #[must_use]
    pub fn service_id(&self, listen: SocketAddr, name: Option<&str>) -> Option<usize> {
        let names = self.addresses.get(&listen)?;
        let (Some(name), false) = (name, names.named.is_empty()) else { return names.default };
        let name = normalized(name);
        names.named.get(&*name).or_else(|| names.wildcard(&name)).copied().or(names.default)
    }
}

impl Names {
    fn wildcard(&self, name: &str) -> Option<&usize> {
        let (_, parent) = name.split_once('.')?;
        self.named.get(&format!("*.{parent}"))
    }
}

/// `name` in lower case, without the trailing dot of a fully qualified name.
fn normalized(name: &str) -> Cow<'_, str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(name.to_ascii_lowercase());
    }
    Cow::Borrowed(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes() -> Routes {
        let named = [("a.example", 0), ("*.example", 1)];
        let named = named.into_iter().map(|(name, index)| (name.to_owned(), index)).collect();
        let shared = Names { named, default: Some(2) };
        let strict =
            Names { named: HashMap::from([("only.example".to_owned(), 3)]), default: None };
        Routes { addresses: HashMap::from([(address(1), shared), (address(2), strict)]) }
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn an_exact_name_precedes_a_wildcard_and_a_wildcard_the_default() {
        for (name, expected) in [
            (Some("a.example"), 0),
            (Some("A.Example."), 0),
            (Some("b.example"), 1),
            (Some("c.b.example"), 2),
            (Some("example"), 2),
            (None, 2),
        ] {
            assert_eq!(routes().service_id(address(1), name), Some(expected), "{name:?}");
        }
    }

    #[test]
    fn without_a_default_an_unknown_or_missing_name_matches_no_service() {
        assert_eq!(routes().service_id(address(2), Some("only.example")), Some(3));
        assert_eq!(routes().service_id(address(2), Some("other.example")), None);
        assert_eq!(routes().service_id(address(2), None), None);
        assert_eq!(routes().service_id(address(3), None), None);
    }
}
