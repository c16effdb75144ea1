//! Filters and lists with the signatures of their files.
//!
//! A signature is kept with its content, so that the content in use, or a copy in the state
//! directory, can be verified again with other keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keygate_core::guard::{ExactList, NamedFilter};
use keygate_core::pkbf::FilterError;
use keygate_core::signature::{
    FileSignature, MAX_SIZE, MinisignKeys, SignatureError, signature_path,
};

use crate::files::read_bounded;
use crate::saved_state::copies::Original;

/// A filter, and the signature of its file; `None` if none was needed.
#[derive(Debug, Clone)]
pub(crate) struct LoadedFilter {
    pub(crate) named: Arc<NamedFilter>,
    pub(crate) signature: Option<Arc<FileSignature>>,
}

/// A list, and the bytes of its files.
#[derive(Debug, Clone)]
pub(crate) struct VerifiedList {
    pub(crate) list: ExactList,
    /// The files, for their copies. The text of a list of fingerprints is dropped with its copy.
    pub(crate) original: Original,
}

/// Checks that the copy at `path`, in which the id `found` was read, has this `id`.
///
/// # Errors
/// Returns an error if the copy is damaged, or was changed.
pub(crate) fn ensure_id(found: &str, path: &Path, id: &str) -> Result<(), FilterError> {
    if found == id {
        return Ok(());
    }
    let (sidecar, expected, found) = (path.to_owned(), id.to_owned(), found.to_owned());
    Err(FilterError::Checksum { sidecar, expected, found })
}

/// The error of the signature of the copy at `path`.
pub(crate) fn error_of_copy(error: SignatureError, path: &Path) -> SignatureError {
    if let SignatureError::Missing { .. } = error {
        return SignatureError::NotKept { copy: path.to_owned() };
    }
    error
}

/// Verifies that the signature beside the file at `path` is of `content`, which was read from the
/// file, and was made with a key in the file `keys`. Without `keys`, no signature is needed.
///
/// # Errors
/// Returns an error if the keys or the signature cannot be read, or if the signature is not valid.
pub(crate) fn verify_beside(
    path: &Path,
    keys: Option<&Path>,
    content: &[&[u8]],
) -> Result<Option<FileSignature>, SignatureError> {
    let Some(keys) = keys else { return Ok(None) };
    let path = signature_path(path);
    let signature = FileSignature::from_file(&path, read_bounded(&path, MAX_SIZE))?;
    verify(keys, signature, content).map(Some)
}

/// Verifies that `signature`, which was kept with `content`, was made with a key in the file
/// `keys`. `path` is the place of the content. Without `keys`, no signature is needed.
///
/// # Errors
/// Returns an error if there is no signature, if it is not valid, or if the keys cannot be read.
pub(crate) fn verify_saved(
    path: &Path,
    keys: Option<&Path>,
    signature: Option<&str>,
    content: &[&[u8]],
) -> Result<Option<FileSignature>, SignatureError> {
    let Some(keys) = keys else { return Ok(None) };
    let Some(signature) = signature else {
        return Err(SignatureError::NotKept { copy: path.to_owned() });
    };
    let signature = FileSignature::parse(&signature_path(path), signature.to_owned())?;
    verify(keys, signature, content).map(Some)
}

fn verify(
    keys: &Path,
    signature: FileSignature,
    content: &[&[u8]],
) -> Result<FileSignature, SignatureError> {
    let keys = MinisignKeys::from_file(keys, read_bounded(keys, MAX_SIZE))?;
    keys.verify(&signature, content.iter().copied())?;
    Ok(signature)
}

/// The paths of the signature of the file at `path`, and of the keys; none without `keys`.
pub(crate) fn signature_paths(path: &Path, keys: Option<&Path>) -> Vec<PathBuf> {
    keys.map_or_else(Vec::new, |keys| vec![signature_path(path), keys.to_owned()])
}
