//! What a layer declares about itself.

use std::{fmt, time::Duration};

use steadfast_core::Failure;
use tower_layer::Layer;
use tower_service::Service;

use crate::{Action, Exchange, Probe, Read};

/// A service that can be tested: what a layer has to make of a [`Probe`]. Implemented for every
/// service that fits.
///
/// These bounds are a part of the contract, checked by the compiler: a service is `Clone` when its
/// inner one is, and it, its futures and its replies can be sent to another thread.
pub trait Contracted<E: Exchange>:
    Service<E::Request, Response: Read, Error: Into<Failure>, Future: Send + 'static>
    + Clone
    + fmt::Debug
    + Send
    + Sync
    + 'static
{
}

impl<E, S> Contracted<E> for S
where
    E: Exchange,
    S: Service<E::Request, Response: Read, Error: Into<Failure>, Future: Send + 'static>
        + Clone
        + fmt::Debug
        + Send
        + Sync
        + 'static,
{
}

/// A layer that can be tested. Implemented for every layer that fits.
pub trait ContractedLayer<E: Exchange>:
    Layer<Probe<E>, Service: Contracted<E>> + Clone + fmt::Debug + Send + Sync + 'static
{
}

impl<E, L> ContractedLayer<E> for L
where
    E: Exchange,
    L: Layer<Probe<E>, Service: Contracted<E>> + Clone + fmt::Debug + Send + Sync + 'static,
{
}

/// A layer under test: how to make it, what its requests and replies are, and what can not be
/// observed from outside.
///
/// The latter has to be declared: how it [refuses](Self::refuses), its [state](Self::state), and
/// what it [holds](Self::held). What a layer does not have is declared with [none](Self::none) and
/// a reason: the clause then is not applicable, instead of passing without having tested anything.
#[must_use = "a contract does nothing until a clause is checked"]
pub struct Contract<E: Exchange, L> {
    pub(crate) exchange: E,
    make: Box<dyn Fn() -> L + Send + Sync>,
    after: Duration,
    pub(crate) refuse: Option<Refuse<E, L>>,
    pub(crate) state: Option<Count<L>>,
    pub(crate) mark: Action,
    pub(crate) held: Option<Count<L>>,
    pub(crate) allocations: u64,
    pub(crate) refuses_crowds: bool,
    none: Vec<(Aspect, &'static str)>,
}

/// What can not be observed from outside a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aspect {
    /// It refuses calls: see [`Contract::refuses`].
    Refusal,
    /// It has state: see [`Contract::state`].
    State,
    /// It holds something while a call is under way: see [`Contract::held`].
    Held,
}

type Refuse<E, L> = Box<dyn Fn(&L, &mut <E as Exchange>::Request) + Send + Sync>;
type Count<L> = Box<dyn Fn(&L) -> u64 + Send + Sync>;

impl<E: Exchange, L: ContractedLayer<E>> Contract<E, L> {
    /// A layer, made by `make`, whose services take and return the types of `exchange`. Each clause
    /// makes its own layer, and some make several: each must start with separate state.
    pub fn new(exchange: E, make: impl Fn() -> L + Send + Sync + 'static) -> Self {
        Self {
            exchange,
            make: Box::new(make),
            after: Duration::ZERO,
            refuse: None,
            state: None,
            mark: Action::answer(),
            held: None,
            allocations: 0,
            refuses_crowds: false,
            none: Vec::new(),
        }
    }

    /// Lets `wait` pass after a layer has been made, before it is called: for one that first has to
    /// wait for something, such as the cooldown of an open breaker.
    pub fn after(self, wait: Duration) -> Self {
        Self { after: wait, ..self }
    }

    /// `refuse` changes the layer, or one request, so that this call is refused without a call of
    /// the inner service.
    pub fn refuses(self, refuse: impl Fn(&L, &mut E::Request) + Send + Sync + 'static) -> Self {
        Self { refuse: Some(Box::new(refuse)), ..self }
    }

    /// `state` reads something of the layer's state that changes with every call of `mark`, such
    /// as a counter.
    pub fn state(self, mark: Action, state: impl Fn(&L) -> u64 + Send + Sync + 'static) -> Self {
        Self { state: Some(Box::new(state)), mark, ..self }
    }

    /// `held` counts what the layer holds by its own count: permits, leases, probes.
    pub fn held(self, held: impl Fn(&L) -> u64 + Send + Sync + 'static) -> Self {
        Self { held: Some(Box::new(held)), ..self }
    }

    /// The layer does not have that aspect, and why.
    pub fn none(mut self, aspect: Aspect, why: &'static str) -> Self {
        self.none.push((aspect, why));
        self
    }

    /// What was declared about `aspect`; `None` when it is not applicable.
    ///
    /// # Errors
    ///
    /// When nothing was declared about it.
    pub(crate) fn declared<'a, A>(
        &self,
        aspect: Aspect,
        value: &'a Option<A>,
    ) -> Result<Option<&'a A>, String> {
        if let Some(value) = value {
            return Ok(Some(value));
        }
        let Some((_, why)) = self.none.iter().find(|(one, _)| *one == aspect) else {
            let method = match aspect {
                Aspect::Refusal => "refuses",
                Aspect::State => "state",
                Aspect::Held => "held",
            };
            return Err(format!(
                "there is nothing to test: declare `.{method}(..)`, or `.none(Aspect::{aspect:?}, why)`"
            ));
        };
        println!("not applicable: {why}");
        Ok(None)
    }

    /// The success path makes at most `allocations` more than the bare service; without this, none.
    /// `why` is for the reader of the test.
    pub fn allocates(self, allocations: u64, why: &str) -> Self {
        let _ = why;
        Self { allocations, ..self }
    }

    /// Of many calls at once some may be refused, as a half-open breaker does.
    pub fn may_refuse_crowds(self) -> Self {
        Self { refuses_crowds: true, ..self }
    }

    pub(crate) async fn layer(&self) -> L {
        let layer = (self.make)();
        if !self.after.is_zero() {
            tokio::time::advance(self.after).await;
        }
        layer
    }
}

impl<E: Exchange, L> fmt::Debug for Contract<E, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contract")
            .field("after", &self.after)
            .field("refuses", &self.refuse.is_some())
            .field("state", &self.state.is_some())
            .field("held", &self.held.is_some())
            .field("allocations", &self.allocations)
            .finish_non_exhaustive()
    }
}
