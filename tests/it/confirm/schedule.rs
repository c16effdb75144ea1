//! Ten thousand distinct keys at once: never more than four queries are under way, and all are
//! answered or counted.
//!
//! Guards: `MAX_UNDER_WAY` and `drop_oldest` in `src/confirm/schedule.rs`, `slots` in
//! `src/confirm/client.rs`.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use keygate::config::Config;
use keygate::confirm::{ConfirmationContext, ConfirmationTask, Inquiry, Query, Submission};
use keygate::metrics::{ConfirmationResult, ControlMetrics};
use keygate::resolver::Resolver;
use keygate::snapshot::Loader;
use keygate::sources::JudgementContext;
use keygate_core::guard::CurrentAnswers;
use keygate_core::spki::Fingerprint;
use smallvec::smallvec;
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::support::pki::Pki;
use crate::support::proof_source::{ProofSource, Reply, canary, not_found, proof};
use crate::support::proxy::{Configuration, Configure};
use crate::support::write_filter;

const KEYS: u64 = 10_000;

/// `reply`, late enough that further requests would arrive meanwhile.
fn slow(reply: Reply) -> Reply {
    Arc::new(move |stream| {
        std::thread::sleep(Duration::from_millis(5));
        reply(stream)
    })
}

#[test]
fn ten_thousand_keys_are_answered_or_counted_with_four_questions_under_way() {
    let (pki, source) = (Pki::new(), ProofSource::start());
    pki.server("server");
    let canary = canary(&pki);
    source.reply(&canary, slow(proof(&canary)));
    source.reply_to_others(slow(not_found()));
    write_filter(&pki.path("lost.pkbf"), &[]);
    let table = format!("url = \"{}\"\ncanary = \"canary.pem\"\nrate = 1000\n", source.url());
    let text = Configuration::new("127.0.0.1:1").add("confirm", &table).text();
    let config = Config::parse(&pki.path("keygate.toml"), &text).unwrap();
    let metrics = ControlMetrics::new().unwrap();
    let (_, snapshot) =
        Loader::start(&config, None, metrics.clone(), JudgementContext::default()).unwrap();
    let answers = CurrentAnswers::default();
    let queries = Inquiry::new(&config, answers.clone(), &metrics.confirm);
    let context = ConfirmationContext {
        queries: queries.clone(),
        answers: answers.clone(),
        metrics: metrics.clone(),
        resolver: Resolver::start().unwrap(),
        state_lock: None,
    };
    let confirm = config.confirm.as_ref().unwrap();
    let task = ConfirmationTask::new(confirm, None, &snapshot.guard, context).unwrap();
    let count = |result| metrics.confirm.results.of(result).get();
    let mut held = Vec::new();
    for key in 0..KEYS {
        let spki: Arc<[u8]> = key.to_be_bytes().as_slice().into();
        let encodings = smallvec![(Fingerprint::of(&spki), spki)];
        match queries.submit(Query { encodings }) {
            Submission::Answered | Submission::NotSoon => panic!("each may be answered in time"),
            Submission::UnderWay(under_way) => held.push(under_way),
        }
    }
    let dropped = count(ConfirmationResult::Dropped);
    assert!(dropped > 0 && dropped < KEYS, "{dropped}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let current = Arc::new(ArcSwap::from_pointee(snapshot));
    LocalSet::new().block_on(&runtime, async {
        tokio::task::spawn_local(task.run(current, watch::Sender::new(0)));
        for mut under_way in held {
            under_way.ended().await; // of a dropped question as well
        }
        while count(ConfirmationResult::Cleared) + dropped < KEYS {
            tokio::time::sleep(Duration::from_millis(5)).await; // polls a counter
        }
    });
    assert_eq!(count(ConfirmationResult::Cleared) + dropped, KEYS);
    assert_eq!(answers.load().cleared().len() as u64, KEYS - dropped);
    assert!(source.most_under_way() <= 4, "{}", source.most_under_way());
    let asked = source.taken().len() as u64;
    assert_eq!(asked, KEYS - dropped + 1, "each key once, and the canary");
}
