//! The files that pwnedkeys publishes: example filters, and the two keys in them as certificates,
//! requests and private keys.
//!
//! The files belong to their author and are not part of this project. The tests read them from the
//! directory in `KEYGATE_INTEROP` (default: `../shared/interop` beside the project). Without that
//! directory they are skipped, and fail under `CI`.

use std::path::{Path, PathBuf};

use keygate_core::spki::keys_in;

use crate::skip;

pub const RSA: &str = "9e03b56749abe821a6f5299d6f634b35404975f0552eb3347bf3adfad9af1109";
pub const P256: &str = "819f7d1dcd9f07bfcb59b7699f68994d89390c3bcd498cf7fb2e1ef3d272b89b";
pub const P256_COMPRESSED: &str =
    "316194405bf1c56c3395c4b6fcf32af83ca0e273fbf0832ef8364069a178ad75";

/// The directory of the published files; `None` skips the test.
pub fn directory() -> Option<PathBuf> {
    let directory = std::env::var_os("KEYGATE_INTEROP").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/interop"),
        PathBuf::from,
    );
    let missing = format!("no published files in {}: set KEYGATE_INTEROP", directory.display());
    (!skip::unless(directory.is_dir(), &missing)).then_some(directory)
}

/// The one key in the file `name`.
pub fn spki_in(directory: &Path, name: &str) -> Vec<u8> {
    let file = std::fs::read(directory.join(name)).unwrap();
    let [finding] = <[_; 1]>::try_from(keys_in(&file)).expect(name);
    finding.key.unwrap_or_else(|error| panic!("{name}: {error}"))
}
