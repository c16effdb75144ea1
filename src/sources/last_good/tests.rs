use std::path::Path;
use std::{fs, io};

use super::*;

/// A time at which a file that is written now has settled.
fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(1)
}

fn last_good(path: &Path) -> LastGood<String> {
    let paths = vec![path.to_owned()];
    let read = || fs::read_to_string(path);
    LastGood::load(paths, SystemTime::now(), &MaxWait::default(), read).unwrap()
}

fn file(content: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, content).unwrap();
    (directory, path)
}

fn rename_over(path: &Path, content: &str) {
    let next = path.with_extension("next");
    fs::write(&next, content).unwrap();
    fs::rename(next, path).unwrap();
}

/// The content that is read, or `None` if the caller waits or nothing has changed.
fn reread(value: &mut LastGood<String>, path: &Path, now: SystemTime) -> Option<String> {
    match value.reread(ReadIf::Changed, now, |_| fs::read_to_string(path)) {
        Reread::Read(content) => Some(content.unwrap()),
        Reread::Pending | Reread::Unchanged => None,
    }
}

type Outcome = Reread<Result<(), io::Error>>;

fn done(_: &String) -> io::Result<()> {
    Ok(())
}

fn is_pending(outcome: &Outcome) -> bool {
    matches!(outcome, Reread::Pending)
}

#[test]
fn a_file_is_read_again_only_if_it_has_changed_or_the_caller_insists() {
    let (_directory, path) = file("1");
    let mut value = last_good(&path);
    let outcome: Outcome = value.reread(ReadIf::Changed, later(), done);
    assert!(matches!(outcome, Reread::Unchanged));
    let outcome: Outcome = value.reread(ReadIf::Always, later(), done);
    assert!(matches!(outcome, Reread::Read(Ok(()))));
    fs::write(&path, "22").unwrap();
    let read = value.reread(ReadIf::Changed, later(), |before| io::Result::Ok(before.clone()));
    assert!(matches!(read, Reread::Read(Ok(before)) if before == "1"));
    let outcome: Outcome = value.reread(ReadIf::Changed, later(), done);
    assert!(matches!(outcome, Reread::Unchanged));
}

#[test]
fn a_file_that_is_being_written_is_read_later() {
    let (_directory, path) = file("1");
    let mut value = last_good(&path);
    fs::write(&path, "22").unwrap();
    assert!(is_pending(&value.reread(ReadIf::Changed, SystemTime::now(), done)));
    let locked = |_: &String| Err(io::Error::from(io::ErrorKind::ResourceBusy));
    assert!(is_pending(&value.reread(ReadIf::Changed, later(), locked)));
    let changing = |_: &String| fs::write(&path, "333");
    assert!(is_pending(&value.reread(ReadIf::Changed, later(), changing)));
    assert!(matches!(value.reread(ReadIf::Changed, later(), done), Reread::Read(Ok(()))));
}

#[test]
fn the_time_of_sources_that_cannot_be_used_shortens_the_wait_of_the_others() {
    let (_directory, path) = file("1");
    let (max_wait, mut reads) = (MaxWait::default(), 0);
    max_wait.spend(MAX_FIRST_WAIT / 2);
    max_wait.spend(MAX_FIRST_WAIT);
    let result = LastGood::<()>::load(vec![path], SystemTime::now(), &max_wait, || {
        reads += 1;
        Err(io::Error::from(io::ErrorKind::ResourceBusy))
    });
    assert_eq!(result.unwrap_err().error.kind(), io::ErrorKind::ResourceBusy);
    assert_eq!(reads, 1);
}

#[test]
fn a_file_that_is_renamed_over_without_a_pause_is_read_after_the_maximum_time() {
    let (_directory, path) = file("0");
    let mut value = last_good(&path);
    let mut replace = |content: &str, waited: Duration| {
        rename_over(&path, content);
        if let Some(unsettled) = &mut value.unsettled {
            unsettled.since = SystemTime::now() - waited;
        }
        reread(&mut value, &path, SystemTime::now())
    };
    assert_eq!(replace("1", Duration::ZERO), None);
    assert_eq!(replace("22", MAX_UNSETTLED / 2), None);
    assert_eq!(replace("333", MAX_UNSETTLED).as_deref(), Some("333"));
    assert_eq!(replace("4444", Duration::ZERO), None, "the wait begins again");
}

#[test]
fn a_file_that_is_written_in_place_without_a_pause_is_read_much_later() {
    let (_directory, path) = file("0");
    let mut value = last_good(&path);
    let mut write = |content: &str, waited: Duration| {
        fs::write(&path, content).unwrap();
        if let Some(unsettled) = &mut value.unsettled {
            unsettled.since = SystemTime::now() - waited;
        }
        reread(&mut value, &path, SystemTime::now())
    };
    assert_eq!(write("1", Duration::ZERO), None);
    assert_eq!(write("22", MAX_UNSETTLED), None);
    assert_eq!(write("333", MAX_WRITING).as_deref(), Some("333"));
}

#[test]
fn a_writer_that_is_never_done_is_reported_once() {
    let (_directory, path) = file("0");
    let mut value = last_good(&path);
    fs::write(&path, "1").unwrap();
    let locked = |_: &String| Err::<(), _>(io::Error::from(io::ErrorKind::ResourceBusy));
    assert!(is_pending(&value.reread(ReadIf::Changed, later(), locked)));
    let mut news = Vec::new();
    for minutes in 1..=3 {
        let now = later() + minutes * MAX_WRITING;
        let Reread::Read(Err(error)) = value.reread(ReadIf::Changed, now, locked) else {
            panic!("not read")
        };
        news.push(value.record_rejection(None, error.failure(), &error.to_string(), now));
    }
    assert_eq!(news, [true, false, false]);
    assert!(matches!(value.reread(ReadIf::Changed, later(), done), Reread::Read(Ok(()))));
}

#[test]
fn an_unchanged_file_that_could_not_be_read_is_read_again_and_reported_once() {
    let (_directory, path) = file("1");
    let mut value = last_good(&path);
    fs::write(&path, "22").unwrap();
    let mut fail = |kind: io::ErrorKind| {
        let failed = |_: &String| Err::<(), _>(io::Error::from(kind));
        match value.reread(ReadIf::Changed, later(), failed) {
            Reread::Read(Err(error)) => {
                Some(value.record_rejection(None, error.failure(), &error.to_string(), later()))
            }
            Reread::Read(Ok(())) | Reread::Pending | Reread::Unchanged => None,
        }
    };
    assert_eq!(fail(io::ErrorKind::OutOfMemory), Some(true));
    assert_eq!(fail(io::ErrorKind::OutOfMemory), Some(false), "the same error");
    assert_eq!(fail(io::ErrorKind::PermissionDenied), Some(true), "another error");
    assert_eq!(fail(io::ErrorKind::InvalidData), Some(true), "the content");
    assert_eq!(fail(io::ErrorKind::InvalidData), None, "the content has not changed");
    fs::write(&path, "333").unwrap();
    assert_eq!(fail(io::ErrorKind::InvalidData), Some(true), "another file");
}

#[test]
fn the_first_read_waits_for_the_writer() {
    let (_directory, path) = file("torn");
    let mut reads = 0;
    let max_wait = MaxWait::default();
    let value = LastGood::load(vec![path.clone()], SystemTime::now(), &max_wait, || {
        reads += 1;
        match reads {
            1 => Err(io::Error::from(io::ErrorKind::ResourceBusy)),
            2 => {
                fs::write(&path, "whole").unwrap();
                Err(io::Error::from(io::ErrorKind::InvalidData))
            }
            _ => fs::read_to_string(&path),
        }
    });
    assert_eq!(value.unwrap().get(), "whole");
}

#[test]
fn a_rejection_keeps_the_value_and_is_reported() {
    let (_directory, path) = file("1");
    let mut value = last_good(&path);
    assert!(value.last_attempt().is_none());
    assert_eq!(value.last_reload().error, None);
    let error = io::Error::from(io::ErrorKind::InvalidData);
    assert!(value.record_rejection(None, error.failure(), &error.to_string(), later()));
    assert_eq!(value.get(), "1");
    assert!(value.last_reload().error.is_some());
    value.replace("22".to_owned(), later());
    assert_eq!(value.get(), "22");
    assert_eq!(value.last_reload().error, None);
}
