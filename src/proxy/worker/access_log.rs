//! The access log: one line for each request, and for each connection of a TCP service.
//!
//! A separate thread writes the lines. If the reader of standard output stalls, lines are dropped,
//! and no worker waits.

mod line;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::SystemTime;

use self::line::Line;
use super::request_values::RequestValues;
use crate::config::{AccessLogConfig, AccessLogField, AccessLogFormat, LoggedRequests};
use crate::log_writer::{LineClass, LogWriter};

/// The access log of one worker.
#[derive(Debug)]
pub(crate) struct AccessLog {
    only_errors: bool,
    format: AccessLogFormat,
    fields: Box<[AccessLogField]>,
    writer: LogWriter,
    line: RefCell<Vec<u8>>,
}

impl AccessLog {
    /// The access log of one worker; `None` if the configuration turns it off.
    pub(crate) fn new(config: &AccessLogConfig, writer: LogWriter) -> Option<Rc<Self>> {
        let only_errors = match config.requests {
            LoggedRequests::All => false,
            LoggedRequests::Errors => true,
            LoggedRequests::Off => return None,
        };
        let chosen = config.fields.as_deref().unwrap_or(AccessLogField::ALL);
        let fields = AccessLogField::ALL.iter().filter(|field| chosen.contains(field)).copied();
        let (format, fields, line) = (config.format, fields.collect(), RefCell::default());
        Some(Rc::new(Self { only_errors, format, fields, writer, line }))
    }

    /// Writes the line of a request that has ended, unless the configuration leaves it out.
    pub(super) fn write(&self, values: &RequestValues) {
        if self.only_errors && !values.is_error() {
            return;
        }
        let line = Line { values, fields: &self.fields, now: SystemTime::now() };
        let mut buffer = self.line.borrow_mut();
        buffer.clear();
        match self.format {
            AccessLogFormat::Common => buffer.extend_from_slice(line.common().as_bytes()),
            AccessLogFormat::Json => {
                if serde_json::to_writer(&mut *buffer, &line).is_err() {
                    return;
                }
            }
        }
        buffer.push(b'\n');
        self.writer.write_line(LineClass::Ordinary, &buffer);
    }
}
