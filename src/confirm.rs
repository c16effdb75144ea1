//! Queries to a source of proofs: whether a probably compromised key is compromised.
//!
//! Workers submit queries without waiting ([`Inquiry::submit`]). One task of the control thread
//! makes them, and replaces the answers that [`keygate_core::guard`] judges with. Without the table
//! `[confirm]` there are no queries. Nothing here decides about keys.
//!
//! | step | module |
//! | --- | --- |
//! | A worker submits a query. | `inquiry` |
//! | The query waits for its turn: single flight, bounded queue, rate, back-off. | `schedule`, `pace` |
//! | The key is looked up in the directories, then by the URL. Each proof is verified. | `lookup`, `proof_directory`, `client` |
//! | The outcome decides what is recorded, counted, logged, and when the key is queried again. | `task/outcome` |
//! | A key that the source does not know is cleared if the source knows its canary. | `task/canary` |
//! | The answer is recorded. | `answer_book` |
//! | The answer is put in use, open connections are judged again, and the query ends. | `task/publisher` |
//! | The answer is saved in the state directory. | `task/state_writer` |
//!
//! `task` wires these steps. Commands query a source without it, through `direct`.

mod answer_book;
mod client;
mod direct;
mod inquiry;
mod lookup;
mod pace;
mod proof_directory;
mod query;
mod report;
mod schedule;
mod source;
mod source_files;
mod task;

/// The target of all log lines about queries and answers.
const TARGET: &str = "keygate::confirm";

pub use self::direct::{DirectAnswer, DirectSource};
pub(crate) use self::inquiry::ClientQueries;
pub use self::inquiry::Inquiry;
pub use self::lookup::CanaryProblem;
pub(crate) use self::pace::{SourcePace, jittered};
pub(crate) use self::proof_directory::files as proof_files;
pub use self::query::{Query, Submission, UnderWay};
pub use self::report::{AnswerReport, CanaryState, ConfirmReport, ConfirmStatus};
pub use self::source::create_directories;
pub use self::source_files::ConfirmError;
pub use self::task::{AnswerFlusher, ConfirmationContext, ConfirmationTask};
