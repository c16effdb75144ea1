//! Log lines between the threads that log and a reader that may stall.
//!
//! One thread writes all lines of a log. Lines that wait for it are bounded in bytes. Further lines
//! are dropped and counted, and no worker waits. Lines about security have room of their own.

mod file;

use std::io::{self, Write};
use std::mem;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use prometheus::IntCounter;
use tracing::warn;

pub use self::file::{LogFile, LogReopener};

/// Maximum bytes of ordinary lines that wait for the thread, 2 MiB. As many bytes may be in the
/// write that is in progress.
const MAX_ORDINARY_BYTES: usize = 2 << 20;
/// Maximum bytes of lines about security that wait for the thread, 512 KiB.
const MAX_SECURITY_BYTES: usize = 512 << 10;
/// Capacity that an empty buffer keeps, in bytes.
const KEPT_CAPACITY: usize = 64 << 10;
/// Time until a write is repeated that would have blocked, 10 ms.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum time until the rest of the lines is written at the end, 1 s. The rest is lost if the
/// reader stalls.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A log. Clones write to the same one.
#[derive(Debug, Clone)]
pub struct LogWriter(Arc<LineQueue>);

/// Writes the rest of the lines when it is dropped.
#[derive(Debug)]
pub struct LogWriterGuard {
    shared: Arc<LineQueue>,
    /// Closes when the thread has ended.
    ended: Receiver<()>,
}

/// The importance of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineClass {
    /// A line that clients can cause in any number.
    Ordinary,
    /// A line that must not be displaced by ordinary lines.
    Security,
}

/// The counters of dropped lines.
#[derive(Debug, Clone)]
pub struct DroppedLines {
    /// Dropped lines of [`LineClass::Ordinary`].
    pub ordinary: IntCounter,
    /// Dropped lines of [`LineClass::Security`].
    pub security: IntCounter,
}

#[derive(Debug)]
struct LineQueue {
    name: &'static str,
    dropped: DroppedLines,
    lines: Mutex<Lines>,
    changed: Condvar,
}

/// The lines that wait for the thread.
#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    counts: LineCounts,
    is_closed: bool,
}

/// The numbers of lines since the thread last took the lines.
#[derive(Debug, Default)]
struct LineCounts {
    ordinary: WaitingLines,
    security: WaitingLines,
    dropped: u64,
}

/// The lines of one class that wait.
#[derive(Debug, Default)]
struct WaitingLines {
    bytes: usize,
    lines: u64,
}

impl LogWriter {
    /// Starts a thread that writes lines to `sink`. `name` is the value of the field `log` in the
    /// line about dropped lines.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses a thread.
    pub fn start(
        name: &'static str,
        sink: impl Write + Send + 'static,
        dropped: DroppedLines,
    ) -> io::Result<(Self, LogWriterGuard)> {
        let (lines, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(LineQueue { name, dropped, lines, changed });
        let (ending, ended) = sync_channel(0);
        let writing = Arc::clone(&shared);
        let thread = Builder::new().name(format!("keygate-log-{name}"));
        thread.spawn(move || writing.write_lines(sink, &ending))?;
        Ok((Self(Arc::clone(&shared)), LogWriterGuard { shared, ended }))
    }

    /// Adds a line, which ends with a newline. Drops it if there is no room.
    pub fn write_line(&self, class: LineClass, line: &[u8]) {
        let mut lines = self.0.lock();
        let (waiting, maximum) = match class {
            LineClass::Ordinary => (&mut lines.counts.ordinary, MAX_ORDINARY_BYTES),
            LineClass::Security => (&mut lines.counts.security, MAX_SECURITY_BYTES),
        };
        let bytes = waiting.bytes.saturating_add(line.len());
        if bytes > maximum {
            lines.counts.dropped += 1;
            drop(lines);
            self.0.dropped.of(class).inc();
            return;
        }
        *waiting = WaitingLines { bytes, lines: waiting.lines + 1 };
        let was_empty = lines.text.is_empty();
        lines.text.extend_from_slice(line);
        drop(lines);
        if was_empty {
            self.0.changed.notify_one();
        }
    }
}

impl DroppedLines {
    fn of(&self, class: LineClass) -> &IntCounter {
        match class {
            LineClass::Ordinary => &self.ordinary,
            LineClass::Security => &self.security,
        }
    }
}

impl LineQueue {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_lines(&self, sink: impl Write, _ending: &SyncSender<()>) {
        let mut output = Output { sink, is_torn: false };
        let mut text = Vec::new();
        let mut dropped = 0;
        while let Some(taken) = self.take(&mut text) {
            dropped += taken.dropped;
            match output.write(&text) {
                Ok(()) if dropped > 0 => {
                    let lines = mem::take(&mut dropped);
                    // Uses the log itself, or, for the access log, the other one.
                    warn!(target: "keygate::log", log = self.name, lines, "log lines dropped");
                }
                Ok(()) => {}
                Err(_) => {
                    self.dropped.ordinary.inc_by(taken.ordinary.lines);
                    self.dropped.security.inc_by(taken.security.lines);
                    dropped += taken.ordinary.lines + taken.security.lines;
                }
            }
            text.clear();
            text.shrink_to(KEPT_CAPACITY);
        }
    }

    /// Waits for lines and moves them into `text`, which is empty. Returns their numbers, or `None`
    /// if the log is closed.
    fn take(&self, text: &mut Vec<u8>) -> Option<LineCounts> {
        let mut lines = self.lock();
        while lines.text.is_empty() {
            if lines.is_closed {
                return None;
            }
            lines = self.changed.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
        mem::swap(&mut lines.text, text);
        Some(mem::take(&mut lines.counts))
    }
}

/// The sink of a log.
struct Output<W> {
    sink: W,
    /// Whether the last line was written in part.
    is_torn: bool,
}

impl<W: Write> Output<W> {
    /// Writes `lines`. Waits for the reader also if the sink does not block, because another
    /// process that has the same pipe or terminal open can make it so.
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.write_all(b"\n")?; // the next line does not continue the torn one
        }
        self.write_all(lines)?;
        while let Err(error) = self.sink.flush() {
            wait_after(error)?;
        }
        Ok(())
    }

    fn write_all(&mut self, mut text: &[u8]) -> io::Result<()> {
        while !text.is_empty() {
            match self.sink.write(text) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    let (written, rest) = text.split_at_checked(count).unwrap_or((text, b""));
                    self.is_torn = !written.ends_with(b"\n");
                    text = rest;
                }
                Err(error) => wait_after(error)?,
            }
        }
        Ok(())
    }
}

/// Waits until a write that failed may be repeated.
///
/// # Errors
/// Returns `error` if it is not temporary.
fn wait_after(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::WouldBlock {
        std::thread::sleep(RETRY_INTERVAL);
    } else if error.kind() != io::ErrorKind::Interrupted {
        return Err(error);
    }
    Ok(())
}

impl Drop for LogWriterGuard {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
        let _ = self.ended.recv_timeout(FLUSH_TIMEOUT); // an error means that the thread has ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A sink that blocks until the test lets each write through.
    struct Gate {
        begun: Sender<()>,
        go: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.begun.send(()).unwrap();
            self.go.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.written.send(text.to_vec()).unwrap();
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn counters() -> DroppedLines {
        let counter = |name| IntCounter::new(name, "help").unwrap();
        DroppedLines { ordinary: counter("ordinary"), security: counter("security") }
    }

    #[test]
    fn a_stalled_reader_costs_bounded_memory_and_ordinary_lines_only() {
        let (begun, beginning) = channel();
        let (release, go) = channel();
        let (written, writes) = channel();
        let dropped = counters();
        let (log, guard) =
            LogWriter::start("test", Gate { begun, go, written }, dropped.clone()).unwrap();
        log.write_line(LineClass::Ordinary, b"first\n");
        beginning.recv().unwrap();
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        for _ in 0..10 * MAX_ORDINARY_BYTES / line.len() {
            log.write_line(LineClass::Ordinary, &line);
        }
        log.write_line(LineClass::Security, b"refused\n");
        let kept = MAX_ORDINARY_BYTES / line.len();
        assert_eq!(dropped.ordinary.get(), (10 * MAX_ORDINARY_BYTES / line.len() - kept) as u64);
        assert_eq!(dropped.security.get(), 0);
        assert_eq!(log.0.lock().text.len(), MAX_ORDINARY_BYTES + "refused\n".len());
        for _ in 0..2 {
            release.send(()).unwrap();
        }
        assert_eq!(writes.recv().unwrap(), b"first\n");
        assert!(writes.recv().unwrap().ends_with(b"x\nrefused\n"));
        drop((release, guard));
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (begun, _beginning) = channel();
        let (release, go) = channel();
        let (written, writes) = channel();
        let dropped = counters();
        let (log, guard) =
            LogWriter::start("test", Gate { begun, go, written }, dropped.clone()).unwrap();
        drop(release);
        log.write_line(LineClass::Security, b"refused\n");
        drop(guard);
        assert_eq!(writes.iter().count(), 0); // until the thread has ended
        assert_eq!((dropped.ordinary.get(), dropped.security.get()), (0, 1));
    }

    /// A sink that takes three bytes at a time, and fails with one of the errors before each.
    struct Faulty {
        errors: Vec<Option<io::ErrorKind>>,
        written: Vec<u8>,
    }

    impl Write for Faulty {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            if let Some(Some(error)) = self.errors.pop() {
                return Err(error.into());
            }
            let count = text.len().min(3);
            self.written.extend_from_slice(&text[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_sink_that_does_not_block_loses_nothing_and_a_torn_line_damages_no_other() {
        use io::ErrorKind::{StorageFull, WouldBlock};

        for (error, expected) in [(WouldBlock, "first\nsecond\n"), (StorageFull, "fir\nsecond\n")] {
            let sink = Faulty { errors: vec![Some(error), None], written: Vec::new() };
            let mut output = Output { sink, is_torn: false };
            let is_written = output.write(b"first\n").is_ok();
            assert_eq!(is_written, error == WouldBlock);
            output.write(b"second\n").unwrap();
            assert_eq!(String::from_utf8(output.sink.written).unwrap(), expected);
        }
    }

    #[test]
    fn the_end_writes_every_line() {
        let (begun, _beginning) = channel();
        let (release, go) = channel();
        let (written, writes) = channel();
        let (log, guard) =
            LogWriter::start("test", Gate { begun, go, written }, counters()).unwrap();
        for _ in 0..2 {
            release.send(()).unwrap();
        }
        log.write_line(LineClass::Ordinary, b"one\n");
        log.write_line(LineClass::Ordinary, b"two\n");
        drop(guard);
        let written: Vec<u8> = writes.iter().flatten().collect();
        assert_eq!(written, b"one\ntwo\n");
    }
}
