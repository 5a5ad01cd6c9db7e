//! What goes through the layer.

use std::{fmt, sync::Arc};

use steadfast_chat::{ChatRequest, Completion, Message, Part, Role};
use steadfast_core::{Call, CallContext, Failure, FaultSide, Needs, Profile, Reason, Scope};

use crate::TurnSink;

/// What a user sent to a thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionPrompt {
    /// The thread.
    pub thread: Arc<str>,
    /// The user's new messages, with model, tools, parameters and context of the calls that answer them. The layer puts the history in
    /// front of the messages. Instructions among them ([`Role::System`]) are for this run, and not kept.
    pub request: ChatRequest,
    /// The same for every retry of this prompt, and for no other prompt of the thread, such as the id that the channel gave the
    /// message. Without one every call is a new prompt.
    pub key: Option<Arc<str>>,
    /// The session that has to be live; `None`: whichever is.
    pub session: Option<u64>,
}

impl SessionPrompt {
    /// To this thread.
    pub fn new(thread: impl Into<Arc<str>>, request: ChatRequest) -> Self {
        Self { thread: thread.into(), request, key: None, session: None }
    }

    /// With this idempotency key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Arc<str>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// In this session; when another one is live, the prompt is refused.
    #[must_use]
    pub fn in_session(mut self, session: u64) -> Self {
        self.session = Some(session);
        self
    }
}

/// A run of an agent: what the inner service is called with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionRun {
    /// The thread.
    pub thread: Arc<str>,
    /// The live session.
    pub session: u64,
    /// The system prompt, the history and the prompt, as its target accepts it; the rest is the prompt's.
    pub request: ChatRequest,
    /// Where turns are reported that end before the last one.
    pub turns: TurnSink,
}

/// A finished turn: what the inner service answers with. The messages that it adds after the prompt, or after the turn before.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "a turn is added to the history by the layer"]
#[non_exhaustive]
pub struct SessionTurn {
    /// The messages: the model's, with its calls, and their results.
    pub messages: Vec<Message>,
    /// The whole history after the turn, when the agent made it shorter; without it, the messages are added to the history. The log has
    /// the messages either way.
    pub history: Option<Vec<Message>>,
}

impl SessionTurn {
    /// With these messages.
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, history: None }
    }

    /// Replaces the history by this one, which includes the turn.
    pub fn with_history(mut self, history: Vec<Message>) -> Self {
        self.history = Some(history);
        self
    }

    /// A turn of one answer.
    ///
    /// # Errors
    ///
    /// The answer has not ended, or there is nothing in it: it is no part of a history.
    pub fn from_answer(answer: Completion) -> Result<Self, Failure> {
        let what = match (answer.ended, answer.parts.iter().all(is_nothing)) {
            (false, _) => "has not ended",
            (true, true) => "is empty",
            (true, false) => return Ok(Self::new(vec![answer.into_message()])),
        };
        let text = format!("the answer {what}, so it is not added to the history");
        Err(Failure::new(Reason::ServerError, text).with_evidence("session"))
    }

    /// What is wrong with it as a part of a history, if anything.
    pub(crate) fn fault(messages: &[Message]) -> Option<&'static str> {
        if messages.iter().any(|message| message.role() == Role::System) {
            return Some("has instructions in it, which are put together anew for each run");
        }
        let is_empty = |message: &Message| message.parts().iter().all(is_nothing);
        messages.iter().any(is_empty).then_some("has an empty message")
    }
}

/// Whether a part has no content.
fn is_nothing(part: &Part) -> bool {
    match part {
        Part::Text(text) => text.text.is_empty() && text.signature.is_none(),
        _ => false,
    }
}

impl From<Vec<Message>> for SessionTurn {
    fn from(messages: Vec<Message>) -> Self {
        Self::new(messages)
    }
}

impl From<Message> for SessionTurn {
    fn from(message: Message) -> Self {
        Self::new(vec![message])
    }
}

/// What the layer answers with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionReply {
    /// The session.
    pub session: u64,
    /// The last turn of the run; 0 when nothing was ever added.
    pub turn: u64,
    /// What the run added, without the prompt: all turns of it, or of a run that goes on after an interruption, those since.
    pub messages: Vec<Message>,
    /// Whether all of it is on the disk. If not, it is in memory and saved later.
    pub saved: bool,
    /// Nothing was run: the prompt had been answered before, and this is that answer.
    pub replayed: bool,
    /// What the user is to read before the answer, if anything: [`LOST_HISTORY`](crate::LOST_HISTORY).
    pub notice: Option<&'static str>,
}

impl SessionReply {
    /// The text of the model's last message.
    pub fn text(&self) -> String {
        let last = self.messages.iter().rfind(|message| message.role() == Role::Assistant);
        last.map(Message::text).unwrap_or_default()
    }
}

macro_rules! call_by_its_request {
    ($($type:ident)*) => {$(
        impl Call for $type {
            fn context(&self) -> &CallContext {
                self.request.context()
            }

            fn context_mut(&mut self) -> &mut CallContext {
                self.request.context_mut()
            }

            fn model(&self) -> Option<&str> {
                self.request.model()
            }

            fn is_whole(&self) -> Option<bool> {
                // Whatever its calls are: its answer comes at once.
                Some(true)
            }

            fn prompt_digest(&self) -> Option<u64> {
                self.request.prompt_digest()
            }

            fn needs(&self) -> Needs {
                self.request.needs()
            }

            fn adapt(&mut self, profile: &Profile) -> Result<(), Failure> {
                self.request.adapt(profile)
            }
        }
    )*};
}

call_by_its_request!(SessionPrompt SessionRun);

/// The failure of a prompt without any message.
pub(crate) fn no_messages(thread: &str) -> Failure {
    Failure::refused(Reason::Format, format!("the prompt for thread `{thread}` has no message"))
        .with_scope(Scope::Local)
        .with_fault(FaultSide::Caller)
        .with_evidence("session")
}

impl fmt::Display for SessionReply {
    /// What the user is to read: the notice, if there is one, and the answer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(notice) = self.notice {
            write!(f, "{notice}\n\n")?;
        }
        f.write_str(&self.text())
    }
}
