//! A verdict without its evidence, and its words in metrics, logs and rejections.

use crate::named::named;

named! {
    /// A verdict without its evidence: the label value in metrics.
    pub enum VerdictKind {
        /// An exception of the operator covers the key.
        Allowed = "allowed",
        /// The key is in no filter and on no list.
        Clean = "clean",
        /// The key is in a filter, and is unknown to the source of proofs.
        Cleared = "cleared",
        /// The compromise of the key is proved.
        Confirmed = "confirmed",
        /// The key is on an exact list.
        Listed = "listed",
        /// The key is in a filter, up to its false-positive rate.
        Probable = "probable",
        /// The key could not be checked.
        Unchecked = "unchecked",
        /// The key is an RSA key that anybody can factor.
        Weak = "weak",
    }
}

impl VerdictKind {
    /// The reason for rejecting a client because of this verdict, in words for the client.
    /// `of_issuer`: on the key of an issuer of its certificate.
    pub(in crate::guard) fn rejection(self, of_issuer: bool) -> &'static str {
        match (self, of_issuer) {
            (Self::Cleared, true) => {
                "the key of an issuer of the client certificate is in a filter of rejected keys"
            }
            (Self::Cleared, false) => {
                "the key of the client certificate is in a filter of rejected keys"
            }
            (Self::Confirmed | Self::Listed | Self::Probable, true) => {
                "the key of an issuer of the client certificate is known to be compromised"
            }
            (Self::Confirmed, false) => {
                "the key of the client certificate is compromised: replace key and certificate"
            }
            (Self::Listed, false) => {
                "the key of the client certificate is on a list of rejected keys"
            }
            (Self::Probable, false) => {
                "the key of the client certificate is probably compromised: replace key and certificate"
            }
            (Self::Weak, true) => {
                "the key of an issuer of the client certificate is weak: anybody can compute it"
            }
            (Self::Weak, false) => {
                "the key of the client certificate is weak: replace key and certificate"
            }
            (Self::Allowed | Self::Clean | Self::Unchecked, _) => {
                "the key of the client certificate could not be checked"
            }
        }
    }
}
