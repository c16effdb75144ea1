//! Unpacks xz files, with bounds on memory and on the result.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use lzma_rust2::XzReader;

use super::error::UnpackError;

/// The first bytes of an xz file. No filter and no list begins with them.
const MAGIC: &[u8] = b"\xfd7zXZ\0";
/// Maximum memory of the decoder, in KiB, 96 MiB; a file that needs more is rejected. `xz -9` needs 65
/// MiB.
const MAX_MEMORY: u32 = 96 << 10;
/// Size of one read, in bytes.
const CHUNK: usize = 256 << 10;

/// Whether the file at `path` is an xz file.
pub(super) fn is_packed(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start == MAGIC)
}

/// Unpacks the file at `packed` to a new file at `target`.
///
/// # Errors
/// Returns an error if `packed` is damaged, if it needs more than 96 MiB of memory, if the content is
/// larger than `max_size` bytes, or if `target` cannot be written.
pub(super) fn unpack(packed: &Path, target: &Path, max_size: u64) -> Result<(), UnpackError> {
    let file = File::open(packed)
        .map_err(|source| UnpackError::Write { path: packed.to_owned(), source })?;
    let failed = |source| UnpackError::Write { path: target.to_owned(), source };
    let mut output = File::create_new(target).map_err(failed)?;
    // Several streams may follow each other, as in files of `xz` that were joined.
    let mut reader = XzReader::new_mem_limit(BufReader::new(file), true, MAX_MEMORY);
    let mut buffer = vec![0; CHUNK];
    let mut size = 0_u64;
    loop {
        let read = match reader.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(UnpackError::Damaged(error)),
        };
        let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else { break };
        size = size.saturating_add(chunk.len() as u64);
        if size > max_size {
            return Err(UnpackError::TooLarge { max_size });
        }
        output.write_all(chunk).map_err(failed)?;
    }
    output.sync_all().map_err(failed)
}
