//! The series of an authorizer: the questions of other proxies.

use prometheus::{Histogram, IntCounter, IntGauge};

use super::JudgementMetrics;
use super::labels::{Family, QuestionResult};
use super::series::series;

/// Buckets in seconds: a question takes some microseconds, and a verified chain some hundred.
const QUESTION_BUCKETS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05,
    0.1, 1.0,
];

series! {
    /// The series of one authorizer in one worker.
    pub struct AuthorizerMetrics, AuthorizerSeries {
        pub askers_active: IntGauge = "askers_active"["service"]
            "Open connections of other proxies to an authorizer.",
        pub questions: Family<QuestionResult, IntCounter> = "questions_total"["service", "result"]
            "Questions of other proxies by result; not_allowed counts connections of peers that may not ask, client_not_allowed clients that no rule names.",
        pub question_duration: Histogram = "question_duration_seconds"["service"] in QUESTION_BUCKETS
            "Time from a complete question of another proxy to its answer.",
    } with {
        /// The verdicts on clients.
        pub judgements: JudgementMetrics,
    }
}
