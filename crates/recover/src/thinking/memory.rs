//! What was issued: bounded, by tenant, and forgotten when it is not used.

use std::{
    hash::BuildHasher,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, Part};
use steadfast_core::{Keep, Keyed, KeyedPolicy};
use tokio::time::Instant;

use super::fleet::ShareThinking;

/// What is remembered of thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ThinkingPolicy {
    /// How many blocks are known by their signature, whose text is not kept; 0 remembers nothing.
    pub blocks: usize,
    /// Of how many answers the thinking itself is kept, to be sent back to who wrote it.
    pub answers: usize,
    /// The most thinking of one answer to keep, signatures included, in bytes.
    pub max_bytes: usize,
    /// The most thinking to put back into one request, in bytes, the latest first: layers further out have
    /// made the request fit its window without it.
    pub max_returned: usize,
    /// How long what is not used is remembered.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "keep_s", with = "steadfast_core::config::Seconds")
    )]
    #[cfg_attr(feature = "schemars", schemars(with = "f64"))]
    pub keep: Duration,
}

impl Default for ThinkingPolicy {
    /// 65,536 blocks of about 100 bytes, a thousand sessions of some dozens of steps; the thinking of 2,048
    /// answers of up to 16 KiB, twice what a step of an agent thinks, so that all of it is at most 32 MiB. Of
    /// that 32 KiB a request, 8,000 tokens: a compaction leaves a tenth of the window free, which is no less
    /// with any model that signs its thinking. An hour, as long as the longest prompt cache lives.
    fn default() -> Self {
        Self {
            blocks: 65_536,
            answers: 2_048,
            max_bytes: 16 << 10,
            max_returned: 32 << 10,
            keep: Duration::from_secs(3_600),
        }
    }
}

/// Who writes and reads thinking: a tenant's conversation with a provider's model. Hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Issuer {
    pub(super) tenant: u64,
    pub(super) issuer: u64,
}

/// A block of thinking that was issued.
#[derive(Debug)]
pub(super) struct Block {
    tenant: u64,
    pub(super) issuer: u64,
    /// What came before the answer it is in.
    pub(super) prefix: u64,
    /// The block before it in what was sent, or in the same answer; 0 for the first.
    pub(super) before: u64,
    /// It answers a request that was sent as the caller wrote it.
    pub(super) untouched: bool,
    /// A provider has refused it.
    pub(super) refused: AtomicBool,
    used: Used,
}

/// The thinking that an answer begins with.
#[derive(Debug)]
pub(super) struct Answer {
    tenant: u64,
    pub(super) parts: Mutex<Vec<Part>>,
    used: Used,
}

/// When something was used last.
#[derive(Debug)]
struct Used(Mutex<Instant>);

impl Used {
    fn now() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Whether it was used in the last `keep`; it is now.
    fn renew(&self, keep: Duration) -> bool {
        let (mut used, now) = (self.0.lock(), Instant::now());
        let is_kept = now.saturating_duration_since(*used) < keep;
        if is_kept {
            *used = now;
        }
        is_kept
    }
}

impl Keep for Block {
    fn owner(&self) -> u64 {
        self.tenant
    }
}

impl Keep for Answer {
    fn owner(&self) -> u64 {
        self.tenant
    }
}

/// Who has signed thinking, for which tenant.
#[derive(Debug)]
struct Signs(u64);

impl Keep for Signs {
    fn owner(&self) -> u64 {
        self.0
    }
}

/// A call of a tool, and the block that its answer had before it.
#[derive(Debug)]
struct Call {
    tenant: u64,
    block: u64,
}

impl Keep for Call {
    fn owner(&self) -> u64 {
        self.tenant
    }
}

#[derive(Debug)]
pub(super) struct Memory {
    pub(super) policy: ThinkingPolicy,
    pub(super) hasher: RandomState,
    blocks: Keyed<u64, Block>,
    answers: Keyed<u64, Answer>,
    issuers: Keyed<u64, Signs>,
    /// Calls before which their answer had thinking.
    calls: Keyed<u64, Call>,
    /// Nothing was remembered so far.
    empty: AtomicBool,
    pub(super) dropped: AtomicU64,
    pub(super) returned: AtomicU64,
    /// Other processes, when what is remembered here is shared with them.
    pub(super) fleet: OnceLock<Box<dyn ShareThinking>>,
}

impl Memory {
    pub(super) fn new(policy: ThinkingPolicy) -> Self {
        let keyed = |capacity| KeyedPolicy { capacity, idle: policy.keep };
        Self {
            policy,
            hasher: RandomState::default(),
            blocks: Keyed::new(keyed(policy.blocks)),
            answers: Keyed::new(keyed(policy.answers)),
            issuers: Keyed::new(KeyedPolicy::default()),
            calls: Keyed::new(keyed(policy.blocks)),
            empty: AtomicBool::new(true),
            dropped: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            fleet: OnceLock::new(),
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.policy.blocks == 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.empty.load(Ordering::Relaxed)
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn answers(&self) -> usize {
        self.answers.len()
    }

    /// Who answers `request`.
    pub(super) fn issuer(&self, request: &ChatRequest) -> Issuer {
        let context = &request.context;
        let tenant = self.hasher.hash_one(context.tenant());
        let target = context.target.as_ref();
        let provider = target.map_or("", |target| target.provider());
        let model = target.and_then(|target| target.model()).unwrap_or(&request.model);
        Issuer { tenant, issuer: self.hasher.hash_one((tenant, provider, model)) }
    }

    /// Whether thinking that it has signed is remembered.
    pub(super) fn signs(&self, issuer: Issuer) -> bool {
        self.issuers.get(&issuer.issuer).is_some()
    }

    /// What a part that is thinking is known by; `None` where it is not signed.
    pub(super) fn id(&self, part: &Part) -> Option<u64> {
        let signature = match part {
            Part::Thinking(thinking) => thinking.signature.as_deref()?,
            Part::Redacted { data } => data,
            _ => return None,
        };
        (!signature.is_empty()).then(|| self.hasher.hash_one(signature).max(1))
    }

    /// Its text and its signature, in bytes.
    pub(super) fn size(part: &Part) -> usize {
        match part {
            Part::Thinking(thinking) => {
                thinking.text.len() + thinking.signature.as_ref().map_or(0, String::len)
            }
            Part::Redacted { data } => data.len(),
            _ => 0,
        }
    }

    fn block_key(&self, issuer: Issuer, id: u64) -> u64 {
        self.hasher.hash_one((issuer.tenant, id))
    }

    pub(super) fn block(&self, issuer: Issuer, id: u64) -> Option<std::sync::Arc<Block>> {
        let block = self.blocks.get(&self.block_key(issuer, id))?;
        (block.tenant == issuer.tenant && block.used.renew(self.policy.keep)).then_some(block)
    }

    /// A block was issued behind `prefix` and after the block `before`.
    pub(super) fn issued(
        &self,
        issuer: Issuer,
        id: u64,
        prefix: u64,
        before: u64,
        untouched: bool,
    ) {
        self.empty.store(false, Ordering::Relaxed);
        let now = Instant::now();
        self.issuers.get_or_insert_with(&issuer.issuer, now, || Signs(issuer.tenant));
        let key = self.block_key(issuer, id);
        self.blocks.get_or_insert_with(&key, now, || Block {
            tenant: issuer.tenant,
            issuer: issuer.issuer,
            prefix,
            before,
            untouched,
            refused: AtomicBool::new(false),
            used: Used::now(),
        });
    }

    /// A provider has refused thinking of this: it is not sent again.
    pub(super) fn refused(&self, issuer: Issuer, id: u64) {
        self.empty.store(false, Ordering::Relaxed);
        let make = || Block {
            tenant: issuer.tenant,
            issuer: issuer.issuer,
            prefix: 0,
            before: 0,
            untouched: false,
            refused: AtomicBool::new(true),
            used: Used::now(),
        };
        let key = self.block_key(issuer, id);
        let block = self.blocks.get_or_insert_with(&key, Instant::now(), make);
        block.refused.store(true, Ordering::Relaxed);
    }

    fn call_key(&self, issuer: Issuer, id: &str) -> u64 {
        self.hasher.hash_one((issuer.issuer, id))
    }

    /// The answer with the call `id` had the thinking `block` before it.
    pub(super) fn called(&self, issuer: Issuer, id: &str, block: u64) {
        let key = self.call_key(issuer, id);
        let make = || Call { tenant: issuer.tenant, block };
        self.calls.get_or_insert_with(&key, Instant::now(), make);
    }

    /// The last thinking before the call `id` in its answer, if it had any.
    pub(super) fn thought_before(&self, issuer: Issuer, id: &str) -> Option<u64> {
        if id.is_empty() {
            return None;
        }
        self.calls.get(&self.call_key(issuer, id)).map(|call| call.block)
    }

    fn answer_key(&self, issuer: Issuer, prefix: u64, answer: u64) -> u64 {
        self.hasher.hash_one((issuer.issuer, prefix, answer))
    }

    /// The answer known by `answer` to what is known by `prefix` begins with this thinking.
    pub(super) fn answered(&self, issuer: Issuer, prefix: u64, answer: u64, parts: Vec<Part>) {
        if self.policy.answers == 0 {
            return;
        }
        let key = self.answer_key(issuer, prefix, answer);
        let (tenant, used) = (issuer.tenant, Used::now());
        let kept = self.answers.get_or_insert_with(&key, Instant::now(), || Answer {
            tenant,
            parts: Mutex::default(),
            used,
        });
        kept.used.renew(Duration::MAX);
        *kept.parts.lock() = parts;
    }

    /// The thinking that this answer began with.
    pub(super) fn answer(&self, issuer: Issuer, prefix: u64, answer: u64) -> Option<Vec<Part>> {
        let kept = self.answers.get(&self.answer_key(issuer, prefix, answer))?;
        let is_kept = kept.tenant == issuer.tenant && kept.used.renew(self.policy.keep);
        is_kept.then(|| kept.parts.lock().clone())
    }
}
