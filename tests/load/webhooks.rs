//! Webhooks of a CA and of a cluster at 1,000 questions a second.
//!
//! `KEYGATE_LOAD_QUESTIONS=200000` is the long form: so many questions of each protocol.

use std::time::{Duration, Instant};

use crate::support::asker::{Asker, HttpReply};
use crate::support::pki::Party;
use crate::support::webhook::{
    CSR, UID, deployed, is_issued, is_stored, post, request_of, review, signed, with_request,
    x509_certificate,
};

/// Questions a second, of all connections together.
const RATE: u32 = 1000;
const CONNECTIONS: u32 = 8;

fn questions() -> u32 {
    std::env::var("KEYGATE_LOAD_QUESTIONS").map_or(4000, |count| count.parse().unwrap())
}

/// Asks at [`RATE`], or as fast as a busy machine permits, each second time about the key in the
/// filter. Every answer is right. `cargo bench --bench ask` measures rate and latency.
fn ask(
    protocol: &str,
    question: impl Fn(&Party) -> String + Sync,
    is_allowed: impl Fn(&HttpReply) -> bool + Sync,
) {
    let keygate = deployed(protocol).start();
    let [good, lost] = [&keygate.good, &keygate.lost].map(&question);
    let (start, count) = (Instant::now(), questions());
    std::thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let (good, lost, is_allowed, keygate) = (&good, &lost, &is_allowed, &keygate);
            scope.spawn(move || {
                let mut asker = Asker::unix(&keygate.socket());
                for turn in (number..count).step_by(CONNECTIONS as usize) {
                    let due = start + Duration::from_secs(1) * turn / RATE;
                    // The rate is the subject of the test.
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    let is_good = (turn / CONNECTIONS).is_multiple_of(2);
                    let reply = asker.exchange(if is_good { good } else { lost }).unwrap();
                    assert_eq!(is_allowed(&reply), is_good, "{turn}: {}", reply.body);
                }
            });
        }
    });
    let series =
        |result| format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}");
    let counted = ["allowed", "denied"].map(|result| keygate.metric(&series(result)));
    assert_eq!(counted.iter().sum::<f64>(), f64::from(count));
}

#[test]
fn step_ca_gets_every_answer_at_a_thousand_questions_a_second() {
    ask("step-ca", |party| signed(&x509_certificate(&party.spki).to_string()), is_issued);
}

#[test]
fn the_api_server_gets_every_answer_at_a_thousand_reviews_a_second() {
    let question = |party: &Party| {
        post(&[], &review(CSR, "CREATE", with_request(&request_of(party))).to_string())
    };
    ask("admission", question, |reply| is_stored(reply, UID));
}
