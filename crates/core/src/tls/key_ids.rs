//! The key identifiers in a certificate (RFC 5280, 4.2.1.1 and 4.2.1.2).

use crate::spki::{CertificateFields, Element};

/// The identifiers of the own key and of the key of the issuer.
#[derive(Default)]
pub(super) struct KeyIds<'a> {
    pub(super) own: Option<&'a [u8]>,
    pub(super) issuer: Option<&'a [u8]>,
}

impl<'a> KeyIds<'a> {
    /// The identifiers, as far as the extensions are DER.
    pub(super) fn new(fields: &CertificateFields<'a>) -> Self {
        const KEY_IDENTIFIER: u8 = 0x80;
        let mut ids = Self::default();
        let _ = fields.for_each_extension(|extension| {
            let value = Element::only(extension.value).map(|value| value.content);
            match extension.oid {
                [0x55, 29, 14] => ids.own = value,
                [0x55, 29, 35] => {
                    let first = value.and_then(|mut value| Element::take(&mut value));
                    ids.issuer = first.filter(|it| it.tag == KEY_IDENTIFIER).map(|it| it.content);
                }
                _ => {}
            }
            Some(())
        });
        ids
    }
}
