//! Unpacks xz files, with bounds on memory and on the result.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use keygate_core::badkeys::XZ_MAGIC;
use lzma_rust2::XzReader;

use super::error::{FetchError, SourceError, UnpackError};
use crate::config::SourceUrl;

/// Maximum memory of the decoder, in KiB, 96 MiB; a file that needs more is rejected. `xz -9` needs
/// 65 MiB.
const MAX_MEMORY: u32 = 96 << 10;
/// Size of one read, in bytes.
const CHUNK: usize = 256 << 10;

/// Whether the file at `path` is an xz file. No filter and no list begins like one.
pub(super) fn is_packed(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    File::open(path)?.take(XZ_MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start == XZ_MAGIC)
}

/// Unpacks the file at `packed`, which was downloaded from `url`, to a new file at `target`.
///
/// # Errors
/// Returns an error if `packed` is damaged or truncated, if it needs more than 96 MiB of memory, if
/// the content is larger than `max_size` bytes, or if `target` cannot be written.
pub(super) fn unpack(
    packed: &Path,
    target: &Path,
    max_size: u64,
    url: &SourceUrl,
) -> Result<(), FetchError> {
    let unusable = |error| SourceError::Unpack(error).at(url);
    let file = File::open(packed).map_err(FetchError::io(packed))?;
    let failed = FetchError::io(target);
    let mut output = File::create_new(target).map_err(&failed)?;
    // Several streams may follow each other, as in files of `xz` that were joined.
    let mut reader = XzReader::new_mem_limit(BufReader::new(file), true, MAX_MEMORY);
    let mut buffer = vec![0; CHUNK];
    let mut size = 0_u64;
    loop {
        let read = match reader.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(unusable(UnpackError::Truncated));
            }
            Err(error) => return Err(unusable(UnpackError::Damaged(error))),
        };
        let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else { break };
        size = size.saturating_add(chunk.len() as u64);
        if size > max_size {
            return Err(unusable(UnpackError::TooLarge(max_size)));
        }
        output.write_all(chunk).map_err(&failed)?;
    }
    output.sync_all().map_err(&failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "a list" and a line feed, by `xz -0`.
    const PACKED: &[u8] = b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46\x02\0\x21\x01\x0c\0\0\0\x8f\x98\x41\x9c\x01\0\x06a list\n\0\0\x4e\xfe\x67\xe0\xca\xb7\x09\x5a\0\x01\x1f\x07\x16\x2e\xb8\x73\x1f\xb6\xf3\x7d\x01\0\0\0\0\x04YZ";

    /// The content, or the error as text.
    fn unpacked(packed: &[u8], max_size: u64) -> Result<Vec<u8>, String> {
        let directory = tempfile::tempdir().unwrap();
        let (file, target) = (directory.path().join("packed"), directory.path().join("target"));
        std::fs::write(&file, packed).unwrap();
        let url = SourceUrl::parse("https://a.example/packed").unwrap();
        unpack(&file, &target, max_size, &url).map_err(|error| error.to_string())?;
        Ok(std::fs::read(target).unwrap())
    }

    #[test]
    fn a_file_is_unpacked_up_to_its_maximum_size() {
        assert_eq!(unpacked(PACKED, 7).unwrap(), b"a list\n");
        let twice = [PACKED, PACKED].concat();
        assert_eq!(unpacked(&twice, 14).unwrap(), b"a list\na list\n");
        assert!(
            unpacked(PACKED, 6)
                .unwrap_err()
                .contains("larger than max_size, 6 bytes; correct the URL, or raise max_size")
        );
        assert!(unpacked(&twice, 13).unwrap_err().contains("larger than max_size"));
    }

    #[test]
    fn no_damage_is_overlooked() {
        for at in 0..PACKED.len() {
            let problem = unpacked(&PACKED[..at], 100).unwrap_err();
            assert!(problem.contains("ends early"), "the first {at} bytes: {problem}");
            for bit in 0..8 {
                let mut damaged = PACKED.to_vec();
                damaged[at] ^= 1 << bit;
                assert!(unpacked(&damaged, 100).is_err(), "bit {bit} of byte {at}");
            }
        }
    }
}
