//! Questions to a source of proofs: whether a probably compromised key is compromised.
//!
//! Workers put questions without waiting ([`Questions::ask`]). One task of the control thread puts
//! them to the source, and replaces the answers that [`keygate_core::guard`] judges with. Nothing is asked
//! without the table `[confirm]`. Nothing here decides about keys.
//!
//! | step | module |
//! | --- | --- |
//! | A worker puts a question. | `questions` |
//! | The question waits for its turn: single flight, bounded queue, rate, back-off. | `schedule`, `pace` |
//! | It is put to the directories, then to the URL. Each proof is verified. | `lookup`, `proof_directory`, `client` |
//! | A key that the source does not know is cleared if the source knows its canary. | `asking_task/outcome`, `asking_task/canary` |
//! | The answer is put in use, open connections are judged again, and the question ends. | `asking_task` |
//! | The answer is kept in the state directory. | `answer_book` |
//!
//! Commands ask a source without the asking task, through `direct`.

mod answer_book;
mod asking_task;
mod client;
mod direct;
mod inquiry;
mod lookup;
mod pace;
mod proof_directory;
mod question;
mod questions;
mod report;
mod schedule;
mod source;
mod source_files;

/// The target of all log lines about questions and answers.
const TARGET: &str = "keygate::confirm";

pub use self::asking_task::{AnswerKeeper, AskingLinks, AskingTask};
pub use self::direct::{DirectAnswer, DirectSource};
pub(crate) use self::inquiry::Asked;
pub use self::inquiry::Inquiry;
pub use self::lookup::CanaryProblem;
pub use self::question::{Ask, Question, UnderWay};
pub use self::questions::Questions;
pub use self::report::{AnswerReport, CanaryState, ConfirmReport, ConfirmStatus};
pub use self::source::create_directories;
pub use self::source_files::ConfirmError;
