//! The names in field blocks (HPACK, RFC 7541). No string is decoded. The dynamic
//! table is kept as one bit for each entry, because only the newest entries can be referred to, in
//! the order of their insertion.

/// Last pseudo-header field of the static table (RFC 7541, appendix A).
const LAST_STATIC_PSEUDO: u64 = 14;
/// First index of the dynamic table.
const FIRST_DYNAMIC: u64 = 62;

/// The fields of a client's field blocks.
#[derive(Debug, Default)]
pub(super) struct FieldScan {
    part: FieldPart,
    /// Whether the current field goes into the dynamic table.
    is_inserted: bool,
    is_pseudo: bool,
    /// Whether each entry of the dynamic table is a pseudo-header field, the newest in the lowest
    /// bit. The table has at most 4096 / 32 entries.
    table: u128,
}

/// Which part of a field the next byte belongs to.
#[derive(Debug, Clone, Copy, Default)]
enum FieldPart {
    /// The representation, with an index.
    #[default]
    Field,
    /// More of an integer.
    Integer {
        so_far: u64,
        shift: u32,
        of: Integer,
    },
    NameLength,
    /// The first byte of a name of this length.
    Name {
        is_huffman: bool,
        length: u64,
    },
    /// The rest of a name.
    RestOfName(u64),
    ValueLength,
    Value(u64),
}

/// The meaning of an integer.
#[derive(Debug, Clone, Copy)]
enum Integer {
    /// The field, which is complete.
    Indexed,
    /// The name of a literal field; 0: the name follows.
    NameIndex,
    NameLength {
        is_huffman: bool,
    },
    /// The maximum size of the dynamic table.
    TableSize,
    ValueLength,
}

impl FieldScan {
    pub(super) fn begin_block(&mut self) {
        self.part = FieldPart::Field;
    }

    /// Reads a part of a field block. Returns whether a name in it is that of a pseudo-header
    /// field.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_pseudo = false;
        while let Some((byte, rest)) = bytes.split_first() {
            // Most bytes are those of values, which say nothing.
            let (FieldPart::RestOfName(left) | FieldPart::Value(left)) = self.part else {
                has_pseudo |= self.read_byte(*byte);
                bytes = rest;
                continue;
            };
            let skipped = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            self.skip(left.saturating_sub(skipped as u64));
            bytes = bytes.get(skipped..).unwrap_or_default();
        }
        has_pseudo
    }

    /// Skips a part of a name or value, of which so many bytes are left.
    fn skip(&mut self, left: u64) {
        match self.part {
            FieldPart::RestOfName(_) => self.name(left),
            FieldPart::Value(_) => self.value(left),
            FieldPart::Field
            | FieldPart::Integer { .. }
            | FieldPart::Name { .. }
            | FieldPart::NameLength
            | FieldPart::ValueLength => {}
        }
    }

    /// The rest of a name has this length.
    fn name(&mut self, rest: u64) {
        self.part = if rest > 0 { FieldPart::RestOfName(rest) } else { FieldPart::ValueLength };
    }

    /// Reads one byte. Returns whether it completes the name of a pseudo-header field.
    fn read_byte(&mut self, byte: u8) -> bool {
        match self.part {
            FieldPart::Field => match byte {
                0x80.. => self.integer(byte, 7, Integer::Indexed),
                0x40.. => {
                    self.is_inserted = true;
                    self.integer(byte, 6, Integer::NameIndex)
                }
                0x20.. => self.integer(byte, 5, Integer::TableSize),
                _ => {
                    self.is_inserted = false;
                    self.integer(byte, 4, Integer::NameIndex)
                }
            },
            FieldPart::Integer { so_far, shift, of } => {
                let more = u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(u64::MAX);
                let so_far = so_far.saturating_add(more);
                if byte & 0x80 == 0 {
                    return self.integer_ends(so_far, of);
                }
                self.part = FieldPart::Integer { so_far, shift: shift.saturating_add(7), of };
                false
            }
            FieldPart::NameLength => {
                let is_huffman = byte & 0x80 != 0;
                self.integer(byte, 7, Integer::NameLength { is_huffman })
            }
            FieldPart::Name { is_huffman, length } => {
                // A colon is 1011100 in the code of HPACK (RFC 7541, appendix B).
                self.is_pseudo = if is_huffman { byte >> 1 == 0x5c } else { byte == b':' };
                self.name(length.saturating_sub(1));
                self.is_pseudo
            }
            FieldPart::ValueLength => self.integer(byte, 7, Integer::ValueLength),
            FieldPart::RestOfName(left) | FieldPart::Value(left) => {
                self.skip(left.saturating_sub(1));
                false
            }
        }
    }

    /// Begins an integer with a prefix of so many bits (RFC 7541, section 5.1).
    fn integer(&mut self, byte: u8, bits: u32, of: Integer) -> bool {
        let mask = u8::MAX >> 8_u32.saturating_sub(bits);
        let prefix = u64::from(byte & mask);
        if prefix < u64::from(mask) {
            return self.integer_ends(prefix, of);
        }
        self.part = FieldPart::Integer { so_far: prefix, shift: 0, of };
        false
    }

    fn integer_ends(&mut self, value: u64, of: Integer) -> bool {
        match of {
            Integer::Indexed => {
                self.part = FieldPart::Field;
                self.is_pseudo_at(value)
            }
            Integer::NameIndex if value == 0 => {
                self.part = FieldPart::NameLength;
                false
            }
            Integer::NameIndex => {
                self.is_pseudo = self.is_pseudo_at(value);
                self.part = FieldPart::ValueLength;
                self.is_pseudo
            }
            Integer::NameLength { is_huffman } => {
                self.is_pseudo = false;
                self.part = match value {
                    0 => FieldPart::ValueLength,
                    length => FieldPart::Name { is_huffman, length },
                };
                false
            }
            Integer::TableSize => {
                self.part = FieldPart::Field;
                false
            }
            Integer::ValueLength => {
                self.value(value);
                false
            }
        }
    }

    /// The rest of a value has this length. Without a rest the field is complete.
    fn value(&mut self, rest: u64) {
        if rest > 0 {
            self.part = FieldPart::Value(rest);
            return;
        }
        self.part = FieldPart::Field;
        if self.is_inserted {
            self.table = self.table << 1 | u128::from(self.is_pseudo);
        }
    }

    fn is_pseudo_at(&self, index: u64) -> bool {
        match index.checked_sub(FIRST_DYNAMIC) {
            None => (1..=LAST_STATIC_PSEUDO).contains(&index),
            Some(position) => {
                let position = u32::try_from(position).unwrap_or(u32::MAX);
                self.table.checked_shr(position).is_some_and(|table| table & 1 != 0)
            }
        }
    }
}
