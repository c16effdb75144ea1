//! Converts the rules by name of a service or an authorizer.

use std::sync::Arc;

use keygate_core::guard::{AllowKind, AllowRules};

use super::Checker;
use crate::config::ClientAuthMode;
use crate::config::raw::RawAllow;
use crate::config::units::quoted;

impl Checker<'_> {
    /// Checks the table `allow` of the client authentication at `path`. A table without rules would
    /// reject every client, and most likely a rule is missing.
    pub(super) fn allow(
        &self,
        path: &str,
        mode: ClientAuthMode,
        raw: Option<&RawAllow>,
    ) -> Option<Arc<AllowRules>> {
        let raw = raw?;
        let path = format!("{path}.allow");
        let lists = [
            (AllowKind::Dns, &raw.dns),
            (AllowKind::Uri, &raw.uri),
            (AllowKind::Email, &raw.email),
            (AllowKind::CommonName, &raw.common_names),
            (AllowKind::OrganizationalUnit, &raw.organizational_units),
            (AllowKind::Spki, &raw.spki),
        ];
        if lists.iter().all(|(_, list)| list.is_none()) {
            let problem = "empty, so that no client is allowed; name clients in dns, uri, email, common_names, organizational_units or spki, or remove the table to allow every client of the CAs";
            self.invalid(path.clone(), problem);
        }
        if mode == ClientAuthMode::Optional {
            let problem = "names clients by their certificates, but mode = \"optional\" admits clients without one; set mode to \"required\"";
            self.conflict(path.clone(), problem);
        }
        let mut rules = AllowRules::default();
        for (kind, list) in lists {
            let key = kind.as_str();
            let Some(list) = list else { continue };
            if list.is_empty() {
                let problem = "empty, so that it names no client; give a name, or remove the key";
                self.invalid(format!("{path}.{key}"), problem);
            }
            for (index, rule) in list.iter().enumerate() {
                if let Err(error) = rules.add(kind, rule) {
                    self.invalid(
                        format!("{path}.{key}[{index}]"),
                        format!("{} {error}", quoted(rule)),
                    );
                }
            }
        }
        Some(Arc::new(rules))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::example::{MINIMAL, changed, parse};

    /// The problem with this table `allow` of a service and of an authorizer.
    fn problems(allow: &str) -> [String; 2] {
        let service = changed("\"ca.pem\" }", &format!("\"ca.pem\", allow = {allow} }}"));
        let authorizer = format!(
            "{MINIMAL}[[authorizers]]\nname = \"edge\"\nlisten = \"unix:/run/ask\"\nprotocol = \"spop\"\nclient_auth = {{ allow = {allow} }}\n"
        );
        [service, authorizer].map(|text| parse(&text).unwrap_err().to_string())
    }

    #[test]
    fn a_rule_that_cannot_match_is_an_error_with_its_line_and_a_remedy() {
        let rules =
            "{\n dns = [\"a.example\",\n \"a*.example\"],\n uri = [\"spiffe://example.org/a?b\"] }";
        let [service, authorizer] = problems(rules);
        for (problem, name, line) in
            [(service, "services.orders", 11), (authorizer, "authorizers.edge", 17)]
        {
            for expected in [
                format!(
                    ":{line}:2: {name}.client_auth.allow.dns: \"a*.example\" has '*' elsewhere"
                ),
                "write \"*.example.com\"".to_owned(),
                format!(
                    "{name}.client_auth.allow.uri: \"spiffe://example.org/a?b\" is not a SPIFFE ID; write"
                ),
            ] {
                assert!(problem.contains(&expected), "{expected}: {problem}");
            }
        }
    }

    #[test]
    fn a_table_or_list_without_rules_is_an_error() {
        for allow in ["{}", "{ dns = [] }", "{ dns = [\"a.example\"], spki = [] }"] {
            for problem in problems(allow) {
                assert!(problem.contains("empty, so that"), "{allow}: {problem}");
                assert!(problem.contains("remove the"), "{allow}: {problem}");
            }
        }
        for problem in problems("{ cn = [\"a\"] }") {
            assert!(problem.contains("there is no key \"cn\""), "{problem}");
        }
    }

    #[test]
    fn rules_by_name_need_a_certificate_of_each_client() {
        for problem in problems("{ dns = [\"a.example\"] }, mode = \"optional\"") {
            let expected = "mode = \"optional\" admits clients without one; set mode to";
            assert!(problem.contains(expected), "{problem}");
        }
    }

    #[test]
    fn without_the_table_every_client_is_allowed() {
        assert_eq!(parse(MINIMAL).unwrap().services[0].policy.allow, None);
        let text = changed("\"ca.pem\" }", "\"ca.pem\", allow = { dns = [\"a.example\"] } }");
        assert!(parse(&text).unwrap().services[0].policy.allow.is_some());
    }
}
