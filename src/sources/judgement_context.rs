//! The parts of the process that judgements use, and that outlive every snapshot.

use std::sync::Arc;

use keygate_core::guard::{CurrentAnswers, RecentClients};
use keygate_core::tls::Deferral;

/// The parts of the process that judgements use.
#[derive(Debug, Clone, Default)]
pub struct JudgementContext {
    /// The recent clients, on which the dry run of an update judges.
    pub recent: RecentClients,
    /// The answers about keys.
    pub answers: CurrentAnswers,
    /// Selects the rejected clients that complete their handshakes because an answer may admit
    /// them; `None` selects none.
    pub deferral: Option<Arc<dyn Deferral>>,
}
