//! One route: which requests take it, and the stack they go through.

use std::{fmt, sync::Arc, time::Duration};

use steadfast::{
    ChatRequest, ChatService, EmbedService, Handles,
    failover::{ChooseChain, NextTarget},
};
use steadfast_core::{Call, Dialect};

use super::{embed::Embeddings, layers::Choose};
use crate::config::{Link, RouteConfig};

/// What a request goes through: the file's own stack, or that of a `[routes.NAME]`.
pub struct RouteStack {
    pub(super) name: Arc<str>,
    /// `None` takes every request.
    pub(super) when: Option<RouteConfig>,
    pub(super) service: ChatService,
    pub(super) embeddings: Embeddings,
    pub(super) choose: Choose,
    pub(super) handles: Handles,
    pub(super) chain: Vec<Link>,
    pub(super) pipeline: Duration,
}

impl RouteStack {
    /// Its name; `default` is what no route takes.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The stack, to be called.
    pub fn service(&self) -> ChatService {
        self.service.clone()
    }

    /// The stack for embeddings in `dialect`; `None` where no provider of the chain has them in that.
    pub fn embeddings(&self, dialect: Dialect) -> Option<EmbedService> {
        self.embeddings.service(dialect)
    }

    /// Where `request` would go now.
    pub(crate) fn next_target(&self, request: &ChatRequest) -> NextTarget {
        let chain = self.choose.choose(request, &request.needs());
        self.handles.failover.next_target(chain, request)
    }

    /// The longest time of a call.
    pub fn pipeline(&self) -> Duration {
        self.pipeline
    }

    /// The handles of its layers, whose state all routes share.
    pub fn handles(&self) -> &Handles {
        &self.handles
    }

    /// The providers in the order they are asked.
    pub fn chain(&self) -> &[Link] {
        &self.chain
    }

    pub(super) fn takes(&self, request: &impl Call) -> bool {
        let context = request.context();
        let model = request.model().unwrap_or_default();
        let takes = |when: &RouteConfig| when.takes(model, context.tenant(), context.agent());
        self.when.as_ref().is_none_or(takes)
    }
}

impl fmt::Debug for RouteStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteStack")
            .field("name", &self.name)
            .field("chain", &self.chain)
            .finish_non_exhaustive()
    }
}
