//! Traces: a span for each sampled request, with a child for each attempt to exchange it
//! with the upstream, exported over OTLP/HTTP. Nothing is traced without the table `[traces]`.
//!
//! | step | module |
//! | --- | --- |
//! | A request continues the trace of its client, or begins one. It is sampled or not. | `tracer`, `context` |
//! | Its spans get the data of the request when its response has ended. | `finished_request` |
//! | They wait in a bounded queue, or are dropped and counted. No worker waits. | `tracer` |
//! | One task of the control thread sends them in batches. | `export_task`, `exporter` |
//! | A batch becomes an `ExportTraceServiceRequest`. | `otlp` |
//!
//! Only `otlp` needs the crates of OpenTelemetry, which are behind the cargo feature
//! `opentelemetry`. A build without it rejects the table `[traces]`.
//!
//! Sources: <https://www.w3.org/TR/trace-context/>,
//! <https://opentelemetry.io/docs/specs/otlp/#otlphttp>,
//! <https://opentelemetry.io/docs/specs/semconv/http/http-spans/>

mod context;
mod export_files;
mod export_task;
mod exporter;
mod finished_request;
#[cfg(feature = "opentelemetry")]
mod otlp;
#[cfg(not(feature = "opentelemetry"))]
#[path = "traces/otlp_absent.rs"]
mod otlp;
mod tracer;

pub(crate) use self::context::RequestTrace;
pub use self::export_files::TracesError;
pub use self::export_task::{ExportTask, TraceFlusher};
pub(crate) use self::finished_request::{FailedAttempts, FinishedExchange, FinishedRequest};
pub use self::tracer::SpanQueue;
pub(crate) use self::tracer::Tracer;

/// The target of all log lines about the export of traces.
const TARGET: &str = "keygate::traces";
