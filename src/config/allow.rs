//! The table of rules by name.

use super::keys::table;

table! {
    pub(super) struct RawAllow r#"The clients that the service admits, of those that its CAs have certified: [rules by name](policy.md#rules-by-name). A client needs one entry of any list. Without the table every certified client is admitted. A table or a list without an entry is an error, and so is the table with `mode = "optional"`."# {
        pub(super) dns: Option<Vec<String>> => AtOnce
            r#"DNS names among the subject alternative names, without case. `"*.example.com"` stands for one label."#,
        pub(super) uri: Option<Vec<String>> => AtOnce
            "SPIFFE IDs. `*` stands for one whole segment of the path, and `**` at the end for one or more. The trust domain has no wildcard.",
        pub(super) email: Option<Vec<String>> => AtOnce
            "Email addresses among the subject alternative names. The part before `@` has case.",
        pub(super) common_names: Option<Vec<String>> => AtOnce
            "Common names of the subject, character for character.",
        pub(super) organizational_units: Option<Vec<String>> => AtOnce
            "Organizational units of the subject, character for character.",
        pub(super) spki: Option<Vec<String>> => AtOnce
            "Fingerprints of keys as `keygate key` prints them, in hex or base64, or pins such as `sha256:BASE64`.",
    }
}
