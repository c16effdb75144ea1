//! Interim answers on their way to a client of HTTP/2: they go ahead of the answer on its stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use hyper::{HeaderMap, Response, StatusCode};

use super::MAX_WAITING;

/// What is to be said to one client before the answer to one request.
#[derive(Debug, Clone, Default)]
pub(in crate::proxy) struct BeforeAnswer(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Response<()>>,
    /// How much of it there was, in bytes. Nobody knows what the client has taken.
    said: usize,
    waker: Option<Waker>,
}

impl State {
    fn say(&mut self, status: StatusCode, headers: HeaderMap) {
        let mut interim = Response::new(());
        *interim.status_mut() = status;
        *interim.headers_mut() = headers;
        self.waiting.push(interim);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl BeforeAnswer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pass_on(&self, status: StatusCode, headers: HeaderMap) {
        let lengths = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let length = PER_ANSWER + lengths.sum::<usize>();
        let mut state = self.state();
        if state.said.saturating_add(length) <= MAX_WAITING {
            state.said += length;
            state.say(status, headers);
        }
    }

    pub(super) fn go_on(&self) {
        self.state().say(StatusCode::CONTINUE, HeaderMap::new());
    }

    /// What is to be said now. Whoever asks is woken when there is more.
    pub(in crate::proxy) fn take(&self, context: &Context<'_>) -> Vec<Response<()>> {
        let mut state = self.state();
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        std::mem::take(&mut state.waiting)
    }
}

/// What an interim answer without fields counts for, in bytes.
const PER_ANSWER: usize = 32;
