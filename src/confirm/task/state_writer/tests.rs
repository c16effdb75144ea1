//! Writes that succeed, fail, and wait for another process.

use keygate_core::guard::Answers;
use keygate_core::spki::Fingerprint;
use tokio::task::LocalSet;

use super::super::super::answer_book::Basis;
use super::super::super::source::Source;
use super::*;
use crate::config::CanaryConfig;
use crate::metrics::ControlMetrics;

struct Scene {
    root: tempfile::TempDir,
    book: AnswerBook,
    writer: StateWriter,
}

fn book() -> AnswerBook {
    let source = Source::fixture(None, CanaryConfig::Off);
    AnswerBook::new(Basis::default(), &source.config, unix_time::now())
}

/// A state directory, and the writer of a process that owns it or does not.
fn scene(owns_state: bool) -> Scene {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    let proofs = ProofDirectories { saved: Some(path.join("proofs")), configured: None };
    let thread = BlockingPool::new("keygate-confirm", 1).unwrap();
    let directory = StateDirectory { path, proofs, lock: None, thread };
    let failures = ControlMetrics::new().unwrap().state_write_failures;
    let book = book();
    let writer = StateWriter::new(Some(directory), owns_state, &book, failures);
    Scene { root, book, writer }
}

fn on_local_set(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test());
}

impl Scene {
    async fn end_write(&mut self) {
        let ended = self.writer.writes.join_next().await.unwrap();
        self.writer.end(ended, &mut self.book);
    }

    fn saved(&self) -> AnswerBook {
        let mut book = book();
        book.add_saved(self.root.path(), &ProofDirectories::default(), unix_time::now());
        book
    }

    fn found(&self, body: &[u8]) -> FoundProof {
        let (fingerprint, spki) = (Fingerprint::of(b"key"), b"key".as_slice().into());
        FoundProof { fingerprint, spki, body: body.to_vec(), file: None, is_saved: false }
    }
}

#[test]
fn changed_answers_are_saved_at_once_and_then_every_ten_seconds() {
    on_local_set(async || {
        let mut scene = scene(true);
        scene.writer.save(&scene.book);
        assert!(scene.writer.writes.is_empty(), "nothing has changed");
        scene.book.clear(Fingerprint::of(b"one"), unix_time::now());
        scene.writer.save(&scene.book);
        scene.end_write().await;
        assert_eq!(scene.saved().cleared.len(), 1);
        assert_eq!(scene.writer.next_save(&scene.book), None);
        scene.book.clear(Fingerprint::of(b"two"), unix_time::now());
        scene.writer.save(&scene.book);
        assert!(scene.writer.writes.is_empty(), "the last write is too recent");
        let next = scene.writer.next_save(&scene.book).unwrap();
        assert_eq!(next, scene.writer.saved_at.unwrap() + SAVE_INTERVAL);
        scene.writer.flush(&mut scene.book).await;
        assert_eq!(scene.saved().cleared.len(), 2);
    });
}

#[test]
fn a_failed_write_is_counted_and_repeated_with_the_proof() {
    on_local_set(async || {
        let mut scene = scene(true);
        let found = scene.found(b"proof");
        let file = scene.writer.save_proof(&found).unwrap();
        scene.end_write().await;
        assert_eq!((scene.writer.failures.get(), scene.writer.unsaved.len()), (1, 1));
        std::fs::create_dir(scene.root.path().join("proofs")).unwrap();
        scene.writer.save(&scene.book);
        scene.writer.flush(&mut scene.book).await;
        assert_eq!(std::fs::read(file).unwrap(), b"proof");
        assert_eq!((scene.writer.failures.get(), scene.writer.unsaved.len()), (1, 0));
        assert_eq!(scene.writer.next_save(&scene.book), None);
    });
}

#[test]
fn a_saved_proof_stays_where_it_is() {
    on_local_set(async || {
        let mut scene = scene(true);
        let file = Some(PathBuf::from("proofs/file.jws"));
        let found = FoundProof { is_saved: true, file: file.clone(), ..scene.found(b"proof") };
        assert_eq!(scene.writer.save_proof(&found), file);
        assert!(scene.writer.writes.is_empty());
    });
}

#[test]
fn a_process_that_takes_over_adds_the_answers_in_the_file_and_saves_both() {
    on_local_set(async || {
        let mut scene = scene(false);
        let (first, second) = (Fingerprint::of(b"first"), Fingerprint::of(b"second"));
        let mut other = book();
        other.clear(first, unix_time::now());
        write(&state_file(scene.root.path()), &other.to_file().unwrap()).unwrap();
        scene.book.clear(second, unix_time::now());
        scene.writer.save(&scene.book);
        scene.end_write().await;
        let has = |answers: &Answers, key| answers.cleared_until(key).is_some();
        assert!(has(&scene.book.answers, &first) && has(&scene.book.answers, &second));
        scene.writer.save(&scene.book);
        scene.end_write().await;
        assert_eq!(scene.saved().cleared.len(), 2);
    });
}
