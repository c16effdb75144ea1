//! The links of judgements to the rest of the process, which outlive every snapshot.

use std::sync::Arc;

use keygate_core::guard::{CurrentAnswers, RecentKeys};
use keygate_core::tls::Deferral;

/// The links of judgements to the rest of the process.
#[derive(Debug, Clone, Default)]
pub struct JudgementLinks {
    /// The recent clients, on which filter updates are tried.
    pub recent: RecentKeys,
    /// The answers about keys.
    pub answers: CurrentAnswers,
    /// Selects the rejected clients that complete their handshakes because an answer may admit
    /// them; `None` selects none.
    pub deferral: Option<Arc<dyn Deferral>>,
}
