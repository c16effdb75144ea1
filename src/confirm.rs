//! Questions to a source of proofs: whether a probably compromised key is compromised.
//!
//! Workers put questions without waiting ([`Questions::ask`]). One task of the control thread puts
//! them to the source, and replaces the answers that [`crate::guard`] judges with. Nothing is asked
//! without the table `[confirm]`. Nothing here decides about keys.

mod questions;

pub use self::questions::{Ask, Question, Questions, UnderWay};
