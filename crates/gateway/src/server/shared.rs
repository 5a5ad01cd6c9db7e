//! What a gateway does for the others that share with it: shows what it holds and what its folders have, and carries out what
//! operators ask for elsewhere.

use std::sync::{Arc, Weak};

use steadfast::shared::{SharedState, SharedTask};

use super::{App, Inner, dashboard, escalations};
use crate::{
    escape,
    fleet::{
        folders, held,
        orders::{self, Order, OrderAnswer},
    },
};

/// The tasks by which `app` does so. They do not keep it.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub(super) fn tasks(app: &App, state: &Arc<dyn SharedState>) -> Vec<SharedTask> {
    let weak = Arc::downgrade(&app.0);
    let (masking, carrying_out) = (weak.clone(), weak.clone());
    let folder = |name: &'static str| {
        let weak = weak.clone();
        folders::publish(state.clone(), name, move || {
            let app = weak.upgrade().map(App);
            async move { dashboard::summary(&app?, name).await }
        })
    };
    vec![
        held::publish(state.clone(), app.gateway().handles().escalation.clone(), move |text| {
            let app = masking.upgrade().map(App);
            app.map_or_else(String::new, |app| app.mask().text(escape::json(&text).into_owned()))
        }),
        folder("letters"),
        folder("runs"),
        orders::follow(state.clone(), move |order| carry_out(carrying_out.clone(), order)),
    ]
}

/// Does what another node passes on.
async fn carry_out(app: Weak<Inner>, order: Order) -> OrderAnswer {
    let Some(app) = app.upgrade().map(App) else {
        return OrderAnswer::new(503, "the node is about to end");
    };
    let Order { action, subject, body, .. } = order;
    let mut answer = match &*action {
        escalations::DECIDE => escalations::ordered(&app, &subject, body),
        dashboard::DRAIN => dashboard::ordered(&app, &body).await,
        _ => OrderAnswer::new(501, "the node is of a version that does not know this"),
    };
    answer.text = app.mask().text(answer.text);
    answer
}
