//! The badkeys blocklist: an exact list of compromised keys that anybody may download.
//!
//! A [`Blocklist`] never changes once parsed. Its records name keys by a number of the key, such as
//! the modulus of an RSA key, and not by SubjectPublicKeyInfo. `Metadata` gives the records their
//! names and their date. Nothing here depends on TLS or policy, or downloads a file. Format:
//! <https://github.com/badkeys/badkeys/blob/main/docs/BLOCKLISTFORMAT.md>

mod blocklist;
mod file;
mod findings;
mod metadata;

pub use blocklist::XZ_MAGIC;
pub use blocklist::{Blocklist, BlocklistError, RECORD_SIZE, Record};
pub use file::MAX_METADATA_SIZE;
pub use file::{BlocklistFile, BlocklistFileError, metadata_path, read, read_with_metadata};
pub use findings::Findings;
pub use metadata::{Metadata, MetadataError};
