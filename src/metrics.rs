//! All metrics of keygate as typed handles, named in this one place.
//!
//! `series!` declares a series once. Each worker has its own registry, so that counting is an
//! uncontended addition. A scrape sums the registries ([`Exposition`]). Handles are resolved once,
//! not for each request. Series exist from the start, at zero. Label values come from enums and the
//! configuration, never from a client. [`Label`] is implemented here for enums of rooms that this
//! room uses. A room that uses this one defines its own labels with the macro `labels`.

mod authorizer;
mod confirm;
mod control;
mod exposition;
mod filter;
mod guarded_file;
mod judgements;
mod labels;
mod list;
mod logs;
mod scrape;
mod series;
mod traces;
mod worker;

pub use authorizer::AuthorizerMetrics;
pub use confirm::ConfirmMetrics;
pub use control::ControlMetrics;
pub use exposition::Exposition;
pub use filter::FilterMetrics;
pub use guarded_file::{FileChecks, GuardedFileMetrics};
pub use judgements::JudgementMetrics;
pub(crate) use labels::labels;
pub use labels::{
    CodeClass, ConfirmationResult, ConnectionResult, Family, KeyAction, KeyAlgorithm, Label,
    LogName, NameResult, OwnStatus, QuestionResult, ReloadResult, SpanDrop, UpstreamFailure,
    WaitOutcome,
};
pub use list::ListMetrics;
pub use logs::LogMetrics;
pub use scrape::{Buckets, ByService, Scrape};
pub use traces::TraceMetrics;
pub use worker::{ServiceMetrics, WorkerMetrics};
