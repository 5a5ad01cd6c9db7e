//! The loop around a service.

use std::{
    fmt,
    hint::black_box,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use futures_core::Stream;
use steadfast_chat::{ChatResponse, Events};
use tower::Service;

/// A service and the loop that calls it.
pub struct Case {
    /// Its name in the table.
    pub name: &'static str,
    /// Makes that many calls.
    pub run: Box<dyn FnMut(u32) + Send>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

/// What a caller does with a reply.
pub(crate) trait Use {
    /// Reads it to its end.
    fn use_up(self, context: &mut Context<'_>);
}

impl Use for u64 {
    fn use_up(self, _: &mut Context<'_>) {
        black_box(self);
    }
}

impl<S: Events + Unpin> Use for ChatResponse<S> {
    fn use_up(mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some(event)) = Pin::new(&mut self).poll_next(context) {
            black_box(&event);
        }
    }
}

/// Calls `service` and reads its answer. All futures are ready at once.
pub(crate) fn case<S, R>(name: &'static str, service: S, ask: R) -> Case
where
    R: Clone + Send + 'static,
    S: Service<R> + Send + 'static,
    S::Response: Use,
{
    case_of(name, service, ask, |reply: Result<S::Response, S::Error>, context| {
        if let Ok(reply) = reply {
            reply.use_up(context);
        } else {
            unreachable!("the service answers");
        }
    })
}

/// The same for a service that refuses.
pub(crate) fn refusal<S, R>(name: &'static str, service: S, ask: R) -> Case
where
    R: Clone + Send + 'static,
    S: Service<R> + Send + 'static,
{
    case_of(name, service, ask, |reply: Result<S::Response, S::Error>, _| {
        assert!(black_box(reply).is_err());
    })
}

fn case_of<S, R>(
    name: &'static str,
    mut service: S,
    ask: R,
    end: impl Fn(Result<S::Response, S::Error>, &mut Context<'_>) + Send + 'static,
) -> Case
where
    R: Clone + Send + 'static,
    S: Service<R> + Send + 'static,
{
    let run = move |calls| {
        let context = &mut Context::from_waker(Waker::noop());
        for _ in 0..calls {
            assert!(service.poll_ready(context).is_ready());
            let mut future = pin!(service.call(black_box(ask.clone())));
            let reply = loop {
                match future.as_mut().poll(context) {
                    Poll::Ready(reply) => break reply,
                    // Nothing here waits for I/O, but some services wait for another thread.
                    Poll::Pending => std::thread::yield_now(),
                }
            };
            end(reply, context);
        }
    };
    Case { name, run: Box::new(run) }
}
