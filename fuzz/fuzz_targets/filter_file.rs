//! Any bytes as a filter file, with any bytes as its checksum file: an error, or a filter that can
//! be queried, counted, and written back unchanged.

#![no_main]

use keygate_core::pkbf::{self, Filter, Overwrite};
use libfuzzer_sys::fuzz_target;

const MAX_SIZE: u64 = 1 << 16;

fuzz_target!(|input: (&[u8], Option<&[u8]>, &[u8])| {
    let (file, checksum, key) = input;
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("a.pkbf");
    std::fs::write(&path, file).unwrap();
    if let Some(checksum) = checksum {
        std::fs::write(pkbf::sidecar_of(&path), checksum).unwrap();
    }
    let parsed = Filter::parse(file);
    let read = pkbf::read(&path, MAX_SIZE);
    if let Err(error) = &read {
        assert!(!error.to_string().is_empty());
    }
    if checksum.is_none() && (file.len() as u64) <= MAX_SIZE {
        assert_eq!(parsed.is_ok(), read.is_ok(), "in memory and from a file");
    }
    let Ok(mut filter) = parsed else { return };
    if let Ok(read) = read {
        assert_eq!(read.filter, filter);
    }
    let (header, bits) = filter.to_parts();
    assert_eq!([&header[..], bits].concat(), file, "written as it was read");
    let one_by_one: u32 = bits.iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(filter.set_bits(), u64::from(one_by_one));
    for ratio in [filter.fill_ratio(), filter.false_positive_ratio(), filter.false_positive_bound()]
    {
        assert!((0.0..=1.0).contains(&ratio), "{ratio}");
    }
    assert!(!filter.plausibility().to_string().is_empty());

    let had = filter.contains(key);
    assert_eq!(filter.insert(key), !had);
    assert!(filter.contains(key));
    std::fs::remove_file(pkbf::sidecar_of(&path)).ok();
    pkbf::create(&filter, &path, Overwrite::Always).unwrap();
    assert_eq!(pkbf::read(&path, u64::MAX).unwrap().filter, filter);
});
