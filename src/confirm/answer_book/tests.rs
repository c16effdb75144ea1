//! Answers over time, and their file.

use super::super::lookup::ProofDirectories;
use super::super::proof_directory::write;
use super::super::source::Source;
use super::state_file::MAX_SIZE;
use super::*;
use crate::config::CanaryConfig;

const NOW: u64 = 1_790_000_000;
const DAY: Duration = Duration::from_secs(86_400);

fn book() -> AnswerBook {
    let filters = BTreeMap::from([("lost".to_owned(), "00".repeat(32))]);
    let basis = Basis { source: "https://a.example".to_owned(), filters };
    let source = Source::fixture(None, CanaryConfig::Off); // a day, and seven
    AnswerBook::new(basis, &source.config, NOW)
}

fn key(number: u64) -> (Fingerprint, Arc<[u8]>) {
    // As large as an RSA key of 4096 bits.
    let spki: Arc<[u8]> = [number.to_be_bytes().as_slice(), &[0; 542]].concat().into();
    (Fingerprint::of(&spki), spki)
}

#[test]
fn the_state_file_is_bounded_and_is_read_again() {
    let mut book = book();
    for number in 0..10_000 {
        let (fingerprint, spki) = key(number);
        book.confirm(fingerprint, spki);
        book.clear(Fingerprint::of(&number.to_be_bytes()), NOW + number);
    }
    assert_eq!((book.cleared.len(), book.confirmed.len()), (MAX_CLEARED, 10_000));
    let text = book.to_file().unwrap();
    assert!(text.len() <= MAX_SIZE && text.len() > MAX_SIZE * 3 / 4, "{}", text.len());
    let directory = tempfile::tempdir().unwrap();
    write(&state_file(directory.path()), &text).unwrap();
    let mut again = self::book();
    again.add_saved(directory.path(), &ProofDirectories::default(), NOW);
    assert!(again.cleared.len() > 3000, "{}", again.cleared.len());
    let newest = Fingerprint::of(&9_999_u64.to_be_bytes());
    assert!(again.cleared.iter().any(|(fingerprint, _)| *fingerprint == newest));
    assert_eq!(again.confirmed.len(), 0, "without a proof, nothing is confirmed");
}

#[test]
fn a_proof_without_room_ends_the_clearance_of_its_key() {
    let mut book = book();
    let (cleared, spki) = key(u64::MAX);
    book.clear(cleared, NOW);
    for number in 0..MAX_CONFIRMED as u64 {
        let (fingerprint, spki) = key(number);
        book.confirmed.insert(fingerprint, spki);
    }
    let (first, of_first) = key(0);
    assert_eq!(book.confirm(first, of_first), ProofEffect::New);
    assert_eq!(book.confirm(cleared, spki), ProofEffect::NoRoom);
    assert_eq!((book.cleared.len(), book.confirmed.len()), (0, MAX_CONFIRMED));
    assert!(!book.answers.is_cleared(&cleared, UNIX_EPOCH + Duration::from_secs(NOW)));
    assert!(!book.answers.is_confirmed(&cleared));
}

#[test]
fn a_clearance_is_due_after_its_time_and_ends_after_the_stale_time() {
    let mut book = book();
    let (fingerprint, _) = key(1);
    let clearance = book.clear(fingerprint, NOW);
    let day = 86_400;
    assert!((NOW + day * 9 / 10..=NOW + day * 11 / 10).contains(&clearance.due));
    assert_eq!(book.next_event(), Some(clearance.due));
    assert!(!book.expire(clearance.due - 1));
    assert!(book.expire(clearance.due));
    assert!(!book.expire(clearance.due));
    let (end, revision) = (clearance.due + 7 * day, book.revision);
    assert_eq!(book.next_event(), Some(end));
    book.expire(end - 1);
    assert!(book.answers.is_cleared(&fingerprint, UNIX_EPOCH + Duration::from_secs(end - 1)));
    assert!(!book.answers.is_cleared(&fingerprint, UNIX_EPOCH + Duration::from_secs(end)));
    assert_eq!(book.revision, revision);
    book.expire(end);
    assert!(book.revision > revision);
    assert_eq!(book.answers.cleared().len(), 0);
}

#[test]
fn a_restart_with_another_filter_does_not_prolong_a_clearance() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = book();
    let (fingerprint, _) = key(1);
    let clearance = first.clear(fingerprint, NOW);
    write(&state_file(directory.path()), &first.to_file().unwrap()).unwrap();
    let end = clearance.due + 7 * DAY.as_secs();
    for days in [2, 4, 6] {
        let mut book = book();
        book.basis.filters.values_mut().for_each(|it| *it = days.to_string());
        book.add_saved(directory.path(), &ProofDirectories::default(), NOW + days * 86_400);
        assert_eq!(book.cleared[&fingerprint].due, clearance.due, "{days}");
        write(&state_file(directory.path()), &book.to_file().unwrap()).unwrap();
    }
    let mut book = book();
    book.add_saved(directory.path(), &ProofDirectories::default(), end);
    assert_eq!(book.cleared.len(), 0);
}

#[test]
fn another_source_forgets_and_another_filter_asks_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = book();
    let (fingerprint, _) = key(1);
    first.clear(fingerprint, NOW);
    write(&state_file(directory.path()), &first.to_file().unwrap()).unwrap();
    let read = |change: fn(&mut Basis)| {
        let mut book = book();
        change(&mut book.basis);
        book.add_saved(directory.path(), &ProofDirectories::default(), NOW + 1);
        book.cleared.get(&fingerprint).copied()
    };
    assert!(read(|_| {}).unwrap().due > NOW + 1);
    assert_eq!(read(|basis| basis.source.push('x')), None);
    let due = read(|basis| basis.filters.values_mut().for_each(|it| it.push('x')));
    assert_eq!(due.unwrap().due, NOW + 1);
}
