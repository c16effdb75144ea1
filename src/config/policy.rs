//! The table of a policy: the global one, and the tables of services and authorizers.

use std::time::Duration;

use hyper::header::HeaderName;
use keygate_core::guard::{Decision, Depth, Policy, RejectWith};

use super::form::Form;
use super::input::{Input, Taken, Takes};
use super::keys::{table, takes};
use super::texts::StatusHeader;
use super::units::DurationText;
use super::{AssertionConfig, SigningKeyConfig};

table! {
    /// A policy with the values that it inherits from the global one.
    pub(super) struct RawPolicy "The action for each verdict, for every service without its own value ([policy](policy.md)). `flag` serves the client and logs it. `header` does the same and sends the verdict to the upstream. `reject` rejects the client.", check {
        pub(super) on_cleared: Decision as Action<true> = "admit" => AtOnce
            "The key is in a filter, and the source of proofs does not know it. With `reject`, answers only ever make a verdict worse.",
        pub(super) on_confirmed: Decision as Action<false> = "reject" => AtOnce
            "The compromise of the key is proved.",
        pub(super) on_listed: Decision as Action<false> = "reject" => AtOnce
            "The key is on a list.",
        pub(super) on_probable: Decision as Action<false> = "reject" => AtOnce
            "The key is in a filter.",
        pub(super) on_unchecked: Decision as Action<false> = "reject" => AtOnce
            "There is no key, or it cannot be checked.",
        pub(super) on_weak: Decision as Action<false> = "reject" => AtOnce
            "Anybody can compute the private half of the RSA key.",
        pub(super) judge: Depth = "leaf" => AtOnce
            "Keys that are judged: the client's own, or all on the [verified path](policy.md#the-verified-path).",
        pub(super) reject_with: RejectWith = "alert" => NewConnections
            r#"Form of a rejection: an alert in the handshake, or 403 to the first request. With `protocol = "tcp"` only `alert`."#,
        pub(super) evict_within: Duration as DurationText = "10s" => AtOnce
            "Maximum time for an evicted connection to finish before it is closed.",
        pub(super) allow_compromised_own_key: bool = false => AtOnce
            "`true`: a hit on a key of the service, of a trust anchor or of one of `intermediates` is a warning at the start instead of an error.",
        pub(super) header: HeaderName as StatusHeader = "Client-Key-Status" => NextRequest
            "Field that carries the verdict to the upstream, if any `on_…` of the service is `header`. A client's own copy is always removed. Names of fields that keygate writes, such as `X-Request-Id`, of fields that frame a message, and of a client's credentials, such as `Authorization`, are rejected, in any spelling. For an authorizer with `ext-authz` the name has at most six hyphens and underscores.",
        /// Signed statements about clients.
        pub(super) assertion: Option<AssertionConfig>,
    }
}

/// The policy of a service or an authorizer, with the keys that it inherits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Decision for each verdict, and the rules by name.
    pub decisions: Policy,
    /// Maximum time for an evicted connection to finish before it is closed. Default: 10 s.
    pub evict_within: Duration,
    /// Whether the service starts although its own key, or a trust anchor's, is a hit.
    /// Default: false.
    pub allow_compromised_own_key: bool,
    /// Header that carries the verdict, if the policy requires one. Default: `Client-Key-Status`.
    pub header: HeaderName,
    /// Signed statements about clients. Default: none.
    pub assertion: Option<AssertionConfig>,
}

impl PolicyConfig {
    /// The keys that sign statements about clients.
    pub(crate) fn signing_keys(&self) -> &[SigningKeyConfig] {
        self.assertion.as_ref().map_or(&[], |it| &it.signing_keys)
    }
}

impl RawPolicy {
    fn check(&mut self, input: &Input<'_>) {
        let dashed = |it: &HeaderName| it.as_str().replace(|it: char| !it.is_alphanumeric(), "-");
        if self.assertion.as_ref().is_some_and(|it| dashed(&it.header) == dashed(&self.header)) {
            input
                .report_at("assertion.header", "policy.header has the same name; give another one");
        }
    }
}

impl From<RawPolicy> for PolicyConfig {
    fn from(raw: RawPolicy) -> Self {
        let decisions = Policy {
            on_cleared: raw.on_cleared,
            on_confirmed: raw.on_confirmed,
            on_listed: raw.on_listed,
            on_probable: raw.on_probable,
            on_unchecked: raw.on_unchecked,
            on_weak: raw.on_weak,
            allow: None, // `check` sets it
            judge: raw.judge,
            reject_with: raw.reject_with,
        };
        let RawPolicy { evict_within, allow_compromised_own_key, header, assertion, .. } = raw;
        Self { decisions, evict_within, allow_compromised_own_key, header, assertion }
    }
}

/// The policy of an authorizer, which lacks the keys about connections of clients.
#[derive(Debug)]
pub(super) struct AskedPolicy;

takes! {
    PolicyConfig => Self, RawPolicy::form(), |input| RawPolicy::take(input).map(Self::from);
    AskedPolicy => PolicyConfig, {
        let mut form = RawPolicy::form();
        if let Form::Table(table) = &mut form {
            table.keys.retain(|key| !["reject_with", "evict_within"].contains(&key.name));
        }
        form
    }, |input| {
        input.ensure_table::<Self>()?;
        let form = Self::form();
        let names = form.table().into_iter().flat_map(|table| &table.keys).map(|key| key.name);
        input.ensure_known(&names.collect::<Vec<_>>());
        RawPolicy::take_keys(input).map(PolicyConfig::from)
    };
}

/// An action that a policy can choose. Only a cleared key may be admitted without a log line.
#[derive(Debug)]
pub(super) struct Action<const ADMITS: bool>;

impl<const ADMITS: bool> Takes for Action<ADMITS> {
    type Value = Decision;

    fn form() -> Form {
        Form::Words(if ADMITS {
            &["admit", "flag", "header", "reject"]
        } else {
            &["flag", "header", "reject"]
        })
    }

    fn take(input: &Input<'_>) -> Taken<Decision> {
        let words = [
            ("admit", Decision::Admit),
            ("flag", Decision::Flag),
            ("header", Decision::Annotate),
            ("reject", Decision::Reject),
        ];
        input.word::<Self>(words.get(usize::from(!ADMITS)..).unwrap_or_default())
    }
}
