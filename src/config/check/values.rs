//! Values of types of the model: addresses, groups, networks, and the names of clients.

use std::sync::Arc;

use keygate_core::guard::{AllowKind, AllowRuleError, AllowRules, NameBounds};

use super::{Input, Taken, quoted};
use crate::config::allow::RawAllow;
use crate::config::form::Form;
use crate::config::keys::takes;
use crate::config::service::RawBoundCa;
use crate::config::texts::{Network, address, path, socket_path};
use crate::config::{BoundCa, CanaryConfig, ListenAddress, Networks, SocketGroup};

takes! {
    CanaryConfig => Self, Form::Text, |input| match input.text::<Self>()? {
        "off" => Ok(Self::Off),
        "published" => Ok(Self::Published),
        text => path(input, text).map(Self::File),
    };
    // A TCP address, or `unix:` and a path.
    ListenAddress => Self, Form::Text, |input| {
        let text = input.text::<Self>()?;
        if let Some(path) = text.strip_prefix("unix:") {
            return socket_path(input, path).map(Self::Unix);
        }
        let address = address(text, "\"127.0.0.1:9191\", or \"unix:/PATH\"");
        address.map(Self::Tcp).map_err(|problem| input.report(problem))
    };
    Networks => Self, Vec::<Network>::form(), |input| Vec::<Network>::take(input).map(Self);
    SocketGroup => Self, Form::Text, |input| {
        let text = input.text::<Self>()?;
        if text.is_empty() || text.contains([':', '\n', '\0']) {
            let problem = "is not a group, such as \"www-data\" or \"33\"";
            return Err(input.report(format!("{} {problem}", quoted(text))));
        }
        Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Id))
    };
    // A table without rules would reject every client, and most likely a rule is missing.
    Arc<AllowRules> => Self, RawAllow::form(), |input| {
        let raw = RawAllow::take(input)?;
        let lists = [
            (AllowKind::Dns, raw.dns),
            (AllowKind::Uri, raw.uri),
            (AllowKind::Email, raw.email),
            (AllowKind::CommonName, raw.common_names),
            (AllowKind::OrganizationalUnit, raw.organizational_units),
            (AllowKind::Spki, raw.spki),
        ];
        let lists = lists.map(|(kind, list)| (kind, kind.as_str(), list));
        let problem = "empty, so that no client is allowed; name clients in dns, uri, email, common_names, organizational_units or spki, or remove the table to allow every client of the CAs";
        let mut rules = AllowRules::default();
        take_names(input, &lists, problem, |kind, rule| rules.add(kind, rule))?;
        Ok(Arc::new(rules))
    };
    BoundCa => Self, RawBoundCa::form(), |input| {
        let raw = RawBoundCa::take(input)?;
        let lists = [
            (AllowKind::Uri, "spiffe", raw.spiffe),
            (AllowKind::Dns, "dns", raw.dns),
            (AllowKind::Email, "email", raw.email),
            (AllowKind::CommonName, "common_names", raw.common_names),
            (AllowKind::OrganizationalUnit, "organizational_units", raw.organizational_units),
        ];
        let problem = "names nothing that the CAs may vouch for; add spiffe, dns, email, common_names or organizational_units, or give the file as trust_anchors";
        let mut bounds = NameBounds::default();
        take_names(input, &lists, problem, |kind, name| bounds.add(kind, name))?;
        Ok(Self { file: raw.file, bounds: Arc::new(bounds) })
    };
}

/// Adds the names in the lists of these keys. It is a `problem` if no key is set.
fn take_names(
    input: &Input<'_>,
    lists: &[(AllowKind, &'static str, Option<Vec<String>>)],
    problem: &str,
    mut add: impl FnMut(AllowKind, &str) -> Result<(), AllowRuleError>,
) -> Taken<()> {
    if lists.iter().all(|(.., list)| list.is_none()) {
        return Err(input.report(problem));
    }
    let mut result = Ok(());
    for (kind, key, list) in lists {
        let Some(list) = list else { continue };
        if list.is_empty() {
            let problem = "empty, and names nothing; give a name, or remove the key";
            result = Err(input.report_at(key, problem));
        }
        for (index, name) in list.iter().enumerate() {
            if let Err(error) = add(*kind, name) {
                let problem = format!("{} {error}", quoted(name));
                result = Err(input.report_at(&format!("{key}[{index}]"), problem));
            }
        }
    }
    result
}
