//! Which chain a request takes.

use steadfast_core::Needs;

/// Which chain a request takes. Implemented for closures.
///
/// ```
/// use steadfast_chat::ChatRequest;
/// use steadfast_core::Needs;
/// use steadfast_failover::ChooseChain;
///
/// fn takes<C: ChooseChain<ChatRequest>>(_: C) {}
/// takes(|_: &ChatRequest, needs: &Needs| needs.vision.then_some("vision"));
/// ```
pub trait ChooseChain<Req> {
    /// The name of the chain `request` takes; `None` for the default one. A name that there is no
    /// chain of means the default one too, and a warning.
    fn choose<'a>(&'a self, request: &'a Req, needs: &Needs) -> Option<&'a str>;

    /// Whether there is anything to choose. Without it a request's needs are read only when some
    /// target can do less than everything.
    fn is_needed(&self) -> bool {
        true
    }
}

/// Every request takes the default chain.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneChain;

impl<Req> ChooseChain<Req> for OneChain {
    fn choose<'a>(&'a self, _: &'a Req, _: &Needs) -> Option<&'a str> {
        None
    }

    fn is_needed(&self) -> bool {
        false
    }
}

impl<Req, F> ChooseChain<Req> for F
where
    F: Fn(&Req, &Needs) -> Option<&'static str>,
{
    fn choose<'a>(&'a self, request: &'a Req, needs: &Needs) -> Option<&'a str> {
        self(request, needs)
    }
}
