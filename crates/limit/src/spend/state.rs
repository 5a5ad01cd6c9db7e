//! What all services of one layer share, and what a call is charged.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use http::{HeaderMap, StatusCode};
use steadfast_core::{
    AttemptSpend, Call, CallSpend, Failure, Keep, Keyed, RecoveryLog, Spend, SpendAccount,
    SpendCaps, SpendLedger, Usage,
};
use tokio::time::Instant;

use super::{ModelPrice, Prices, SpendLimitPolicy, future::NotAdmitted};
use crate::{CallTokens, meter::ReplyMeter};

/// The caps of an account where they are others than the policy's.
pub(super) type CapsOf = Arc<dyn Fn(&SpendAccount) -> Option<SpendCaps> + Send + Sync>;

/// What all services of one layer share.
pub(crate) struct SpendState {
    pub(crate) policy: SpendLimitPolicy,
    pub(crate) ledger: SpendLedger,
    pub(crate) prices: Arc<Prices>,
    pub(super) caps: Option<CapsOf>,
    /// Of each tenant.
    inputs: Arc<Keyed<Option<Arc<str>>, InputRatio>>,
    /// There is a layer that observes the attempts.
    pub(super) is_metered: AtomicBool,
}

/// How many times the most that requests were taken to be their providers have counted, in thousandths: 1,000 or
/// more. What was seen last counts for a sixteenth, unless it was more.
#[derive(Debug)]
struct InputRatio(AtomicU32);

impl Default for InputRatio {
    fn default() -> Self {
        Self(AtomicU32::new(Self::ONE))
    }
}

impl Keep for InputRatio {
    fn keep(&self, _: Instant) -> bool {
        self.0.load(Ordering::Relaxed) > Self::ONE
    }
}

impl InputRatio {
    const ONE: u32 = 1_000;
    /// A provider that counts a hundred times as much is not understood.
    const MOST: u64 = 100_000;

    fn of(&self, input: u64) -> u64 {
        let ratio = u64::from(self.0.load(Ordering::Relaxed));
        input.saturating_mul(ratio).div_ceil(Self::ONE.into())
    }

    fn observe(&self, input: u64, reported: u64) {
        let seen = reported.saturating_mul(Self::ONE.into()).div_ceil(input.max(1));
        let seen = u32::try_from(seen.clamp(Self::ONE.into(), Self::MOST)).unwrap_or(Self::ONE);
        let update = |known: u32| Some(seen.max(known - (known.saturating_sub(seen)).div_ceil(16)));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }
}

/// The input that a request was taken to have at most, and where it is noted what that was in the end.
#[derive(Debug)]
pub(super) struct ExpectedInput {
    input: u64,
    ratio: Arc<InputRatio>,
}

impl ExpectedInput {
    fn observe(&self, usage: &Usage) {
        if let Some(reported) = usage.input.filter(|_| self.input > 0) {
            self.ratio.observe(self.input, reported);
        }
    }
}

impl SpendState {
    pub(super) fn new(policy: SpendLimitPolicy) -> Self {
        Self {
            policy,
            ledger: SpendLedger::new(policy.accounts),
            prices: Arc::default(),
            caps: None,
            inputs: Arc::new(Keyed::new(policy.accounts)),
            is_metered: AtomicBool::new(false),
        }
    }

    /// The same settings and ledger, to be changed.
    pub(super) fn again(&self) -> Self {
        Self {
            policy: self.policy,
            ledger: self.ledger.clone(),
            prices: self.prices.clone(),
            caps: self.caps.clone(),
            inputs: self.inputs.clone(),
            is_metered: AtomicBool::new(false),
        }
    }

    /// Whether a call of anybody may have to be recorded.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        let Self { policy, caps, .. } = self;
        policy.record
            || caps.is_some()
            || !policy.tenant_caps().is_off()
            || !policy.key_caps().is_off()
    }

    /// An account with its caps, unless nothing is capped or recorded for it.
    fn capped(&self, account: SpendAccount, caps: SpendCaps) -> Option<(SpendAccount, SpendCaps)> {
        let own = self.caps.as_ref().and_then(|caps| caps(&account));
        let caps = own.unwrap_or(caps);
        (self.policy.record || !caps.is_off()).then_some((account, caps))
    }

    /// The most that a request can use, by what it can be taken to be and by what providers have made of its tenant's
    /// requests.
    pub(super) fn most<Req: Call>(
        &self,
        request: &Req,
        most: CallTokens,
        now: Instant,
    ) -> (Usage, ExpectedInput) {
        let identity = request.context().identity();
        let tenant = identity.and_then(|identity| identity.tenant.clone());
        let ratio = self.inputs.get_or_insert_with(&tenant, now, InputRatio::default);
        let usage =
            CallTokens { input: ratio.of(most.input), ..most }.most(self.policy.assumed_output);
        (usage, ExpectedInput { input: most.input, ratio })
    }

    /// Reserves what a call may spend; `None` when nothing is capped or recorded for it.
    pub(super) fn reserve<Req: Call>(
        &self,
        request: &Req,
        most: Usage,
        now: Instant,
    ) -> Result<Option<CallSpend>, NotAdmitted> {
        let identity = request.context().identity();
        let name = identity.and_then(|identity| identity.tenant.clone()).unwrap_or_default();
        let tenant = self.capped(SpendAccount::Tenant(name), self.policy.tenant_caps());
        let key = identity.and_then(|identity| identity.key.clone());
        let key = key.and_then(|key| self.capped(SpendAccount::Key(key), self.policy.key_caps()));
        if tenant.is_none() && key.is_none() {
            return Ok(None);
        }
        let most = self.price(request).most(&most);
        let accounts = tenant.into_iter().chain(key);
        match CallSpend::reserve(&self.ledger, accounts.clone(), most, now) {
            Ok(call) => Ok(Some(call)),
            Err(refusal) => {
                let lease = refusal.unasked.then(|| self.ledger.lease(accounts, most));
                Err(NotAdmitted { refusal: Box::new(refusal), lease })
            }
        }
    }

    /// What the model costs that answers `request`, as far as that is known now. Where money is not counted,
    /// nothing: a missing price is nobody's concern then.
    pub(super) fn price<Req: Call>(&self, request: &Req) -> ModelPrice {
        if !self.counts_money() {
            return ModelPrice::FREE;
        }
        let target = request.context().target.as_ref();
        match target.and_then(|target| target.model()).or_else(|| request.model()) {
            Some(model) => self.prices.price(model),
            None => ModelPrice::FREE,
        }
    }

    fn counts_money(&self) -> bool {
        let Self { policy, caps, .. } = self;
        let costs = [policy.tenant_caps(), policy.key_caps()]
            .map(|caps| caps.hour.cost | caps.day.cost | caps.month.cost);
        policy.record || caps.is_some() || costs != [0, 0]
    }
}

impl fmt::Debug for SpendState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpendState")
            .field("policy", &self.policy)
            .field("ledger", &self.ledger)
            .finish_non_exhaustive()
    }
}

/// What one attempt is charged, at its end.
#[derive(Debug)]
pub struct AttemptMeter {
    /// `None` once charged.
    spend: Option<AttemptSpend>,
    price: ModelPrice,
    /// Estimated, until it is reported.
    input: u64,
    /// `None` where the attempt itself was not observed.
    expected: Option<ExpectedInput>,
    usage: Usage,
    /// Bytes of content that have come.
    seen: u64,
    /// The head of an answer has come.
    answered: bool,
    log: RecoveryLog,
}

impl AttemptMeter {
    pub(super) fn new(
        spend: AttemptSpend,
        price: ModelPrice,
        tokens: CallTokens,
        expected: impl Into<Option<ExpectedInput>>,
        log: &RecoveryLog,
    ) -> Self {
        Self {
            spend: Some(spend),
            price,
            input: tokens.input,
            expected: expected.into(),
            usage: Usage::default(),
            seen: 0,
            answered: false,
            log: log.clone(),
        }
    }

    /// Charges what was reported; where nothing was, the estimate of the input, and a token for each four bytes
    /// of output that have come.
    fn charge(&mut self) {
        let mut usage = self.usage;
        if let Some(expected) = &self.expected {
            expected.observe(&usage);
        }
        usage.input = usage.input.or(Some(self.input));
        // An end that did not come has no last report: more may have come than was reported.
        usage.output = usage.output.max(Some(self.seen.div_ceil(4)));
        self.charge_spend(self.price.spend(&usage));
    }

    fn charge_spend(&mut self, spent: Spend) {
        if let Some(spend) = self.spend.take() {
            spend.charge(spent, Instant::now());
        }
    }
}

impl ReplyMeter for AttemptMeter {
    fn log(&self) -> &RecoveryLog {
        &self.log
    }

    fn head(&mut self, status: StatusCode, _: &HeaderMap) {
        self.answered = true;
        if !status.is_success() {
            // Providers do not charge for what they refuse.
            self.charge_spend(Spend::ZERO);
        }
    }

    fn content(&mut self, bytes: usize) {
        self.seen = self.seen.saturating_add(bytes as u64);
    }

    fn usage(&mut self, usage: &Usage) {
        self.usage.update(usage);
    }

    fn success(&mut self) {
        if self.usage.output.is_some() {
            // The report at the end is exact.
            self.seen = 0;
        }
        self.charge();
    }

    fn failure(&mut self, failure: &Failure) {
        if let Some(usage) = failure.usage() {
            self.usage.update(usage);
        }
        // A refusal of a provider's, or of ours, costs nothing unless it says so; an answer that broke does,
        // and so does one that we have not waited for.
        let is_charged = self.answered
            || self.usage.total().is_some()
            || (failure.attempts() > 0 && failure.time_limit().is_some());
        if is_charged { self.charge() } else { self.charge_spend(Spend::ZERO) }
    }
}

impl Drop for AttemptMeter {
    /// Cancelled: the provider may have read the request, and what it wrote by then is charged.
    fn drop(&mut self) {
        if self.spend.is_some() {
            self.charge();
        }
    }
}

/// What a call is charged, at its end, where no attempt was observed inside; and its end.
#[derive(Debug)]
pub struct CallSpendMeter {
    call: CallSpend,
    price: ModelPrice,
    tokens: CallTokens,
    most: Usage,
    /// Attempts are observed inside: what they were not made for costs nothing.
    is_metered: bool,
    /// Of the reply, as of an only attempt.
    reply: Reply,
    log: RecoveryLog,
}

#[derive(Debug, Default)]
struct Reply {
    usage: Usage,
    seen: u64,
    answered: bool,
    refused: bool,
    over: bool,
}

impl CallSpendMeter {
    pub(super) fn new(
        state: &SpendState,
        call: CallSpend,
        price: ModelPrice,
        (tokens, most): (CallTokens, Usage),
        log: &RecoveryLog,
    ) -> Self {
        let is_metered = state.is_metered.load(Ordering::Relaxed);
        Self { call, price, tokens, most, is_metered, reply: Reply::default(), log: log.clone() }
    }

    /// The call is over; `how` charges its only attempt, where nobody else has.
    fn end(&mut self, how: impl FnOnce(&mut AttemptMeter)) {
        if std::mem::replace(&mut self.reply.over, true) {
            return;
        }
        let now = Instant::now();
        if !self.is_metered
            && self.call.attempts() == 0
            && let Ok(spend) = self.call.attempt(self.price.most(&self.most), now)
        {
            let mut attempt = AttemptMeter::new(spend, self.price, self.tokens, None, &self.log);
            attempt.usage = self.reply.usage;
            (attempt.seen, attempt.answered) = (self.reply.seen, self.reply.answered);
            if self.reply.refused {
                attempt.charge_spend(Spend::ZERO);
            } else {
                how(&mut attempt);
            }
        }
        self.call.end(now);
    }
}

impl ReplyMeter for CallSpendMeter {
    fn log(&self) -> &RecoveryLog {
        &self.log
    }

    fn head(&mut self, status: StatusCode, _: &HeaderMap) {
        self.reply.answered = true;
        self.reply.refused = !status.is_success();
    }

    fn content(&mut self, bytes: usize) {
        self.reply.seen = self.reply.seen.saturating_add(bytes as u64);
    }

    fn usage(&mut self, usage: &Usage) {
        self.reply.usage.update(usage);
    }

    fn success(&mut self) {
        self.end(ReplyMeter::success);
    }

    fn failure(&mut self, failure: &Failure) {
        self.end(|attempt| attempt.failure(failure));
    }
}

impl Drop for CallSpendMeter {
    fn drop(&mut self) {
        self.end(AttemptMeter::charge);
    }
}
