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

/// Four words that the compiler places in vector registers.
type Lanes = [u64; 4];

/// Size of sixteen [`Lanes`], in bytes.
const BLOCK: usize = 512;

/// The number of bits of `bytes` that are set.
///
/// A Harley-Seal carry-save adder (Warren, "Hacker's Delight", 2nd edition, section 5-1) adds
/// sixteen registers into one before it counts. The baseline of x86-64 has no instruction that
/// counts bits.
pub(super) fn count_ones(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut adder = Adder::default();
    let sixteens: u64 = blocks.iter().map(|block| adder.add(block)).sum();
    let (words, tail) = rest.as_chunks::<8>();
    16 * sixteens
        + adder.remainder()
        + words.iter().map(|word| ones(u64::from_ne_bytes(*word))).sum::<u64>()
        + tail.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

/// Partial sums: bits that were set once, twice, four and eight times and are not counted yet.
#[derive(Default)]
struct Adder {
    ones: Lanes,
    twos: Lanes,
    fours: Lanes,
    eights: Lanes,
}

impl Adder {
    /// Adds a block. Returns the number of carries of weight sixteen.
    fn add(&mut self, block: &[u8; BLOCK]) -> u64 {
        let (lanes, _) = block.as_chunks::<32>();
        let mut pairs = lanes.chunks_exact(2).map(|pair| match pair {
            [first, second] => (load(first), load(second)),
            _ => Default::default(), // unreachable: `chunks_exact` yields pairs
        });
        let mut two = |adder: &mut Self| {
            let (first, second) = pairs.next().unwrap_or_default();
            carry(&mut adder.ones, first, second)
        };
        let mut four = |adder: &mut Self| {
            let (first, second) = (two(adder), two(adder));
            carry(&mut adder.twos, first, second)
        };
        let mut eight = |adder: &mut Self| {
            let (first, second) = (four(adder), four(adder));
            carry(&mut adder.fours, first, second)
        };
        let (first, second) = (eight(self), eight(self));
        sum(carry(&mut self.eights, first, second))
    }

    fn remainder(&self) -> u64 {
        8 * sum(self.eights) + 4 * sum(self.fours) + 2 * sum(self.twos) + sum(self.ones)
    }
}

/// Adds two bits to each bit of `sum`. Returns the carries.
fn carry(sum: &mut Lanes, first: Lanes, second: Lanes) -> Lanes {
    let mut carries = Lanes::default();
    for (((sum, carry), first), second) in sum.iter_mut().zip(&mut carries).zip(first).zip(second) {
        let half = *sum ^ first;
        *carry = (*sum & first) | (half & second);
        *sum = half ^ second;
    }
    carries
}

fn load(bytes: &[u8; 32]) -> Lanes {
    let (words, _) = bytes.as_chunks::<8>();
    let mut lanes = Lanes::default();
    lanes.iter_mut().zip(words).for_each(|(lane, word)| *lane = u64::from_ne_bytes(*word));
    lanes
}

fn sum(lanes: Lanes) -> u64 {
    lanes.into_iter().map(ones).sum()
}

fn ones(word: u64) -> u64 {
    word.count_ones().into()
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
        let bytes: Vec<u8> = noise.take(3 * BLOCK + 40).collect();
        for length in 0..bytes.len() {
            let one_by_one: u32 = bytes[..length].iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(count_ones(&bytes[..length]), u64::from(one_by_one), "{length} bytes");
        }
        assert_eq!(count_ones(&[0xff; 5 * BLOCK]), 8 * 5 * BLOCK as u64);
    }
}
