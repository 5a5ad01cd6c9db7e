//! Responses that another gateway has given: put when they are, and read where their id is not known.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use steadfast::shared::{
    FactListener, KeyDigest, LARGEST_VALUE, News, PutNotices, READ_LIMIT, ReadValue, SharedKey,
    SharedState, SharedTask, SharedValues,
};
use steadfast_chat::{ChatRequest, Message};
use steadfast_client::dialect::{StandIn, StandsFor, StoredResponse, with_items};
use steadfast_core::{Target, time::later};
use tokio::time::{Instant, timeout};

use super::{Content, Entry, ResponseMemory};
use crate::stack::SharedNames;

/// What ids stand for, as values by key; and that there are some, as a kind of fact.
const SPACE: &str = "responses";

/// What that fact is about.
const ALL: &str = "ids";

/// How long what another gateway has given is believed before it is read again: so a response that was deleted at one is
/// gone within that where its deletion was not heard of.
const BELIEVED: Duration = Duration::from_secs(60);

/// Which responses a gateway has deleted lately, as a kind of fact: each has one of its own.
const DELETED: &str = "deleted-responses";

/// How long a deletion is there for gateways that are cut off from the store, or start again.
const DELETED_FOR: Duration = Duration::from_secs(3_600);

/// The most deletions that are there: one that is sent at once is heard of however many follow it.
const DELETIONS: usize = 256;

/// The most ids that one request has read. A conversation that names more items than that by their ids is one that
/// began elsewhere, and goes to who keeps it.
const MOST: usize = 32;

/// Other gateways, as a memory of responses has them.
pub(super) struct SharedResponses {
    values: SharedValues,
    notices: PutNotices,
    names: SharedNames,
    state: Arc<dyn SharedState>,
    /// What this gateway has deleted, and until when that is there.
    deleted: Mutex<VecDeque<(Instant, SharedKey)>>,
    _hearing: SharedTask,
}

/// What an id stands for.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum SavedName {
    Entry(SavedEntry),
    /// An item of the response with this id.
    ItemOf(Box<str>),
    /// Its caller has deleted it.
    Forgotten,
}

/// A response, or a conversation.
#[derive(Deserialize, Serialize)]
struct SavedEntry {
    /// By the store's clock, in milliseconds since 1970.
    made_ms: u64,
    /// Who keeps it, and what that is called.
    #[serde(default)]
    at: Option<(Target, String)>,
    #[serde(default)]
    content: Option<SavedContent>,
}

#[derive(Deserialize, Serialize)]
struct SavedContent {
    before: Vec<Message>,
    response: StoredResponse,
    bytes: usize,
}

impl SharedResponses {
    /// What `memory` shares.
    pub(super) fn new(
        state: Arc<dyn SharedState>,
        names: SharedNames,
        memory: &Arc<ResponseMemory>,
    ) -> Self {
        let hearing = hear(state.subscribe(DELETED), Arc::downgrade(memory));
        Self {
            values: SharedValues::new(state.clone(), SPACE),
            notices: PutNotices::new(state.clone(), SPACE),
            names,
            state,
            deleted: Mutex::default(),
            _hearing: SharedTask::spawn(hearing),
        }
    }

    /// A tenant's ids have keys that no other tenant's have.
    pub(super) fn key(tenant: Option<&str>, id: &str) -> SharedKey {
        let mut digest = KeyDigest::default();
        digest.add_optional(tenant);
        digest.add(id.as_bytes());
        digest.key()
    }

    /// Lets others know `response`, which `at` keeps, and its `content` where that is not too large; whether they do.
    pub(super) fn put(
        &self,
        tenant: Option<&str>,
        at: Option<&Target>,
        response: &StoredResponse,
        content: Option<&Content>,
        keep: Duration,
    ) -> bool {
        let saved = |content: &Content| SavedContent {
            before: content.before.to_vec(),
            response: content.response.clone(),
            bytes: content.bytes,
        };
        let Some(at) = self.named(at) else { return false };
        // As it is counted, it is about as large as it is written.
        let content = content.filter(|content| content.bytes <= LARGEST_VALUE).map(saved);
        let is_kept = at.is_some();
        let has_content = content.is_some();
        if !is_kept && !has_content {
            return false;
        }
        let mut is_known = self.put_entry(tenant, response.id(), at.clone(), content, keep);
        if !is_known && is_kept {
            is_known = self.put_entry(tenant, response.id(), at, None, keep);
        }
        if is_known {
            let of = SavedName::ItemOf(response.id().into());
            response.item_ids().take(MOST).for_each(|item| {
                self.put_name(tenant, item, &of, keep);
            });
        }
        is_known
    }

    /// Lets others know that `at` keeps the conversation `id`.
    pub(super) fn put_conversation(
        &self,
        tenant: Option<&str>,
        id: &str,
        at: &Target,
        keep: Duration,
    ) {
        if let Some(at) = self.named(Some(at)) {
            self.put_entry(tenant, id, at, None, keep);
        }
    }

    /// Lets others know that there is no such response any more.
    pub(super) fn forget(&self, tenant: Option<&str>, id: &str, keep: Duration) {
        self.put_name(tenant, id, &SavedName::Forgotten, keep);
        let (key, now) = (Self::key(tenant, id), Instant::now());
        let until = later(now, DELETED_FOR);
        let mut deleted = self.deleted.lock();
        while deleted.front().is_some_and(|(until, _)| *until <= now) || deleted.len() == DELETIONS
        {
            deleted.pop_front();
        }
        deleted.push_back((until, key));
        let keys: Vec<String> = deleted.iter().map(|(_, key)| key.text()).collect();
        let clock = self.values.clock();
        let news = News::holds(clock.unix_ms(), clock.to_unix_ms(until), keys.join(" "));
        // Under the lock, so that the latest is published last.
        self.state.publish(DELETED, self.state.node(), news);
    }

    /// `at` and what it is called; `None` for a target that others do not know.
    fn named(&self, at: Option<&Target>) -> Option<Option<(Target, String)>> {
        match at {
            None => Some(None),
            Some(at) => Some(Some((at.clone(), self.names.name(at)?))),
        }
    }

    fn put_entry(
        &self,
        tenant: Option<&str>,
        id: &str,
        at: Option<(Target, String)>,
        content: Option<SavedContent>,
        keep: Duration,
    ) -> bool {
        let made_ms = self.values.clock().unix_ms();
        let is_put =
            self.put_name(tenant, id, &SavedName::Entry(SavedEntry { made_ms, at, content }), keep);
        if is_put {
            self.notices.put(ALL, Instant::now(), keep);
        }
        is_put
    }

    fn put_name(&self, tenant: Option<&str>, id: &str, name: &SavedName, keep: Duration) -> bool {
        match serde_json::to_vec(name) {
            Ok(value) => self.values.put(Self::key(tenant, id), value.into(), keep),
            Err(_) => false,
        }
    }

    /// Whether others may know ids that are not known here.
    fn has(&self) -> bool {
        self.notices.others(ALL, Instant::now()).is_some()
    }

    async fn read(&self, tenant: Option<&str>, id: &str) -> Option<SavedName> {
        match self.values.read(Self::key(tenant, id))?.await {
            ReadValue::Found(value) => serde_json::from_slice(&value).ok(),
            _ => None,
        }
    }
}

/// Forgets what other gateways have deleted.
async fn hear(mut listener: FactListener, memory: Weak<ResponseMemory>) {
    loop {
        let (_, known) = listener.next().await;
        let Some(memory) = memory.upgrade() else { return };
        if let Some(fact) = known.fact {
            memory.drop_shared(&fact.value.split(' ').filter_map(SharedKey::read).collect());
        }
    }
}

impl ResponseMemory {
    /// Reads what other gateways know of what `request` names, where it is not known here: for 20 ms at most, in all. Dropping it
    /// leaves what was read so far.
    pub(crate) async fn learn(&self, request: &ChatRequest) {
        let Some(fleet) = self.fleet.get().filter(|fleet| fleet.has()) else { return };
        let Some(state) = &request.state else { return };
        let mut ids: BTreeSet<Box<str>> =
            state.previous.iter().chain(&state.conversation).cloned().collect();
        if state.has_references {
            // What it can not read is refused where the request is fitted.
            let _ = with_items(request, |item| {
                if let StandIn::Reference(id) = item {
                    ids.insert(id.into());
                }
                StandsFor::Itself
            });
        }
        self.learn_all(fleet, request.context.tenant(), ids).await;
    }

    /// The same for the response `id` of `tenant`.
    pub(crate) async fn learn_one(&self, tenant: Option<&str>, id: &str) {
        if let Some(fleet) = self.fleet.get().filter(|fleet| fleet.has()) {
            self.learn_all(fleet, tenant, BTreeSet::from([id.into()])).await;
        }
    }

    async fn learn_all(
        &self,
        fleet: &SharedResponses,
        tenant: Option<&str>,
        mut ids: BTreeSet<Box<str>>,
    ) {
        ids.retain(|id| self.find(tenant, id).is_none());
        if ids.is_empty() || ids.len() > MOST {
            return;
        }
        let items = Mutex::new(Vec::new());
        let learn = async |id: Box<str>| match fleet.read(tenant, &id).await {
            Some(SavedName::Entry(saved)) => self.learned(fleet, tenant, &id, saved),
            Some(SavedName::ItemOf(response)) => items.lock().push((id, response)),
            Some(SavedName::Forgotten) | None => {}
        };
        let all = async {
            join_all(ids.iter().cloned().map(&learn)).await;
            // Several items may be of one response, and that one of those ids.
            let items = std::mem::take(&mut *items.lock());
            let responses: BTreeSet<_> =
                items.iter().map(|(_, response)| response.clone()).collect();
            let unknown = responses.into_iter().filter(|id| self.find(tenant, id).is_none());
            join_all(unknown.map(&learn)).await;
            for (item, response) in &items {
                let entry = self.find(tenant, response);
                if let Some(entry) = entry.filter(|_| self.find(tenant, item).is_none()) {
                    self.name(item, &entry);
                }
            }
        };
        // What has come by then is known.
        let _ = timeout(READ_LIMIT, all).await;
    }

    /// Remembers for a while what another gateway knows as `id`, where its target is the same one here.
    fn learned(&self, fleet: &SharedResponses, tenant: Option<&str>, id: &str, saved: SavedEntry) {
        let SavedEntry { made_ms, at, content } = saved;
        if at.as_ref().is_some_and(|(at, name)| fleet.names.name(at).as_ref() != Some(name)) {
            return;
        }
        let content = content.map(|SavedContent { before, response, bytes }| {
            Arc::new(Content { before: before.into(), response, bytes })
        });
        let most = self.policy.lock().bytes();
        let content = content.filter(|content| content.bytes <= most / super::LARGEST);
        let entry = Arc::new(Entry {
            owner: self.owner(tenant),
            at: at.map(|(at, _)| at),
            content: Mutex::new(content),
            made: fleet.values.clock().to_instant(made_ms),
            until: Some(later(Instant::now(), BELIEVED)),
            shared: OnceLock::from(SharedResponses::key(tenant, id)),
        });
        // One with content is named by that: to name it twice would take that for one that is replaced.
        if entry.content.lock().is_none() {
            self.name(id, &entry);
        }
        self.add(entry, most);
    }
}

impl fmt::Debug for SharedResponses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedResponses")
            .field("values", &self.values)
            .field("notices", &self.notices)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use steadfast::shared::EmbeddedStore;
    use steadfast_core::Failure;
    use steadfast_testkit::SharedNode;

    use super::{
        super::{
            Home, pinned,
            tests::{answered, home, is_whole, memory, next, request},
        },
        *,
    };

    /// The memory of a gateway that shares it.
    fn node(store: &EmbeddedStore, name: &str) -> (Arc<ResponseMemory>, Arc<SharedNode>) {
        let (memory, node) = (memory(64), Arc::new(SharedNode::new(store.join(name))));
        memory.share(node.clone(), SharedNames::default());
        (memory, node)
    }

    fn two() -> (Arc<ResponseMemory>, Arc<ResponseMemory>, EmbeddedStore) {
        let store = EmbeddedStore::new();
        (node(&store, "one").0, node(&store, "other").0, store)
    }

    /// How a request that goes on from `id` goes.
    async fn went(
        memory: &Arc<ResponseMemory>,
        tenant: &str,
        id: &str,
    ) -> Result<ChatRequest, Failure> {
        let body = json!({"model": "m", "input": "more", "previous_response_id": id});
        learned(memory, tenant, &body).await
    }

    async fn learned(
        memory: &Arc<ResponseMemory>,
        tenant: &str,
        body: &Value,
    ) -> Result<ChatRequest, Failure> {
        // Until it has heard.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut request = request(tenant, body);
        memory.learn(&request).await;
        memory.fit(&mut request, true).map(|_| request)
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_of_one_gateway_is_replayed_by_another() {
        let (one, other, _) = two();
        answered(&one, "acme", "resp_1", 10);
        let request = went(&other, "acme", "resp_1").await.unwrap();
        assert!(is_whole(&request));
        assert_eq!(request.messages, next(&one, "acme", "resp_1").unwrap().messages);
        assert!(pinned(&request).is_none());
        assert!(matches!(other.home(Some("acme"), "resp_1"), Home::At(at) if at == home()));
        for (tenant, id) in [("other", "resp_1"), ("", "resp_1"), ("acme", "resp_2")] {
            assert!(went(&other, tenant, id).await.is_err(), "{tenant} {id}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_large_is_known_by_who_keeps_it() {
        let (one, other, _) = two();
        answered(&one, "acme", "resp_1", LARGEST_VALUE);
        let request = went(&other, "acme", "resp_1").await.unwrap();
        assert!(!is_whole(&request));
        assert_eq!(pinned(&request), Some(&Target::new("home").with_credential("one")));
    }

    #[tokio::test(start_paused = true)]
    async fn items_and_conversations_are_known_by_their_ids() {
        let (one, other, _) = two();
        for (id, bytes) in [("resp_1", 10), ("resp_2", LARGEST_VALUE)] {
            answered(&one, "acme", id, bytes);
        }
        let named = |id: &str| {
            json!({"model": "m", "input": [
                {"role": "user", "content": "hi"}, {"type": "item_reference", "id": id},
            ]})
        };
        assert!(is_whole(&learned(&other, "acme", &named("msg_resp_1")).await.unwrap()));
        assert!(pinned(&learned(&other, "acme", &named("msg_resp_2")).await.unwrap()).is_some());
        assert!(learned(&other, "umbrella", &named("msg_resp_1")).await.is_err());

        one.keep_conversation(Some("acme"), "conv_1", home());
        let body = json!({"model": "m", "input": "hi", "conversation": {"id": "conv_1"}});
        assert!(pinned(&learned(&other, "acme", &body).await.unwrap()).is_some());
        assert!(learned(&other, "umbrella", &body).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_deleted_is_gone_everywhere() {
        let (one, other, _) = two();
        for id in ["resp_1", "resp_2", "resp_3"] {
            answered(&one, "acme", id, 10);
            assert!(went(&other, "acme", id).await.is_ok());
        }
        let id = |memory: &Arc<ResponseMemory>, id| memory.find(Some("acme"), id).is_some();
        one.forget(Some("acme"), "resp_1");
        other.forget(Some("acme"), "resp_2");
        assert!(went(&other, "acme", "resp_1").await.is_err());
        assert!(went(&one, "acme", "resp_2").await.is_err());
        assert!(!id(&one, "msg_resp_2") && id(&one, "msg_resp_3"), "its items, too");
        for memory in [&one, &other] {
            assert!(went(memory, "acme", "resp_3").await.is_ok());
        }
        // The name of another tenant's is another one.
        other.forget(Some("umbrella"), "resp_3");
        assert!(went(&one, "acme", "resp_3").await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_cut_off_hears_of_deletions_later() {
        let (store, gone) = (EmbeddedStore::new(), DELETIONS + 10);
        let (one, state) = (memory(64), store.join("one"));
        one.share(Arc::new(state.clone()), SharedNames::default());
        let other = node(&store, "other").0;
        for n in 0..gone {
            answered(&one, "acme", &format!("resp_{n}"), 10);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let is_there = |n: usize| one.find(Some("acme"), &format!("resp_{n}")).is_some();
        state.set_away(true);
        for n in 0..gone {
            other.forget(Some("acme"), &format!("resp_{n}"));
        }
        tokio::time::advance(DELETED_FOR / 2).await;
        assert!(is_there(gone - 1));
        state.set_away(false);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!((10..gone).all(|n| !is_there(n)), "the latest of them");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_believed_is_read_again_after_a_minute() {
        let (store, names) = (EmbeddedStore::new(), SharedNames::default());
        let (one, other) = (node(&store, "one").0, memory(64));
        answered(&one, "acme", "resp_1", 10);
        // One that hears of no deletion.
        let deaf = SharedResponses {
            _hearing: SharedTask::spawn(std::future::ready(())),
            ..SharedResponses::new(Arc::new(store.join("other")), names, &other)
        };
        assert!(other.fleet.set(deaf).is_ok());
        assert!(went(&other, "acme", "resp_1").await.is_ok());
        one.forget(Some("acme"), "resp_1");
        assert!(went(&other, "acme", "resp_1").await.is_ok());
        tokio::time::advance(BELIEVED).await;
        assert!(went(&other, "acme", "resp_1").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_known_for_longer_than_it_is_kept() {
        let (one, other, _) = two();
        answered(&one, "acme", "resp_1", 10);
        let keep = one.policy.lock().keep;
        tokio::time::advance(keep - Duration::from_secs(1)).await;
        assert!(went(&other, "acme", "resp_1").await.is_ok());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(went(&other, "acme", "resp_1").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_is_to_store_is_sent_to_nobody() {
        let store = EmbeddedStore::new();
        let ((one, state), (other, _)) = (node(&store, "one"), node(&store, "other"));
        let socket = super::super::SocketMemory::new(one.clone());
        let body = json!({"model": "m", "input": "hi", "store": false});
        let mut request = request("acme", &body);
        let keeper = one.fit_for(&mut request, true, Some(&socket)).unwrap().unwrap();
        let body = json!({"id": "resp_1", "status": "completed", "output": []});
        keeper.whole(&body.to_string().into());
        assert!(next(&one, "acme", "resp_1").is_ok());
        assert!(went(&other, "acme", "resp_1").await.is_err());
        drop(socket);
        assert!(next(&one, "acme", "resp_1").is_err());
        assert_eq!(state.take_writes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_frozen_or_empty_holds_nothing_up() {
        let (one, other, store) = two();
        answered(&one, "acme", "resp_1", 10);
        tokio::time::sleep(Duration::from_millis(1)).await;
        store.set_away(true);
        let start = Instant::now();
        other.learn_one(Some("acme"), "resp_1").await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(next(&other, "acme", "resp_1").is_err());
        assert!(next(&one, "acme", "resp_1").is_ok());
        store.set_away(false);
        assert!(went(&other, "acme", "resp_1").await.is_ok());
        store.lose();
        tokio::time::advance(BELIEVED).await;
        assert!(went(&other, "acme", "resp_1").await.is_err());

        let (frozen, state) = node(&store, "frozen");
        state.set_frozen(true);
        answered(&one, "acme", "resp_2", 10);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let start = Instant::now();
        frozen.learn_one(Some("acme"), "resp_2").await;
        assert!((20..=21).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        assert!(next(&frozen, "acme", "resp_2").is_err());
    }
}
