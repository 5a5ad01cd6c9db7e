//! What all services of one layer share: a monitor for each provider.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use steadfast_core::{
    Call, DegradedProviders, Keep, Keyed, Lease, LeaseEnd, Observer, Permit, PermitKind,
    RecoveryLog, Target,
};
use tokio::{sync::watch, time::Instant};

use crate::{
    AgentKey, HealthMonitor, HealthPolicy, HealthSnapshot, HealthStatus, HealthTransition,
    ProviderSnapshot, event, monitor::HealthCall,
};

/// What all services of one layer share.
pub(crate) struct HealthState {
    /// What new providers go by.
    policy: RwLock<HealthPolicy>,
    providers: Keyed<Box<str>, Provider>,
    pub(crate) degraded: DegradedProviders,
    watch: watch::Sender<HealthSnapshot>,
    /// Other processes, when what is known here is shared with them.
    #[cfg(feature = "shared")]
    pub(crate) fleet: std::sync::OnceLock<crate::shared::Fleet>,
    /// This, for the providers.
    own: Weak<Self>,
}

/// One provider, changed by the leases of its calls.
pub(crate) struct Provider {
    name: Box<str>,
    observed: Mutex<Observed>,
    state: Weak<HealthState>,
}

struct Observed {
    monitor: HealthMonitor,
    /// Nothing is known of it any more; calls under way change nothing that is seen.
    is_gone: bool,
}

impl HealthState {
    pub(crate) fn new(policy: HealthPolicy) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            policy: RwLock::new(policy),
            providers: Keyed::new(policy.providers),
            degraded: DegradedProviders::default(),
            watch: watch::Sender::new(HealthSnapshot::default()),
            #[cfg(feature = "shared")]
            fleet: std::sync::OnceLock::new(),
            own: own.clone(),
        })
    }

    pub(crate) fn policy(&self) -> HealthPolicy {
        *self.policy.read()
    }

    /// All providers go by `policy` from now on; what is known of them is kept.
    pub(crate) fn set_policy(&self, policy: HealthPolicy) {
        *self.policy.write() = policy;
        self.providers.set_policy(policy.providers);
        let now = Instant::now();
        for (_, provider) in self.providers.entries() {
            provider.observed.lock().monitor.set_policy(policy, now);
        }
        self.publish();
    }

    /// The lease of a call that begins now.
    pub(crate) fn admit<Req: Call>(&self, request: &Req) -> Lease {
        let (context, now) = (request.context(), Instant::now());
        let name = context.target.as_ref().map_or("", Target::provider);
        let provider = self.provider(name, now);
        let call = provider.observed.lock().monitor.began(AgentKey::of(request));
        let mut permit = Permit::new(PermitKind::Ordinary, call.order);
        permit.tag[..2].copy_from_slice(&call.agent.halves());
        Lease::new(provider, permit, context.log.clone()).observing_content(now)
    }

    pub(crate) fn provider(&self, name: &str, now: Instant) -> Arc<Provider> {
        self.providers.get_or_insert_by(name, now, || {
            let monitor = HealthMonitor::new(self.policy(), now);
            let observed = Mutex::new(Observed { monitor, is_gone: false });
            (name.into(), Provider { name: name.into(), observed, state: self.own.clone() })
        })
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<Provider>> {
        self.providers.get_by(name)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<Provider>> {
        self.providers.entries().into_iter().map(|(_, provider)| provider)
    }

    /// Drops what is known of the providers that `keep` does not want.
    pub(crate) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.providers.retain(|name, _| keep(name));
        self.publish();
    }

    pub(crate) fn snapshot(&self) -> HealthSnapshot {
        let now = Instant::now();
        let mut providers: Vec<_> = self.all().map(|provider| provider.snapshot(now)).collect();
        providers.sort_unstable_by(|one, other| one.provider.cmp(&other.provider));
        HealthSnapshot { providers }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<HealthSnapshot> {
        let mut receiver = self.watch.subscribe();
        // Whoever begins to watch sees what is, not what was when somebody last watched.
        self.publish();
        receiver.mark_unchanged();
        receiver
    }

    /// Notifies whoever watches. Costs nothing when nobody does.
    fn publish(&self) {
        if self.watch.receiver_count() > 0 {
            self.watch.send_modify(|snapshot| *snapshot = self.snapshot());
        }
    }
}

impl Provider {
    #[cfg(feature = "shared")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    #[cfg(feature = "shared")]
    fn is_forced(&self) -> bool {
        self.observed.lock().monitor.is_forced()
    }

    pub(crate) fn snapshot(&self, now: Instant) -> ProviderSnapshot {
        self.observed.lock().monitor.snapshot(&self.name, now)
    }

    /// Changes what is known of it, and reports what that has changed; whether it has.
    pub(crate) fn change(
        &self,
        now: Instant,
        log: Option<&RecoveryLog>,
        change: impl FnOnce(&mut HealthMonitor) -> Option<HealthTransition>,
    ) -> bool {
        let Some(transition) = self.apply(now, change) else { return false };
        event::changed(&self.name, &transition, log);
        if let Some(state) = self.state.upgrade() {
            state.publish();
            #[cfg(feature = "shared")]
            if let Some(fleet) = state.fleet.get() {
                fleet.publish(&self.name, &transition, self.is_forced());
            }
        }
        true
    }

    /// Under the lock, so that of two changes the later one is seen last.
    fn apply(
        &self,
        now: Instant,
        change: impl FnOnce(&mut HealthMonitor) -> Option<HealthTransition>,
    ) -> Option<HealthTransition> {
        let mut observed = self.observed.lock();
        let successes = observed.monitor.successes();
        let transition = change(&mut observed.monitor);
        let succeeded = observed.monitor.successes() > successes;
        if observed.is_gone || (transition.is_none() && !succeeded) {
            return None;
        }
        let degraded = &self.state.upgrade()?.degraded;
        let Some(transition) = transition else {
            // It may be over, so that there is no reason to wait with the next one.
            degraded.allow_probe(&self.name, now);
            return None;
        };
        match transition.to {
            HealthStatus::Degraded => {
                degraded.insert(&self.name, now, observed.monitor.policy().probe_every);
            }
            HealthStatus::Healthy => degraded.remove(&self.name),
        }
        Some(transition)
    }
}

/// The call that a permit was given to.
fn call(permit: Permit) -> HealthCall {
    let [high, low, ..] = permit.tag;
    HealthCall { order: permit.order, agent: AgentKey::from_halves([high, low]) }
}

impl Observer for Provider {
    fn first_content(&self, permit: Permit, at: Instant, _: Duration, log: &RecoveryLog) {
        self.change(at, Some(log), |monitor| monitor.reached(at, &call(permit)));
    }

    fn ended(&self, end: LeaseEnd<'_>) {
        let now = Instant::now();
        self.change(now, Some(end.log), |monitor| {
            monitor.ended(now, &call(end.permit), end.outcome, end.content_reported)
        });
    }
}

impl Keep for Provider {
    /// What is degraded is avoided, and so not used.
    fn keep(&self, _: Instant) -> bool {
        let observed = self.observed.lock();
        observed.monitor.status() == HealthStatus::Degraded || observed.monitor.is_forced()
    }

    fn evicted(&self) {
        let mut observed = self.observed.lock();
        observed.is_gone = true;
        if let Some(state) = self.state.upgrade() {
            state.degraded.remove(&self.name);
        }
    }
}

impl fmt::Debug for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthState")
            .field("policy", &self.policy())
            .field("degraded", &self.degraded)
            .finish_non_exhaustive()
    }
}
