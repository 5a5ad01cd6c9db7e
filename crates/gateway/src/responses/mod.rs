//! The responses that callers may name in their next requests: who keeps them, and what was in them.
//!
//! In OpenAI's Responses API a request may name the response that it goes on from, which its provider keeps. So such
//! a request goes to that provider first, as it was sent; where that can not answer, what has passed through here is
//! replayed, and any provider can. A response of a provider that keeps nothing is kept here alone.

mod contents;
mod keeper;
mod sealed;
mod shared;
mod socket;

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use steadfast::shared::{SharedKey, SharedState};
use steadfast_chat::{ChatRequest, Message, ProviderState, SharedVec};
use steadfast_client::dialect::{NO_RESPONSE, StandIn, StandsFor, StoredResponse, with_items};
use steadfast_core::{Failure, FaultSide, Keep, Keyed, KeyedPolicy, Preference, Reason, Target};
use tokio::time::Instant;

use self::{contents::Contents, shared::SharedResponses};
pub(crate) use self::{
    keeper::Keeper,
    sealed::{open, seal},
    socket::SocketMemory,
};
use crate::{config::ResponsesConfig, stack::SharedNames};

/// The part of all bytes that one response and what stands before it may hold: an eighth.
const LARGEST: usize = 8;

/// What is known of responses, by their ids and those of their items. One for all configurations of a process.
#[derive(Debug)]
pub(crate) struct ResponseMemory {
    names: Keyed<Box<str>, Name>,
    contents: Mutex<Contents>,
    hasher: RandomState,
    policy: Mutex<ResponsesConfig>,
    /// Other gateways, when what is known here is shared with them.
    fleet: OnceLock<SharedResponses>,
}

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponsesSnapshot {
    /// Ids of responses, items and conversations.
    pub(crate) ids: usize,
    /// Responses that can be replayed.
    pub(crate) responses: usize,
    /// What they hold, in bytes.
    pub(crate) bytes: usize,
}

/// What an id stands for.
#[derive(Debug)]
struct Name(Arc<Entry>);

/// A response, or a conversation.
#[derive(Debug)]
struct Entry {
    /// Its tenant, as a hash.
    owner: u64,
    /// Who keeps it; `None` where it was put together here.
    at: Option<Target>,
    /// While there is room for it.
    content: Mutex<Option<Arc<Content>>>,
    made: Instant,
    /// Of one that another gateway has given: until when that is believed.
    until: Option<Instant>,
    /// By what other gateways know the response, if they do.
    shared: OnceLock<SharedKey>,
}

/// What can be replayed.
#[derive(Debug)]
struct Content {
    /// The conversation before the response.
    before: SharedVec<Message>,
    response: StoredResponse,
    /// What both hold, in bytes: all of the conversation, though others share most of it.
    bytes: usize,
}

impl Keep for Name {
    fn owner(&self) -> u64 {
        self.0.owner
    }

    fn evicted(&self) {
        // Others of its names may still be there; its bytes are given back when its turn comes.
        if Arc::strong_count(&self.0) <= 2 {
            self.0.content.lock().take();
        }
    }
}

/// Where a response is.
pub(crate) enum Home {
    /// Remembered here alone.
    Here(Bytes),
    /// Kept by this target.
    At(Target),
    Unknown,
}

impl ResponseMemory {
    pub(crate) fn new(policy: ResponsesConfig) -> Self {
        Self {
            names: Keyed::new(keyed(&policy)),
            contents: Mutex::default(),
            hasher: RandomState::new(),
            policy: Mutex::new(policy),
            fleet: OnceLock::new(),
        }
    }

    /// Shares what is known with other gateways, where it is not shared yet; targets have these names there. From inside a tokio
    /// runtime.
    pub(crate) fn share(self: &Arc<Self>, state: Arc<dyn SharedState>, names: SharedNames) {
        self.fleet.get_or_init(|| SharedResponses::new(state, names, self));
    }

    /// Remembers as much as `policy` says from now on.
    pub(crate) fn set_policy(&self, policy: ResponsesConfig) {
        self.names.set_policy(keyed(&policy));
        *self.policy.lock() = policy;
    }

    pub(crate) fn snapshot(&self) -> ResponsesSnapshot {
        let (responses, bytes) = self.contents.lock().size();
        ResponsesSnapshot { ids: self.names.len(), responses, bytes }
    }

    /// What `tenant` knows as `id`: what is another's is not there.
    fn find(&self, tenant: Option<&str>, id: &str) -> Option<Arc<Entry>> {
        let name = self.names.get_by(&*self.key(tenant, id))?;
        let keep = self.policy.lock().keep;
        let is_believed = name.0.until.is_none_or(|until| until > Instant::now());
        (is_believed && name.0.made.elapsed() < keep).then(|| name.0.clone())
    }

    fn key(&self, tenant: Option<&str>, id: &str) -> Box<str> {
        format!("{:016x}/{id}", self.owner(tenant)).into()
    }

    /// Where the response `id` of `tenant` is.
    pub(crate) fn home(&self, tenant: Option<&str>, id: &str) -> Home {
        let Some(entry) = self.find(tenant, id) else { return Home::Unknown };
        if let Some(at) = &entry.at {
            return Home::At(at.clone());
        }
        let content = entry.content.lock().clone();
        let response = content.filter(|content| content.response.id() == id);
        response.map_or(Home::Unknown, |content| Home::Here(content.response.json().clone()))
    }

    /// Forgets the response `id` of `tenant`, and the items in it.
    pub(crate) fn forget(&self, tenant: Option<&str>, id: &str) {
        if let Some(fleet) = self.fleet.get() {
            fleet.forget(tenant, id, self.policy.lock().keep);
        }
        self.drop_local(tenant, id);
    }

    /// The same for one that no other gateway knows.
    fn drop_local(&self, tenant: Option<&str>, id: &str) {
        let Some(entry) = self.find(tenant, id) else { return };
        self.names.retain(|_, other| !Arc::ptr_eq(&other.0, &entry));
    }

    /// Forgets the responses that other gateways know by these keys, and the items in them.
    fn drop_shared(&self, keys: &BTreeSet<SharedKey>) {
        let is_one = |entry: &Entry| entry.shared.get().is_some_and(|key| keys.contains(key));
        self.names.retain(|_, name| !is_one(&name.0));
    }

    /// Fits `request` to what is known of what it names: it is whole then, or goes to who keeps that and to nobody
    /// else. `isolated`: what is not known here may be another tenant's, and is refused. Returns who is to remember
    /// the answer.
    ///
    /// # Errors
    ///
    /// When it names what is not there for its tenant, in the words of the vendor.
    pub(crate) fn fit(
        self: &Arc<Self>,
        request: &mut ChatRequest,
        isolated: bool,
    ) -> Result<Option<Keeper>, Failure> {
        self.fit_for(request, isolated, None)
    }

    /// The same as [`fit`](Self::fit) for a request that came over a `socket`: what no provider is to store is
    /// remembered until that is closed.
    ///
    /// # Errors
    ///
    /// The same.
    pub(crate) fn fit_for(
        self: &Arc<Self>,
        request: &mut ChatRequest,
        isolated: bool,
        socket: Option<&Arc<SocketMemory>>,
    ) -> Result<Option<Keeper>, Failure> {
        let Some(state) = request.state.clone() else { return Ok(None) };
        let mut before = Before::default();
        if let Some(id) = &state.conversation {
            self.pin_conversation(request, id, isolated)?;
            before.is_known = false;
        }
        self.replay(request, &state, isolated, &mut before)?;
        let socket = socket.filter(|_| state.unstored);
        if state.unstored && socket.is_none() || state.asks_for_compaction {
            return Ok(None);
        }
        let keeper = Keeper::new(self.clone(), request, &state, before.is_known, before.bytes);
        Ok(Some(keeper.for_socket(socket.cloned())))
    }

    /// A conversation is kept by its provider alone: what it is made of does not pass through here.
    fn pin_conversation(
        &self,
        request: &mut ChatRequest,
        id: &str,
        isolated: bool,
    ) -> Result<(), Failure> {
        match self.find(request.context.tenant(), id) {
            Some(entry) => pin(request, entry.at.as_ref()),
            None if !isolated => {}
            None => return Err(no_conversation(id)),
        }
        Ok(())
    }

    fn replay(
        &self,
        request: &mut ChatRequest,
        state: &ProviderState,
        isolated: bool,
        before: &mut Before,
    ) -> Result<(), Failure> {
        let tenant = request.context.tenant().map(str::to_owned);
        let tenant = tenant.as_deref();
        let previous = match &state.previous {
            None => None,
            Some(id) => match self.find(tenant, id) {
                Some(entry) => Some(entry),
                None if !isolated => {
                    before.is_known = false;
                    return Ok(());
                }
                None => return Err(no_response(id)),
            },
        };
        let mut at: Option<Option<Target>> = previous.as_ref().map(|entry| entry.at.clone());
        let mut is_whole = before.is_known;
        let mut messages = request.messages.clone();
        let mut opened = false;
        if state.has_references || state.has_compaction {
            let found = with_items(request, |item| match item {
                StandIn::Compaction(sealed) => match open(sealed) {
                    Some(text) => {
                        opened = true;
                        StandsFor::Item(Some(sealed::item(&text)))
                    }
                    None => StandsFor::Itself,
                },
                StandIn::Reference(id) => {
                    let Some(entry) = self.find(tenant, id) else { return StandsFor::Unknown };
                    let content = entry.content.lock().clone();
                    // Items of several providers are together at none.
                    at = Some(match at.take() {
                        None => entry.at.clone(),
                        Some(known) => known.filter(|known| entry.at.as_ref() == Some(known)),
                    });
                    content.map_or(StandsFor::Unknown, |content| {
                        before.bytes += content.response.size();
                        content.response.item(id)
                    })
                }
                _ => StandsFor::Itself,
            });
            match found {
                Ok(found) => messages = found.into(),
                Err(Some(id)) if isolated && self.find(tenant, &id).is_none() => {
                    return Err(no_item(&id));
                }
                Err(_) => is_whole = false,
            }
        }
        if opened {
            // What was compacted here no provider can read: it is nowhere as it was sent.
            at = Some(None);
        }
        let content = previous.as_ref().map(|entry| entry.content.lock().clone());
        if let Some(content) = &content {
            match content {
                Some(content) => {
                    before.bytes += content.bytes;
                    messages = continued(&content.before, &content.response, &messages, state);
                }
                None => is_whole = false,
            }
        }
        before.is_known = is_whole;
        let Some(at) = at else { return Ok(()) };
        if is_whole {
            if let Some(at) = &at {
                request
                    .context
                    .preference
                    .get_or_insert_with(|| Preference::For(at.clone()).into());
            }
            request.replay(at, messages);
            return Ok(());
        }
        match (at, &state.previous) {
            (Some(at), _) => pin(request, Some(&at)),
            (None, Some(id)) => return Err(no_response(id)),
            (None, None) => {}
        }
        Ok(())
    }

    /// Remembers `content` by the id of its response and those of its items. Other gateways know it too where it `is_shared`.
    fn keep(&self, tenant: Option<&str>, at: Option<Target>, content: Content, is_shared: bool) {
        let most = self.policy.lock().bytes();
        if !content.response.is_over() || content.bytes > most / LARGEST {
            return self.keep_names(tenant, at, &content.response, is_shared);
        }
        let entry = self.entry(tenant, at, Some(Arc::new(content)));
        self.add(entry.clone(), most);
        self.publish(tenant, &entry, None, is_shared);
    }

    /// Remembers an entry with content.
    fn add(&self, entry: Arc<Entry>, most: usize) {
        let Some(content) = entry.content.lock().clone() else { return };
        self.name_all(&content.response, &entry);
        self.contents.lock().add(entry, content.bytes, most);
    }

    /// Remembers who keeps `response`, and nothing of what is in it.
    fn keep_names(
        &self,
        tenant: Option<&str>,
        at: Option<Target>,
        response: &StoredResponse,
        is_shared: bool,
    ) {
        if at.is_some() {
            let entry = self.entry(tenant, at, None);
            self.name_all(response, &entry);
            self.publish(tenant, &entry, Some(response), is_shared);
        }
    }

    /// Lets other gateways know of `entry`, that of `response` where there is no content.
    fn publish(
        &self,
        tenant: Option<&str>,
        entry: &Entry,
        response: Option<&StoredResponse>,
        is_shared: bool,
    ) {
        if let Some(fleet) = self.fleet.get().filter(|_| is_shared) {
            let keep = self.policy.lock().keep;
            let content = entry.content.lock().clone();
            if let Some(response) = response.or(content.as_deref().map(|content| &content.response))
            {
                let key = SharedResponses::key(tenant, response.id());
                if fleet.put(tenant, entry.at.as_ref(), response, content.as_deref(), keep) {
                    let _ = entry.shared.set(key);
                }
            }
        }
    }

    fn name_all(&self, response: &StoredResponse, entry: &Arc<Entry>) {
        for id in std::iter::once(response.id()).chain(response.item_ids()) {
            self.name(id, entry);
        }
    }

    /// Remembers who keeps the conversation `id`.
    fn keep_conversation(&self, tenant: Option<&str>, id: &str, at: Target) {
        if let Some(fleet) = self.fleet.get() {
            let known = self.find(tenant, id).filter(|known| known.until.is_none());
            if known.is_none_or(|known| known.at.as_ref() != Some(&at)) {
                fleet.put_conversation(tenant, id, &at, self.policy.lock().keep);
            }
        }
        let entry = self.entry(tenant, Some(at), None);
        self.name(id, &entry);
    }

    fn entry(
        &self,
        tenant: Option<&str>,
        at: Option<Target>,
        content: Option<Arc<Content>>,
    ) -> Arc<Entry> {
        Arc::new(Entry {
            owner: self.owner(tenant),
            at,
            content: Mutex::new(content),
            made: Instant::now(),
            until: None,
            shared: OnceLock::new(),
        })
    }

    fn owner(&self, tenant: Option<&str>) -> u64 {
        self.hasher.hash_one(tenant)
    }

    /// From now on `id` is `entry` to its tenant: some servers use an id more than once.
    fn name(&self, id: &str, entry: &Arc<Entry>) {
        let key = format!("{:016x}/{id}", entry.owner).into_boxed_str();
        self.names.remove(&key);
        self.names.get_or_insert_with(&key, Instant::now(), || Name(entry.clone()));
    }
}

/// What stands before a request.
#[derive(Debug)]
struct Before {
    /// All of it is known.
    is_known: bool,
    bytes: usize,
}

impl Default for Before {
    fn default() -> Self {
        Self { is_known: true, bytes: 0 }
    }
}

fn keyed(policy: &ResponsesConfig) -> KeyedPolicy {
    KeyedPolicy { capacity: policy.ids, idle: policy.keep }
}

/// The conversation of a request with these `messages` that goes on from `response`: its instructions hold for it
/// alone.
fn continued(
    before: &[Message],
    response: &StoredResponse,
    messages: &[Message],
    state: &ProviderState,
) -> SharedVec<Message> {
    let (instructions, new) =
        messages.split_at(usize::from(state.has_instructions).min(messages.len()));
    let mut all = Vec::with_capacity(before.len() + messages.len() + 1);
    all.extend_from_slice(instructions);
    all.extend_from_slice(before);
    all.extend(response.messages());
    all.extend_from_slice(new);
    all.into()
}

/// Lets `request` go to `at` and nowhere else.
fn pin(request: &mut ChatRequest, at: Option<&Target>) {
    let Some(at) = at else { return };
    let account = Target::new(at.provider());
    let account = match at.credential() {
        Some(credential) => account.with_credential(credential),
        None => account,
    };
    request.context.preference.get_or_insert_with(|| Preference::Only(account).into());
}

/// Whether `request` names what comes before it, and is not whole without that.
fn is_partial(request: &ChatRequest) -> bool {
    request.state.as_ref().is_some_and(|state| {
        let names =
            state.previous.is_some() || state.conversation.is_some() || state.has_references;
        names && !state.is_replayed()
    })
}

/// Why nobody here knows all that `request` says, if it is so.
pub(crate) fn missing(request: &ChatRequest) -> Option<Failure> {
    let state = request.state.as_ref().filter(|_| is_partial(request))?;
    Some(match (&state.previous, &state.conversation) {
        (Some(id), _) => no_response(id),
        (None, Some(id)) => no_conversation(id),
        (None, None) => {
            let message = "input: an item_reference names an item that is not remembered here";
            unknown(StatusCode::NOT_FOUND, message.to_owned())
        }
    })
}

/// Whether `request` was let go to one target alone, since only that has what it names: who that is.
pub(crate) fn pinned(request: &ChatRequest) -> Option<&Target> {
    match request.context.preference.as_deref()? {
        Preference::Only(at) if is_partial(request) => Some(at),
        _ => None,
    }
}

/// Why a call that could go to `at` alone can not go on elsewhere, behind what failed it there.
pub(crate) fn stuck(failure: Failure, at: &Target) -> Failure {
    if failure.fault() == FaultSide::Caller {
        return failure;
    }
    let text = failure.message().trim_end().trim_end_matches('.');
    let message = format!(
        "{text}. No other provider was asked: what the request goes on from is kept by {} alone, and is not, or not \
         any more, remembered here; send the whole conversation as input to have it answered elsewhere",
        at.provider()
    );
    failure.with_message(message)
}

fn no_response(id: &str) -> Failure {
    let message = format!("Previous response with id '{}' not found.", shown(id));
    unknown(StatusCode::BAD_REQUEST, message).with_evidence(NO_RESPONSE)
}

/// The failure of a request for the response `id`, which is not there for its tenant.
pub(crate) fn no_such_response(id: &str) -> Failure {
    unknown(StatusCode::NOT_FOUND, format!("Response with id '{}' not found.", shown(id)))
}

fn no_conversation(id: &str) -> Failure {
    unknown(StatusCode::NOT_FOUND, format!("Conversation with id '{}' not found.", shown(id)))
}

fn no_item(id: &str) -> Failure {
    unknown(StatusCode::NOT_FOUND, format!("Item with id '{}' not found.", shown(id)))
}

fn unknown(status: StatusCode, message: String) -> Failure {
    Failure::refused(Reason::Format, message)
        .with_status(status)
        .with_fault(FaultSide::Caller)
        .with_evidence("state")
}

/// An id as an error repeats it.
fn shown(id: &str) -> String {
    id.chars().take(80).filter(|char| !char.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use steadfast_chat::Head;
    use steadfast_client::dialect::{Route, codec};
    use steadfast_core::{CallContext, Dialect};

    use super::*;

    const MIB: usize = 1024 * 1024;

    pub(super) fn memory(memory_mib: usize) -> Arc<ResponseMemory> {
        let config = ResponsesConfig { memory_mib, ..ResponsesConfig::default() };
        Arc::new(ResponseMemory::new(config))
    }

    pub(super) fn request(tenant: &str, body: &Value) -> ChatRequest {
        let body = body.to_string().into();
        let read = codec(Dialect::Responses).decode_request(&body, Route::default());
        let mut request = read.unwrap();
        request.context = CallContext::recording().with_tenant(tenant);
        request
    }

    pub(super) fn home() -> Target {
        Target::new("home").with_credential("one").with_model("m")
    }

    /// Remembers an answer of `bytes` by the id `id`.
    pub(super) fn answered(memory: &Arc<ResponseMemory>, tenant: &str, id: &str, bytes: usize) {
        let mut request = request(tenant, &json!({"model": "m", "input": "hi"}));
        let mut keeper = memory.fit(&mut request, true).unwrap().expect("it is stored");
        let mut head = Head::new(Dialect::Responses);
        head.target = Some(home());
        keeper.answered(&head);
        let body = json!({"id": id, "status": "completed", "output": [
            {"type": "message", "id": format!("msg_{id}"), "role": "assistant",
             "content": [{"type": "output_text", "text": "x".repeat(bytes)}]},
        ]});
        keeper.whole(&body.to_string().into());
    }

    /// How a request that goes on from `id` goes.
    pub(super) fn next(
        memory: &Arc<ResponseMemory>,
        tenant: &str,
        id: &str,
    ) -> Result<ChatRequest, Failure> {
        let body = json!({"model": "m", "input": "more", "previous_response_id": id});
        let mut request = request(tenant, &body);
        memory.fit(&mut request, true).map(|_| request)
    }

    pub(super) fn is_whole(request: &ChatRequest) -> bool {
        request.state.as_ref().is_some_and(|state| state.is_replayed())
    }

    #[test]
    fn a_known_response_is_replayed_and_its_provider_asked_first() {
        let memory = memory(64);
        answered(&memory, "acme", "resp_1", 10);
        let request = next(&memory, "acme", "resp_1").unwrap();
        assert!(is_whole(&request));
        assert_eq!(request.messages.len(), 3);
        assert_eq!(request.context.preference.as_deref(), Some(&Preference::For(home())));
        assert!(pinned(&request).is_none());
        for (tenant, id) in [("other", "resp_1"), ("acme", "resp_2"), ("acme", "msg_none")] {
            let failure = next(&memory, tenant, id).unwrap_err();
            assert_eq!(
                (failure.evidence(), failure.status()),
                (NO_RESPONSE, Some(StatusCode::BAD_REQUEST))
            );
        }
    }

    #[test]
    fn an_id_that_is_used_again_is_the_newest_of_its_tenant() {
        let memory = memory(64);
        let text = |tenant: &str| {
            let request = next(&memory, tenant, "resp_0").unwrap();
            request.messages[1].text().len()
        };
        answered(&memory, "acme", "resp_0", 10);
        answered(&memory, "other", "resp_0", 30);
        assert_eq!((text("acme"), text("other")), (10, 30));
        answered(&memory, "acme", "resp_0", 20);
        assert_eq!((text("acme"), text("other")), (20, 30));
        memory.forget(Some("acme"), "resp_0");
        assert!(next(&memory, "acme", "resp_0").is_err());
        assert_eq!(text("other"), 30);
    }

    #[test]
    fn what_is_too_much_is_forgotten_oldest_first_from_who_holds_most() {
        let memory = memory(1);
        answered(&memory, "small", "resp_s", 50_000);
        for n in 0..40 {
            answered(&memory, "large", &format!("resp_{n}"), 50_000);
            assert!(memory.snapshot().bytes <= MIB, "{:?}", memory.snapshot());
        }
        assert!(
            is_whole(&next(&memory, "small", "resp_s").unwrap()),
            "it holds less than its share"
        );
        assert!(is_whole(&next(&memory, "large", "resp_39").unwrap()));
        let oldest = next(&memory, "large", "resp_0").unwrap();
        assert!(!is_whole(&oldest));
        let account = Target::new("home").with_credential("one");
        assert_eq!(pinned(&oldest), Some(&account), "its provider still has it");
    }

    #[test]
    fn what_is_larger_than_its_part_stays_with_its_provider() {
        let memory = memory(1);
        answered(&memory, "acme", "resp_1", MIB / 8);
        assert!(!is_whole(&next(&memory, "acme", "resp_1").unwrap()));
        assert_eq!(memory.snapshot(), ResponsesSnapshot { ids: 2, responses: 0, bytes: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_remembered_for_ever() {
        let memory = memory(64);
        answered(&memory, "acme", "resp_1", 10);
        tokio::time::advance(ResponsesConfig::default().keep).await;
        assert!(next(&memory, "acme", "resp_1").is_err());
    }

    #[test]
    fn an_item_of_a_forgotten_response_pins_what_names_it() {
        let memory = memory(0);
        answered(&memory, "acme", "resp_1", 10);
        let body = json!({"model": "m", "input": [
            {"role": "user", "content": "hi"}, {"type": "item_reference", "id": "msg_resp_1"},
        ]});
        let mut own = request("acme", &body);
        memory.fit(&mut own, true).unwrap();
        assert!(pinned(&own).is_some());
        let failure = memory.fit(&mut request("other", &body), true).unwrap_err();
        assert_eq!(failure.status(), Some(StatusCode::NOT_FOUND));
        // One tenant alone may know what the gateway does not.
        assert!(
            memory
                .fit(
                    &mut request(
                        "other",
                        &json!({
                            "model": "m", "input": [{"type": "item_reference", "id": "msg_none"}],
                        })
                    ),
                    false
                )
                .is_ok()
        );
    }

    #[test]
    fn a_conversation_stays_where_it_is() {
        let memory = memory(64);
        let body = json!({"model": "m", "input": "hi", "conversation": {"id": "conv_1"}});
        let mut first = request("acme", &body);
        let mut keeper = memory.fit(&mut first, false).unwrap().unwrap();
        assert!(pinned(&first).is_none(), "nobody knows yet where it is");
        let mut head = Head::new(Dialect::Responses);
        head.target = Some(home());
        keeper.answered(&head);
        keeper.whole(
            &json!({"id": "resp_1", "status": "completed", "output": []}).to_string().into(),
        );
        let mut second = request("acme", &body);
        memory.fit(&mut second, true).unwrap();
        assert!(pinned(&second).is_some());
        assert!(memory.fit(&mut request("other", &body), true).is_err());
    }
}
