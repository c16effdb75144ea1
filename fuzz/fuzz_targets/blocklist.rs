//! Any bytes as a badkeys blocklist and as its metadata: an error, or a list in which exactly its
//! records are found, with names that need no quoting.

#![no_main]

use keygate_core::badkeys::{self, Blocklist, Metadata, RECORD_SIZE, Record};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], Option<&[u8]>, bool)| {
    let (content, metadata, is_sorted) = input;
    // The fuzzer seldom makes sorted records.
    let mut records = content.to_vec();
    if is_sorted {
        let (whole, _) = records.as_chunks_mut::<RECORD_SIZE>();
        whole.sort_unstable();
    }
    let parsed = metadata.map(Metadata::parse);
    if let Some(Ok(metadata)) = &parsed {
        for (id, name) in metadata.findings.iter() {
            assert!(!name.is_empty() && !name.contains(['"', '\\']) && name.is_ascii());
            assert!(!name.contains(char::is_control));
            assert_eq!(&*metadata.findings.name(id), name);
        }
    }
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("blocklist.dat");
    std::fs::write(&path, &records).unwrap();
    if let Some(metadata) = metadata {
        std::fs::write(badkeys::metadata_path(&path), metadata).unwrap();
    }
    let read = badkeys::read(&path, u64::MAX);
    let list = match Blocklist::parse(records.clone()) {
        Ok(list) => list,
        Err(error) => {
            assert!(!error.to_string().is_empty() && read.is_err());
            return;
        }
    };
    match read {
        Ok(read) => {
            assert_eq!(read.blocklist, list);
            assert!(parsed.is_none_or(|parsed| parsed.is_ok()));
        }
        Err(error) => assert!(!error.to_string().is_empty() && metadata.is_some()),
    }
    assert_eq!(list.content(), records);
    assert_eq!(list.len() * RECORD_SIZE, records.len());
    assert_eq!(list.difference(&list), (0, 0));
    let all: Vec<Record> = list.iter().collect();
    assert!(all.is_sorted());
    let find = |hash: &[u8]| {
        let mut sha256 = [0xa5; 32];
        sha256[..hash.len()].copy_from_slice(hash);
        list.find(&sha256)
    };
    for record in &all {
        assert_eq!(find(record.hash()), Some(record.id()));
        // The neighbours of a record are found only if they are records themselves.
        for last in [record.hash()[14].wrapping_add(1), record.hash()[14].wrapping_sub(1)] {
            let mut hash = record.hash().to_vec();
            hash[14] = last;
            let one_by_one = all.iter().find(|other| other.hash() == hash);
            assert_eq!(find(&hash), one_by_one.map(Record::id));
        }
    }
});
