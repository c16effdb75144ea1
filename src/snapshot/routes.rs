//! Which service answers for a name on an address.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;

use crate::config::ServiceConfig;

/// The services of every address by the names they answer for.
#[derive(Debug)]
pub struct Routes {
    addresses: HashMap<SocketAddr, Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// A lower-case host name, or `*.` and the rest of one.
    named: HashMap<String, usize>,
    default: Option<usize>,
}

impl Routes {
    /// The routes to services, each with its number.
    #[must_use]
    pub fn new<'a>(services: impl IntoIterator<Item = (usize, &'a ServiceConfig)>) -> Self {
        let mut addresses: HashMap<SocketAddr, Names> = HashMap::new();
        for (index, service) in services {
            let names = addresses.entry(service.listen).or_default();
            if service.server_names.is_empty() {
                names.default = Some(index);
            }
            names.named.extend(service.server_names.iter().map(|name| (name.clone(), index)));
        }
        Self { addresses }
    }

    /// The number of the service for `name` on `listen`: its own name first, then a wildcard for
    /// its first label, then the default of the address.
    #[must_use]
    pub fn index_of(&self, listen: SocketAddr, name: Option<&str>) -> Option<usize> {
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

/// Lower case, without the dot at the end that a fully qualified name may have.
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
    fn a_name_of_its_own_goes_before_a_wildcard_and_that_before_the_default() {
        for (name, expected) in [
            (Some("a.example"), 0),
            (Some("A.Example."), 0),
            (Some("b.example"), 1),
            (Some("c.b.example"), 2),
            (Some("example"), 2),
            (None, 2),
        ] {
            assert_eq!(routes().index_of(address(1), name), Some(expected), "{name:?}");
        }
    }

    #[test]
    fn without_a_default_an_unknown_name_and_no_name_lead_nowhere() {
        assert_eq!(routes().index_of(address(2), Some("only.example")), Some(3));
        assert_eq!(routes().index_of(address(2), Some("other.example")), None);
        assert_eq!(routes().index_of(address(2), None), None);
        assert_eq!(routes().index_of(address(3), None), None);
    }
}
