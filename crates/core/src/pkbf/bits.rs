//! The memory of a bit field, and the counting of its bits.
//!
//! The memory is an anonymous mapping, on huge pages where the kernel offers them. Lookups in a
//! large filter then miss the TLB less often, and loading faults once for each 2 MiB instead of
//! each 4 KiB. A replaced filter returns its memory to the kernel at once.

use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut, MmapOptions};

use super::FilterError;

/// The bit field of a filter. Bit 0 of a byte is its most significant bit.
#[derive(Debug)]
pub(super) struct Bits(MmapMut);

impl Bits {
    /// A bit field of `bytes` zero bytes. The kernel allocates a page when it is first written.
    pub(super) fn zeroed(bytes: u64) -> Result<Self, FilterError> {
        let bits = Self::map(MmapOptions::new(), bytes)?;
        // Without huge pages, the mapping uses small ones.
        let _ = bits.0.advise(Advice::HugePage);
        Ok(bits)
    }

    /// As [`Bits::zeroed`], for a bit field of which few pages are written.
    pub(super) fn sparse(bytes: u64) -> Result<Self, FilterError> {
        let mut options = MmapOptions::new();
        options.no_reserve_swap();
        Self::map(options, bytes)
    }

    fn map(mut options: MmapOptions, bytes: u64) -> Result<Self, FilterError> {
        let impossible = || FilterError::OutOfMemory { bytes };
        let size = usize::try_from(bytes).map_err(|_| impossible())?;
        options.len(size).map_anon().map(Self).map_err(|_| impossible())
    }
}

impl Deref for Bits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Bits {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl PartialEq for Bits {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bits {}

/// The number of bits of `bytes` that are set. The compiler counts in vector registers.
pub(super) fn count_ones(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_ones())).sum::<u64>()
        + tail.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_bit_field_is_zero_and_has_the_requested_size() {
        let mut bits = Bits::zeroed(3).unwrap();
        assert_eq!(*bits, [0; 3]);
        bits[1] = 0x80;
        assert_ne!(bits, Bits::zeroed(3).unwrap());
        let impossible = Bits::zeroed(1 << 60).unwrap_err();
        assert!(matches!(impossible, FilterError::OutOfMemory { bytes } if bytes == 1 << 60));
    }

    #[test]
    fn ones_are_counted_at_every_length_around_every_boundary() {
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()[0]
        });
        let bytes: Vec<u8> = noise.take(600).collect();
        for length in 0..bytes.len() {
            let one_by_one: u32 = bytes[..length].iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(count_ones(&bytes[..length]), u64::from(one_by_one), "{length} bytes");
        }
        assert_eq!(count_ones(&[0xff; 2560]), 8 * 2560);
    }
}
