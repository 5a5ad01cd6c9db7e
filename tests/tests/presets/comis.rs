//! `comis`.

use steadfast::{
    Preset, Stack, TimeLimit,
    sim::{Answer, Drip, Fault, FaultPlan, FirstToken, How, PlanRule},
};

use crate::{World, always, chain, request, secs, sims, status};

const PRESET: Preset = Preset::Comis;

/// A provider whose answers take their time: `bytes` each second.
fn slow(
    bytes: usize,
    rules: impl IntoIterator<Item = PlanRule>,
) -> Vec<steadfast::sim::SimProvider> {
    let drip = Fault::Drip(Drip { bytes, every_ms: 1_000 });
    let plan = rules.into_iter().fold(FaultPlan::none(), FaultPlan::rule);
    sims([plan.rule(PlanRule::new(drip))], |_, provider| {
        provider.respond(|_| {
            let words: Vec<_> = (0..2_000).map(|at| format!("word {at}")).collect();
            Some(Answer::text(words.join(" ")).in_chunks_of(150))
        })
    })
}

#[tokio::test(start_paused = true)]
async fn a_prompt_may_be_silent_for_three_minutes() {
    for (how, took) in [(Fault::break_after(3, How::Stall), 180), (Fault::Hang, 180)] {
        let world = World::new(PRESET, [always(how)]);
        let got = world.send(request().streaming()).await;
        let failure = got.failure.unwrap();
        assert!(got.took >= secs(took), "{failure} after {:?}", got.took);
    }
    let late = |after_ms| Fault::FirstToken(FirstToken { after_ms, ping_every_ms: Some(5_000) });
    let world = World::new(PRESET, [always(late(179_000))]);
    let got = world.send(request().streaming()).await;
    got.answer();
    assert_eq!(got.took.as_secs(), 179);
}

#[tokio::test(start_paused = true)]
async fn a_first_call_may_stream_for_long_and_a_retry_one_minute_to_its_end() {
    let first = |sims: Vec<_>, preset: Option<Preset>| {
        let stack = Stack::new(chain(&sims)).without_resume();
        let stack = match preset {
            Some(preset) => Stack::new(chain(&sims)).preset(preset).without_resume(),
            None => stack,
        };
        World::of(&stack, sims)
    };
    // Some minutes.
    let answered = first(slow(6_000, []), Some(PRESET)).send(request().streaming()).await;
    answered.answer();
    let took = answered.took;
    assert!(took > secs(70) && took < secs(500), "{took:?}");
    let failing = || slow(6_000, [PlanRule::new(status(500, "oops")).nth(1)]);
    let got = first(failing(), Some(PRESET)).send(request().streaming()).await;
    let failure = got.failure.unwrap();
    assert_eq!(failure.time_limit(), Some(TimeLimit::Attempt), "{failure}");
    assert!(got.took < secs(70), "{:?}", got.took);
    // By default that limit ends with the first content.
    let got = first(failing(), None).send(request().streaming()).await;
    got.answer();
    assert!(got.took > secs(70), "{:?}", got.took);
}

#[tokio::test(start_paused = true)]
async fn the_whole_takes_ten_minutes_at_most() {
    let world = World::of(&Stack::new(chain(&slow(50, []))).preset(PRESET), slow(50, []));
    let got = world.send(request().streaming()).await;
    assert_eq!(got.failure.unwrap().time_limit(), Some(TimeLimit::Pipeline));
    assert_eq!(got.took, secs(600));
}

#[test]
fn the_summariser_has_its_documented_numbers() {
    let policies = PRESET.policies();
    assert_eq!((policies.spend.hour, policies.spend.day), (500_000, 5_000_000));
    let summaries = policies.summaries;
    assert_eq!((summaries.failures, summaries.rest), (5, secs(60)));
    assert_eq!(summaries.probe, secs(30));
}
