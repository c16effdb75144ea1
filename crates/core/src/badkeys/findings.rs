//! The names of the collections of a blocklist.

use std::sync::Arc;

/// The names of the collections of a blocklist, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings(Vec<(u8, Arc<str>)>);

impl Findings {
    /// The name of the collection with this number; `id` and the number if it has no name, as in
    /// the badkeys program.
    #[must_use]
    pub fn name(&self, id: u8) -> Arc<str> {
        let known = self.0.iter().find(|(known, _)| *known == id);
        known.map_or_else(|| format!("id{id}").into(), |(_, name)| Arc::clone(name))
    }

    /// The numbers and names, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &str)> {
        self.0.iter().map(|(id, name)| (*id, &**name))
    }
}

impl FromIterator<(u8, Arc<str>)> for Findings {
    fn from_iter<T: IntoIterator<Item = (u8, Arc<str>)>>(names: T) -> Self {
        Self(names.into_iter().collect())
    }
}
