//! What a call will use, before it is known.

use steadfast_core::{Call, Usage};

/// Tokens that a call is expected to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTokens {
    /// Of its input.
    pub input: u64,
    /// The most of its output, where the request limits that.
    pub max_output: Option<u64>,
}

impl CallTokens {
    /// As usage, when the output is what the request allows, or `otherwise`.
    pub(crate) fn most(self, otherwise: u64) -> Usage {
        Usage::new(self.input, self.max_output.unwrap_or(otherwise))
    }
}

/// Says what a request is expected to use. Implemented for closures `Fn(&Req) -> CallTokens` and for
/// [`FromNeeds`].
pub trait EstimateTokens<Req> {
    /// What `request` is expected to use. Called for each attempt, so it must be cheap.
    fn estimate(&self, request: &Req) -> CallTokens;

    /// The most that `request` can use, for caps that are never to be exceeded. What it is expected to use, unless
    /// more is known.
    fn most(&self, request: &Req) -> CallTokens {
        self.estimate(request)
    }
}

impl<Req, F> EstimateTokens<Req> for F
where
    F: Fn(&Req) -> CallTokens,
{
    fn estimate(&self, request: &Req) -> CallTokens {
        self(request)
    }
}

/// By what the request [needs](Call::needs): of a chat request, a token for each four bytes of text, and its
/// output limit; at most, a token for each three bytes of text, of tools and of what only one vendor reads, and what a
/// medium can be. A request that does not say what it needs is expected to use nothing, and is corrected by the
/// usage that is reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromNeeds;

impl<Req: Call> EstimateTokens<Req> for FromNeeds {
    #[inline]
    fn estimate(&self, request: &Req) -> CallTokens {
        let needs = request.needs();
        // A lower bound of five bytes to a token; about four are usual.
        let input = needs.input_tokens.saturating_add(needs.input_tokens / 4);
        CallTokens { input, max_output: needs.max_output }
    }

    fn most(&self, request: &Req) -> CallTokens {
        let needs = request.needs();
        CallTokens {
            input: needs.most_input_tokens.max(self.estimate(request).input),
            max_output: needs.max_output,
        }
    }
}
