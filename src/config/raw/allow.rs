//! The table of rules by name as it is written.

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(in crate::config) struct RawAllow {
    pub(in crate::config) dns: Option<Vec<String>>,
    pub(in crate::config) uri: Option<Vec<String>>,
    pub(in crate::config) email: Option<Vec<String>>,
    pub(in crate::config) common_names: Option<Vec<String>>,
    pub(in crate::config) organizational_units: Option<Vec<String>>,
    pub(in crate::config) spki: Option<Vec<String>>,
}
