//! Questions and answers: NOTIFY frames, and the ACK frame of each.
//!
//! The content of an argument comes from a client. A payload that cannot be read is therefore
//! denied in the ACK, because a DISCONNECT would fail the questions of other clients, too.
//! Source: HAProxy, `doc/SPOE.txt`, sections 3.2.6, 3.2.7 and 3.4.

use std::time::Instant;

use keygate_core::spki::Fingerprint;
use keygate_wire::spop::frame::{FrameHeader, FrameWriter, VariableScope, kind};
use keygate_wire::spop::value::{BrokenFrame, FrameReader};

use super::arguments::Arguments;
use crate::ask::question::{Answer, ClientQuestion, Presented, Unusable};

/// The messages that keygate answers, and the scope of their variables. The answer to
/// `keygate-connection` lasts as long as the connection of the client.
const MESSAGES: [(&[u8], VariableScope); 2] = [
    (b"keygate-connection", VariableScope::Session),
    (b"keygate-request", VariableScope::Transaction),
];

/// Reads all messages of a NOTIFY frame: at most one of each, in the order of [`MESSAGES`]. Messages
/// of other names are skipped.
fn read<'a>(
    frame: &mut FrameReader<'a>,
) -> Result<[Option<Arguments<'a>>; MESSAGES.len()], Unusable> {
    let mut messages = [const { None }; MESSAGES.len()];
    while !frame.is_empty() {
        let (name, arguments) = message(frame)
            .map_err(|BrokenFrame| Unusable::Malformed("a message that cannot be read"))?;
        let place = MESSAGES.iter().position(|(known, _)| *known == name);
        if let Some(place) = place.and_then(|place| messages.get_mut(place))
            && place.replace(arguments).is_some()
        {
            return Err(Unusable::Malformed("a message occurs twice"));
        }
    }
    if messages.iter().all(Option::is_none) {
        return Err(Unusable::Malformed(
            "no message with the name keygate-request or keygate-connection",
        ));
    }
    Ok(messages)
}

fn message<'a>(frame: &mut FrameReader<'a>) -> Result<(&'a [u8], Arguments<'a>), BrokenFrame> {
    let (name, count) = (frame.string()?, frame.byte()?);
    Ok((name, Arguments::read(frame, count)?))
}

/// Writes the ACK of a NOTIFY frame with these `messages`. Each ACK has an action, because HAProxy
/// before 3.2-dev7 mishandles an ACK without.
pub(super) fn acknowledge(
    header: FrameHeader,
    received: Instant,
    mut messages: FrameReader<'_>,
    max_frame_size: usize,
    answer: &mut impl FnMut(&ClientQuestion<'_>) -> Answer,
    output: &mut Vec<u8>,
) {
    let messages = match read(&mut messages) {
        Ok(messages) => messages,
        Err(unusable) => return deny(header, received, unusable, answer, output),
    };
    let mut ack = FrameWriter::begin(output, kind::ACK, header.stream, header.frame);
    for ((_, scope), arguments) in MESSAGES.into_iter().zip(messages) {
        let Some(arguments) = arguments else { continue };
        let question = ClientQuestion {
            received,
            presented: arguments.presented(),
            client: arguments.source(),
            server_name: arguments.server_name(),
            object: None,
        };
        let answer = answer(&question);
        set_variables(&mut ack, scope, &answer, question.fingerprint());
    }
    if ack.length() > max_frame_size {
        ack.clear();
        ack.set(VariableScope::Session, ACTION, "reject");
        ack.set(VariableScope::Transaction, ACTION, "reject");
    }
    ack.finish();
}

/// Writes an ACK that denies every message of the NOTIFY frame.
pub(super) fn deny(
    header: FrameHeader,
    received: Instant,
    unusable: Unusable,
    answer: &mut impl FnMut(&ClientQuestion<'_>) -> Answer,
    output: &mut Vec<u8>,
) {
    let presented = Presented::Unusable(unusable);
    let question =
        ClientQuestion { received, presented, client: None, server_name: None, object: None };
    let answer = answer(&question);
    let mut ack = FrameWriter::begin(output, kind::ACK, header.stream, header.frame);
    for scope in [VariableScope::Session, VariableScope::Transaction] {
        set_variables(&mut ack, scope, &answer, None);
    }
    ack.finish();
}

/// The variable that the rules of HAProxy read.
const ACTION: &str = "action";

fn set_variables(
    ack: &mut FrameWriter<'_>,
    scope: VariableScope,
    answer: &Answer,
    fingerprint: Option<Fingerprint>,
) {
    ack.set(scope, ACTION, answer.decision.as_str());
    ack.set(scope, "verdict", answer.verdict.as_str());
    ack.set(scope, "status", answer.status.to_str().unwrap_or(answer.verdict.as_str()));
    if let Some(Ok(assertion)) = answer.assertion.as_ref().map(|(_, value)| value.to_str()) {
        ack.set(scope, "assertion", assertion);
    }
    match fingerprint {
        Some(fingerprint) => ack.set(scope, "fingerprint", &fingerprint.to_string()),
        // A session may have the variable of an earlier question.
        None => ack.unset(scope, "fingerprint"),
    }
}
