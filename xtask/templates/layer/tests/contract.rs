//! The contract of every layer.

use steadfast_{{snake}}::{ {{Pascal}}Counts, {{Pascal}}Handle, {{Pascal}}Layer};
use steadfast_testkit::{Action, Aspect, Chat, Contract, PinnedHttp, Plain, contract};

fn total(handle: &{{Pascal}}Handle, count: fn(&{{Pascal}}Counts) -> u64) -> u64 {
    handle.snapshot().iter().map(|(_, counts)| count(counts)).sum()
}

contract!(
    plain,
    Contract::new(Plain, || {{Pascal}}Layer::default().at_once())
        .none(Aspect::Refusal, "every call is sent")
        .state(Action::answer(), |layer| total(&layer.handle(), |counts| counts.calls))
        .held(|layer| total(&layer.handle(), |counts| counts.under_way))
);

contract!(
    http,
    Contract::new(PinnedHttp, {{Pascal}}Layer::default)
        .none(Aspect::Refusal, "every call is sent")
        .state(Action::answer(), |layer| total(&layer.handle(), |counts| counts.calls))
        .held(|layer| total(&layer.handle(), |counts| counts.under_way))
);

contract!(
    chat,
    Contract::new(Chat, {{Pascal}}Layer::default)
        .none(Aspect::Refusal, "every call is sent")
        .state(Action::answer(), |layer| total(&layer.handle(), |counts| counts.calls))
        .held(|layer| total(&layer.handle(), |counts| counts.under_way))
);
