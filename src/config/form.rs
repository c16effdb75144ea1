//! The forms of values, and keys and tables as data.

/// The values that a key takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    Boolean,
    Date,
    Duration {
        is_positive: bool,
    },
    List(Box<Self>),
    Number {
        min: u64,
        max: u64,
    },
    /// A size in bytes.
    Size {
        min: u64,
        max: u64,
    },
    Table(Table),
    Text,
    /// Text, or a table with these keys.
    TextOrTable(Table),
    Words(&'static [&'static str]),
}

/// The keys of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    /// Meaning of the table, in Markdown.
    pub(super) text: &'static str,
    pub(super) keys: Vec<Key>,
}

/// A key of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) form: Form,
    /// The default in TOML. Without one, the key is off by default, or required.
    pub(super) default: Option<&'static str>,
    /// Whether the key may be absent without a default.
    pub(super) is_optional: bool,
    pub(super) reload: Reload,
    /// Meaning, in Markdown with links relative to `docs`.
    pub(super) meaning: &'static str,
}

/// The time at which a change of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reload {
    AtOnce,
    NewConnections,
    NextRequest,
    Restart,
}

impl Key {
    pub(super) fn is_required(&self) -> bool {
        self.default.is_none() && !self.is_optional
    }

    /// Gives all keys of a table that is used twice the effect of a reload of this place.
    pub(super) fn with(mut self, reload: Reload) -> Self {
        if let Some(table) = self.form.table_mut() {
            let keys = std::mem::take(&mut table.keys);
            table.keys = keys.into_iter().map(|key| key.with(reload)).collect();
        }
        Self { reload, ..self }
    }

    /// Gives the key, or a table that is used twice, the meaning of this place.
    pub(super) fn meaning(mut self, meaning: &'static str) -> Self {
        if let Some(table) = self.form.table_mut() {
            table.text = meaning;
        }
        Self { meaning, ..self }
    }
}

impl Form {
    /// The table, or text.
    pub(super) fn or_text(self) -> Self {
        if let Self::Table(table) = self { Self::TextOrTable(table) } else { Self::Text }
    }

    /// The keys of the table, or of each table of the array.
    pub(super) fn table(&self) -> Option<&Table> {
        let form = if let Self::List(items) = self { items.as_ref() } else { self };
        if let Self::Table(table) = form { Some(table) } else { None }
    }

    fn table_mut(&mut self) -> Option<&mut Table> {
        let form = if let Self::List(items) = self { items.as_mut() } else { self };
        if let Self::Table(table) = form { Some(table) } else { None }
    }
}

impl Reload {
    /// The word in `docs/configuration.md`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::AtOnce => "at once",
            Self::NewConnections => "new connections",
            Self::NextRequest => "next request",
            Self::Restart => "restart",
        }
    }
}
