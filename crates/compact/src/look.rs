//! What a request calls for: mostly nothing, and that is found out without counting it.

use std::sync::Arc;

use steadfast_chat::{
    ChatRequest, Message, SharedVec,
    transcript::{repair, validate},
};

use crate::{
    Applied, Compacted, Count, Level, Notice, Room,
    event::{self, About},
    glance,
    memory::{Book, Conversation, Wire},
    state::{Facts, Own, Shared, add, model},
};

/// What a request calls for.
pub(crate) enum Look {
    /// It goes as it is now.
    Pass(Sight),
    /// It has to be compacted.
    Work,
}

/// What is remembered of a request that was let through.
#[derive(Default)]
pub(crate) struct Sight {
    /// Who learns from what the provider reports.
    pub(crate) watch: Option<Watch>,
    pub(crate) notice: Option<Box<Notice>>,
    /// The caller's own messages, when others are sent.
    pub(crate) caller: Option<SharedVec<Message>>,
    /// The window is filling, and whether that is new.
    warning: Option<bool>,
}

/// Learns from what the provider reports of a request.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) conversation: Arc<Conversation>,
    /// Which count it was; 0 for none.
    pub(crate) counted: u64,
    /// The bytes of a body that nobody had looked into.
    pub(crate) bytes: Option<usize>,
    pub(crate) model: u64,
}

/// A request as it stands after what was compacted before is put in its place.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) count: Count,
    pub(crate) level: Level,
    pub(crate) room: Room,
    pub(crate) applied: Option<Arc<Applied>>,
    pub(crate) caller: SharedVec<Message>,
}

impl Watch {
    /// The provider says that the request was `input` tokens.
    pub(crate) fn reported(&self, shared: &Shared, input: u64) {
        let mut book = self.conversation.book.lock();
        let book = &mut *book;
        if book.counted == self.counted {
            shared.config.counter.reported_last(&mut book.tape, input);
        }
        if let Some(bytes) = self.bytes.filter(|_| input > 0 && book.applied.is_none()) {
            book.wire = Some(Wire { model: self.model, bytes, tokens: input });
        }
    }
}

impl Shared {
    pub(crate) fn room(&self, facts: &Facts, request: &ChatRequest) -> Room {
        let counts = facts.output_counts(request);
        self.policy().room(facts.limits, request.params.max_output, counts)
    }

    /// Puts what was compacted before in its place, and counts.
    pub(crate) fn see(&self, book: &mut Book, request: &mut ChatRequest, facts: &Facts) -> Seen {
        let caller = request.messages.clone();
        let applied = book.standing(&caller, facts.limits.window);
        if let Some(applied) = &applied {
            applied.replace(request);
            // What was mended when it was compacted, and what the caller broke since.
            let rules = facts.rules(request);
            if validate(request, &rules).is_err() {
                let _ = repair(request, &rules);
            }
        }
        let (policy, room) = (self.policy(), self.room(facts, request));
        let counter = &self.config.counter;
        let mut count = counter.follow_by(&mut book.tape, request, model(request), &facts.scheme);
        let mut level = policy.level(room, count.upper);
        if level == Level::Compact {
            // Now it is worth looking at everything.
            count = counter.count(&mut book.tape, request, model(request));
            level = policy.level(room, count.upper);
        }
        book.counted += 1;
        book.tokens = count.tokens;
        Seen { count, level, room, applied, caller }
    }
}

/// What `request` calls for.
pub(crate) fn look<S>(own: &Own<S>, request: &mut ChatRequest) -> Look {
    let shared = &*own.shared;
    if shared.config.off {
        return Look::Pass(Sight::default());
    }
    let facts = own.facts(request);
    let (policy, room) = (shared.policy(), shared.room(&facts, request));
    let fine = |tokens| policy.level(room, tokens) == Level::Fine;
    if glance::at_most(request).is_some_and(fine) {
        return Look::Pass(Sight::default());
    }
    let Some(conversation) = shared.conversation(request) else {
        return look_once(shared, request, room);
    };
    let bytes = glance::body_len(request);
    let mut book = conversation.book.lock();
    if book.off {
        drop(book);
        return Look::Pass(switched_off(request));
    }
    if let Some(bytes) = bytes
        && book.applied.is_none()
        && let Some(wire) = book.wire.filter(|wire| wire.model == facts.model)
        && bytes >= wire.bytes
        && fine(wire.tokens.saturating_add((bytes - wire.bytes) as u64))
    {
        drop(book);
        let watch = Watch { conversation, counted: 0, bytes: Some(bytes), model: facts.model };
        return Look::Pass(Sight { watch: Some(watch), ..Sight::default() });
    }
    let seen = shared.see(&mut book, request, &facts);
    if seen.applied.is_none() && !book.covers(&seen.caller) {
        book.missed();
    }
    if seen.level == Level::Compact {
        request.messages = seen.caller;
        return Look::Work;
    }
    if let Some(bytes) = bytes.filter(|_| seen.applied.is_none()) {
        book.wire = Some(Wire { model: facts.model, bytes, tokens: seen.count.upper });
    }
    let mut sight = pass(conversation.clone(), &mut book, request, &facts, seen);
    drop(book);
    if let Some(watch) = &mut sight.watch {
        watch.bytes = bytes;
    }
    sight.tell(shared, request);
    Look::Pass(sight)
}

impl Sight {
    /// Tells of it, once no book is open.
    pub(crate) fn tell(&self, shared: &Shared, request: &ChatRequest) {
        if let (Some(is_new), Some(notice)) = (self.warning, &self.notice) {
            if is_new {
                add(&shared.counts.warned);
            }
            let used = notice.tokens.saturating_add(notice.reserve);
            event::warned(about(request), used, notice.window, is_new);
        }
    }
}

/// Lets a request through as it is now.
pub(crate) fn pass(
    conversation: Arc<Conversation>,
    book: &mut Book,
    request: &ChatRequest,
    facts: &Facts,
    seen: Seen,
) -> Sight {
    let warning = seen.level != Level::Fine;
    let is_new = warning && !std::mem::replace(&mut book.warned, warning);
    let mut sight = Sight::default();
    if warning || seen.applied.is_some() {
        let mut notice = notice(&seen);
        notice.compacted = seen.applied.map(|applied| Compacted {
            messages: request.messages.clone(),
            saved: book.saved,
            applied,
        });
        if notice.compacted.is_some() {
            sight.caller = Some(seen.caller);
        }
        sight.warning = warning.then_some(is_new);
        sight.notice = Some(Box::new(notice));
    }
    sight.watch =
        Some(Watch { conversation, counted: book.counted, bytes: None, model: facts.model });
    sight
}

/// Looks at a request of which nothing is remembered.
fn look_once(shared: &Shared, request: &ChatRequest, room: Room) -> Look {
    let count = shared.config.counter.count(&mut crate::Tape::default(), request, model(request));
    let level = shared.policy().level(room, count.upper);
    if level == Level::Compact {
        return Look::Work;
    }
    let mut sight = Sight::default();
    if level == Level::Warn {
        let caller = SharedVec::default();
        let notice = notice(&Seen { count, level, room, applied: None, caller });
        sight.notice = Some(Box::new(notice));
        sight.warning = Some(true);
        sight.tell(shared, request);
    }
    Look::Pass(sight)
}

pub(crate) fn notice(seen: &Seen) -> Notice {
    Notice {
        window: seen.room.window,
        reserve: seen.room.reserve,
        tokens: seen.count.upper,
        warning: seen.level != Level::Fine,
        ..Notice::default()
    }
}

pub(crate) fn switched_off(request: &ChatRequest) -> Sight {
    event::switched_off(about(request), false);
    let notice = Notice { switched_off: true, ..Notice::default() };
    Sight { notice: Some(Box::new(notice)), ..Sight::default() }
}

/// What events of this request are about.
pub(crate) fn about(request: &ChatRequest) -> About<'_> {
    let context = &request.context;
    About {
        log: &context.log,
        target: context.target.as_ref(),
        tenant: context.tenant(),
        session: context.session(),
    }
}
