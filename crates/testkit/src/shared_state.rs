//! What every store behind a [`SharedState`] promises, whatever it is made of.
//!
//! ```
//! use std::sync::Arc;
//! use steadfast_core::shared::{EmbeddedStore, SharedState};
//! use steadfast_testkit::shared_state;
//!
//! # steadfast_testkit::run(async {
//! let store = EmbeddedStore::new();
//! shared_state::contract(async |name| Arc::new(store.join(name)) as Arc<dyn SharedState>).await;
//! # Ok(())
//! # });
//! ```
//!
//! `make` makes a node of this name on the same store each time, which may still be away; no two that a clause makes have the same. Each clause
//! is a function of its own, so that a test may have one. A clause waits for what has to become true, as long as a
//! slow machine may take, and panics with what did not.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use steadfast_core::{
    Spend, SpendCaps, SpendTotals, SpendWindow,
    shared::{
        AccountDraw, AccountGrant, AccountKnown, Claim, FactListener, Known, LEASED_FOR, News,
        NodeReport, SharedState, StoreAway, WHOLE, WantedShare,
    },
};
use tokio::time::{Instant, sleep};

/// How long anything is waited for: a hundred times what it takes on a machine that has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is looked at.
const INTERVAL: Duration = Duration::from_millis(5);

/// A kind of facts that no layer has.
const KIND: &str = "contract";

/// All clauses, one after the other.
pub async fn contract(make: impl AsyncFn(&str) -> Arc<dyn SharedState>) {
    facts_are_heard_by_others_and_not_by_oneself(&make).await;
    a_late_joiner_catches_up(&make).await;
    what_is_over_is_over_for_all(&make).await;
    the_longest_of_what_holds_is_known_to_all(&make).await;
    kinds_are_kept_apart(&make).await;
    values_are_read_by_others_until_they_expire(&make).await;
    any_key_will_do(&make).await;
    a_claim_has_one_holder_and_tokens_grow(&make).await;
    a_claim_that_expired_is_not_released(&make).await;
    parts_are_leased_once(&make).await;
    an_account_is_spent_once(&make).await;
    a_draw_that_comes_twice_or_late_changes_nothing(&make).await;
    an_account_that_was_lost_is_learned_again(&make).await;
    the_fleet_is_known_by_name(&make).await;
    clocks_are_the_same(&make).await;
}

/// What one node publishes, the others hear, each key once and as it is; not the node itself.
pub async fn facts_are_heard_by_others_and_not_by_oneself(
    make: &impl AsyncFn(&str) -> Arc<dyn SharedState>,
) {
    let nodes = joined(make, ["heard-a", "heard-b", "heard-c"]).await;
    let [a, b, c] = &nodes;
    let mut listeners = [b, c].map(|node| node.subscribe(KIND));
    let mut own = a.subscribe(KIND);
    let until_ms = now_ms(a) + 600_000;
    for number in 0..50 {
        publish(a, &format!("heard {number}"), until_ms + number);
    }
    for listener in &mut listeners {
        let all = (0..50).map(|number| (format!("heard {number}"), until_ms + number));
        hear_all(listener, all.collect()).await;
    }
    publish(b, "heard last", until_ms);
    loop {
        let next = tokio::time::timeout(PATIENCE, own.next()).await;
        let Ok((key, _)) = next else { panic!("nothing was heard of another node") };
        if &*key == "heard last" {
            break;
        }
        assert!(!key.starts_with("heard "), "a node has heard its own: {key}");
    }
}

/// A node that joins later hears what was found before.
pub async fn a_late_joiner_catches_up(make: &impl AsyncFn(&str) -> Arc<dyn SharedState>) {
    let [a, b] = joined(make, ["late-a", "late-b"]).await;
    let mut listener = b.subscribe(KIND);
    let until_ms = now_ms(&a) + 600_000;
    publish(&a, "late", until_ms);
    hear(&mut listener, "late", |known| until(known) == until_ms).await;
    let [c] = joined(make, ["late-c"]).await;
    let mut listener = c.subscribe(KIND);
    hear(&mut listener, "late", |known| until(known) == until_ms).await;
    // What is known at once is heard from the beginning by whoever subscribes later.
    let mut listener = c.subscribe(KIND);
    hear(&mut listener, "late", |known| until(known) == until_ms).await;
}

/// What one node finds to be over, is over for those that have found it, too, and what begins later is not.
pub async fn what_is_over_is_over_for_all(make: &impl AsyncFn(&str) -> Arc<dyn SharedState>) {
    let [a, b] = joined(make, ["over-a", "over-b"]).await;
    let mut heard = [a.subscribe(KIND), b.subscribe(KIND)];
    let since_ms = now_ms(&a);
    let holds = |since_ms| News::holds(since_ms, since_ms + 600_000, "{}");
    a.publish(KIND, "over", holds(since_ms));
    hear(&mut heard[1], "over", |known| until(known) == since_ms + 600_000).await;
    b.publish(KIND, "over", News::over(since_ms + 1));
    hear(&mut heard[0], "over", |known| known.fact.is_none() && known.over_ms > since_ms).await;
    a.publish(KIND, "over", holds(since_ms + 2));
    hear(&mut heard[1], "over", |known| until(known) == since_ms + 600_002).await;
}

/// Of what several have found, all know that which lasts longest.
pub async fn the_longest_of_what_holds_is_known_to_all(
    make: &impl AsyncFn(&str) -> Arc<dyn SharedState>,
) {
    let nodes = joined(make, ["longest-a", "longest-b", "longest-c"]).await;
    let mut listeners = nodes.each_ref().map(|node| node.subscribe(KIND));
    let until_ms = now_ms(&nodes[0]) + 600_000;
    for (node, longer) in nodes.iter().zip([1, 3, 2]) {
        publish(node, "longest", until_ms + longer);
    }
    for listener in &mut listeners {
        hear(listener, "longest", |known| until(known) == until_ms + 3).await;
    }
}

/// A listener hears of one kind only.
pub async fn kinds_are_kept_apart(make: &impl AsyncFn(&str) -> Arc<dyn SharedState>) {
    let [a, b] = joined(make, ["kinds-a", "kinds-b"]).await;
    let mut listener = b.subscribe("contract-other");
    let until_ms = now_ms(&a) + 600_000;
    publish(&a, "kinds", until_ms);
    a.publish("contract-other", "kinds other", News::holds(1, until_ms, "{}"));
    let (key, _) = listener.next().await;
    assert_eq!(&*key, "kinds other");
}

/// A value is read by all nodes for as long as it lasts, and is replaced by a later one.
pub async fn values_are_read_by_others_until_they_expire(
    make: &impl AsyncFn(&str) -> Arc<dyn SharedState>,
) {
    let [a, b] = joined(make, ["values-a", "values-b"]).await;
    assert_eq!(get(&b, "contract", "none").await, None);
    let all_bytes: Bytes = (0..=255).collect::<Vec<u8>>().into();
    let lasts = Duration::from_secs(600);
    a.put("contract", "value", all_bytes.clone(), lasts);
    read(&b, "value", Some(&all_bytes)).await;
    assert_eq!(get(&b, "contract-other", "value").await, None, "spaces are kept apart");
    b.put("contract", "value", Bytes::from_static(b"later"), lasts);
    read(&a, "value", Some(b"later")).await;
    b.put("contract", "value", Bytes::from_static(b"short"), Duration::from_millis(50));
    read(&a, "value", None).await;
}

/// A key may have any characters, and be long.
pub async fn any_key_will_do(make: &impl AsyncFn(&str) -> Arc<dyn SharedState>) {
    let [a, b] = joined(make, ["any-a", "any-b"]).await;
    let long = "x".repeat(10_000);
    let (one, other) = (format!("{long}1"), format!("{long}2"));
    let keys = ["", " ", "a:b}{c*?[", "\u{1f}\u{0}\n", "#1", "schlüssel 🗝", &one, &other];
    let until_ms = now_ms(&a) + 600_000;
    let lasts = Duration::from_secs(600);
    let mut listener = b.subscribe(KIND);
    for (number, key) in (1..).zip(keys) {
        a.put("contract-any", key, Bytes::from(number.to_string()), lasts);
        publish(&a, key, until_ms + number);
    }
    for (number, key) in (1..).zip(keys) {
        let number_text = number.to_string();
        let what = format!("the value of {key:?}");
        eventually(&what, async || {
            get(&b, "contract-any", key).await.is_some_and(|value| value == number_text)
        })
        .await;
        let held = claim(&a, key, lasts).await;
        assert!(held.is_some_and(|held| *held.key == *key), "{key:?} is claimed");
        assert_eq!(claim(&b, key, lasts).await, None, "{key:?} is claimed once");
    }
    let all = (1..).zip(keys).map(|(number, key)| (key.to_owned(), until_ms + number));
    hear_all(&mut listener, all.collect()).await;
}

/// A claim is one node's until it gives it back or its time is over, and the next one has a greater token.
pub async fn a_claim_has_one_holder_and_tokens_grow(
    make: &impl AsyncFn(&str) -> Arc<dyn SharedState>,
) {
    let [a, b] = joined(make, ["claims-a", "claims-b"]).await;
    let lasts = Duration::from_secs(600);
    let Some(first) = claim(&a, "claim", lasts).await else {
        panic!("nobody has it");
    };
    assert_eq!(claim(&b, "claim", lasts).await, None);
    assert_eq!(claim(&a, "claim", lasts).await, None, "not even who has it");
    let Some(other) = claim(&b, "another claim", lasts).await else {
        panic!("nobody has that");
    };
    assert!(other.token > first.token);
    a.release(&first);
    let second = claimed(&b, "claim", Duration::from_millis(50)).await;
    assert!(second.token > other.token);
    let third = claimed(&a, "claim", lasts).await;
    assert!(third.token > second.token, "its time was over");
}

/// Who is late with giving back does not take it from the next one.
pub async fn a_claim_that_expired_is_not_released(
    make: &impl AsyncFn(&str) -> Arc<dyn SharedState>,
) {
    let [a, b] = joined(make, ["late-claims-a", "late-claims-b"]).await;
    let lasts = Duration::from_secs(600);
    let first = claimed(&a, "late claim", Duration::from_millis(50)).await;
    let second = claimed(&b, "late claim", lasts).await;
    a.release(&first);
    // By then it has been read.
    a.put("contract", "after the release", Bytes::from_static(b"1"), lasts);
    read(&b, "after the release", Some(b"1")).await;
    assert_eq!(claim(&a, "late claim", lasts).await, None);
    b.release(&second);
    claimed(&a, "late claim", lasts).await;
}

/// What nodes lease of a thing is never more than the whole of it, each gets its part when the others have asked again, and what
/// a node does not renew is free again.
pub async fn parts_are_leased_once(make: &impl AsyncFn(&str) -> Arc<dyn SharedState>) {
    let [a, b, c] = joined(make, ["lease-a", "lease-b", "lease-c"]).await;
    let lease = async |node: &Arc<dyn SharedState>, ppm: u32| {
        let wanted = || vec![WantedShare::new("lease", ppm), WantedShare::new("another", 1)];
        let granted = answered("a lease", async || node.lease(wanted()).await).await;
        assert_eq!(granted.len(), 2, "a part of each is granted");
        granted[0]
    };
    assert_eq!(lease(&a, 100_000).await, WHOLE, "what nobody else wants");
    assert_eq!(lease(&b, WHOLE).await, 0, "`a` has all of it");
    assert_eq!(lease(&a, 100_000).await, 100_000, "what it wants, since `b` wants the rest");
    assert_eq!(lease(&b, WHOLE).await, 900_000);
    assert_eq!(lease(&c, WHOLE).await, 0);
    assert_eq!(lease(&b, WHOLE).await, 450_000);
    assert_eq!(lease(&c, WHOLE).await, 450_000);
    assert_eq!(lease(&a, 0).await, 0, "given back");
    let until = Instant::now() + LEASED_FOR * 5;
    // The others are not heard of any more.
    while lease(&b, 7).await < WHOLE {
        assert!(Instant::now() < until, "what is not renewed is free after {LEASED_FOR:?}");
        sleep(LEASED_FOR / 10).await;
    }
}

/// What all nodes have spent of an account and been granted is together never more than its cap; what one gives back is
/// another's.
pub async fn an_account_is_spent_once(make: &impl AsyncFn(&str) -> Arc<dyn SharedState>) {
    let [a, b] = joined(make, ["account-a", "account-b"]).await;
    let granted = draw(&a, "account", 1, 0, 0, 600).await;
    assert_eq!((granted.granted.tokens, granted.short), (600, None), "there is enough");
    let granted = draw(&b, "account", 1, 0, 0, 600).await;
    assert_eq!(granted.granted.tokens, 400, "what is left of it");
    assert_eq!((granted.totals.hour.tokens, granted.totals.held.tokens), (0, 1_000));
    let Some(short) = granted.short else { panic!("a cap is in the way: {granted:?}") };
    assert_eq!((short.window, short.is_cost, short.missing), (SpendWindow::Hour, false, 200));
    assert_eq!(short.frees_in, None, "nothing was spent yet");
    let granted = draw(&a, "account", 2, 100, 100, 100).await;
    assert_eq!((granted.totals.hour.tokens, granted.totals.held.tokens), (100, 400));
    let granted = draw(&b, "account", 2, 50, 400, 1_000).await;
    assert_eq!(
        granted.granted.tokens, 900,
        "what the other has given back, and not what it has spent"
    );
    let Some(short) = granted.short else { panic!("100 are missing: {granted:?}") };
    assert_eq!(short.missing, 100);
    let frees_in = short.frees_in.unwrap_or_default();
    let hour = Duration::from_secs(3_500)..=Duration::from_secs(3_660);
    assert!(hour.contains(&frees_in), "150 were spent: {frees_in:?}");
    let granted = draw(&a, "account", 3, 100, 100, 100).await;
    assert_eq!((granted.granted.tokens, granted.short), (100, None), "it needs no more");
    assert_eq!((granted.totals.hour.tokens, granted.totals.held.tokens), (150, 850));
    // Of what has no cap there is always enough.
    let mut free = account("account", 4, 100, 100, 100);
    free.needed = Spend::new(100, 1 << 40);
    let granted = drawn(&a, free).await;
    assert_eq!((granted.granted, granted.short), (Spend::new(100, 1 << 40), None));
}

/// A draw that arrives twice, or after a later one, is as if it had not.
pub async fn a_draw_that_comes_twice_or_late_changes_nothing(
    make: &impl AsyncFn(&str) -> Arc<dyn SharedState>,
) {
    let [a, b] = joined(make, ["draw-a", "draw-b"]).await;
    for _ in 0..3 {
        let granted = draw(&a, "twice", 1, 200, 0, 300).await;
        assert_eq!(granted.granted.tokens, 300);
        assert_eq!((granted.totals.hour.tokens, granted.totals.held.tokens), (200, 100));
    }
    draw(&a, "twice", 3, 250, 250, 250).await;
    let granted = draw(&a, "twice", 2, 220, 300, 900).await;
    assert_eq!((granted.totals.hour.tokens, granted.totals.held.tokens), (250, 0));
    // What a process has forgotten begins anew, and what it had spent before was spent.
    let mut anew = account("twice", 1, 50, 0, 50);
    anew.life = 1;
    let granted = drawn(&a, anew).await;
    assert_eq!((granted.granted.tokens, granted.totals.hour.tokens), (50, 300));
    let granted = draw(&b, "twice", 1, 0, 0, 800).await;
    assert_eq!(granted.granted.tokens, 700);
    let mut reset = account("twice", 2, 0, 0, 800);
    reset.reset = true;
    let granted = drawn(&b, reset).await;
    assert_eq!((granted.granted.tokens, granted.totals.hour.tokens), (800, 0), "begun anew");
}

/// A store that has lost an account learns from its nodes what was spent of it.
pub async fn an_account_that_was_lost_is_learned_again(
    make: &impl AsyncFn(&str) -> Arc<dyn SharedState>,
) {
    let [a, b] = joined(make, ["lost-a", "lost-b"]).await;
    let mut totals = SpendTotals::default();
    totals.hour = Spend::new(800, 0);
    (totals.day, totals.month) = (Spend::new(900, 0), Spend::new(950, 0));
    let mut lost = account("lost", 7, 130, 130, 400);
    lost.known = AccountKnown::restored(totals);
    (lost.known.since_ms, lost.known.reported) = (1_234, Spend::new(100, 0));
    let granted = drawn(&a, lost).await;
    let sums = [granted.totals.hour, granted.totals.day, granted.totals.month];
    assert_eq!(sums.map(|sum| sum.tokens), [830, 930, 980], "and the 30 that were not reported");
    assert_eq!(granted.granted.tokens, 300);
    let granted = draw(&b, "lost", 1, 0, 0, 100).await;
    assert_eq!(granted.granted.tokens, 0);
    let mut knows_less = account("lost", 2, 0, 0, 0);
    totals.hour = Spend::new(700, 0);
    knows_less.known = AccountKnown::restored(totals);
    assert_eq!(drawn(&b, knows_less).await.totals.hour.tokens, 830);
}

/// A draw under a cap of 1,000 tokens in an hour.
fn account(key: &str, number: u64, spent: u64, granted: u64, needed: u64) -> AccountDraw {
    let mut draw = AccountDraw::new(key, SpendCaps::of_tokens(1_000, 0));
    draw.number = number;
    draw.spent = Spend::new(spent, 0);
    draw.granted = Spend::new(granted, 0);
    (draw.needed, draw.wanted) = (Spend::new(needed, 0), Spend::new(needed, 0));
    draw
}

async fn draw(
    node: &Arc<dyn SharedState>,
    key: &str,
    number: u64,
    spent: u64,
    granted: u64,
    needed: u64,
) -> AccountGrant {
    drawn(node, account(key, number, spent, granted, needed)).await
}

async fn drawn(node: &Arc<dyn SharedState>, draw: AccountDraw) -> AccountGrant {
    match node.draw(vec![draw]).await.as_deref() {
        Ok(&[grant]) => grant,
        other => panic!("one draw has one answer: {other:?}"),
    }
}

/// All nodes see who there is, what each shows, and what each has found.
pub async fn the_fleet_is_known_by_name(make: &impl AsyncFn(&str) -> Arc<dyn SharedState>) {
    let [a, b] = joined(make, ["fleet-a", "fleet-b"]).await;
    assert_eq!((a.node(), b.node()), ("fleet-a", "fleet-b"));
    b.describe(NodeReport::new("1.2.3", "abc").with_address("10.0.0.2:80"));
    publish(&b, "fleet", now_ms(&b) + 600_000);
    eventually("both nodes are known", async || {
        let fleet = a.fleet();
        let b = fleet.nodes.iter().find(|node| node.name == "fleet-b");
        let shows = |node: &NodeReport| {
            node.version == "1.2.3"
                && node.configuration == "abc"
                && node.address == "10.0.0.2:80"
                && node.began_ms > 0
                && node.heard_ms > 0
        };
        fleet.nodes.iter().any(|node| node.name == "fleet-a")
            && b.is_some_and(shows)
            && fleet.nodes.is_sorted_by_key(|node| node.name.clone())
            && fleet.facts.iter().any(|row| *row.node == *"fleet-b" && *row.key == *"fleet")
            && a.nodes() >= 2
    })
    .await;
    let store = a.fleet().store;
    assert!(!store.name.is_empty() && store.away_for.is_none(), "{store:?}");
    drop(b);
    eventually("one has left", async || {
        // Counting them is how some stores notice.
        let _ = a.nodes();
        !a.fleet().nodes.iter().any(|node| node.name == "fleet-b")
    })
    .await;
}

/// All nodes have the same time.
pub async fn clocks_are_the_same(make: &impl AsyncFn(&str) -> Arc<dyn SharedState>) {
    let [a, b] = joined(make, ["clocks-a", "clocks-b"]).await;
    eventually("the clocks agree", async || now_ms(&a).abs_diff(now_ms(&b)) <= 10).await;
}

async fn joined<const N: usize>(
    make: &impl AsyncFn(&str) -> Arc<dyn SharedState>,
    names: [&str; N],
) -> [Arc<dyn SharedState>; N] {
    let mut nodes = Vec::with_capacity(N);
    for name in names {
        nodes.push(make(name).await);
    }
    for node in &nodes {
        eventually("the store is there", async || !node.is_away()).await;
    }
    nodes.try_into().unwrap_or_else(|_| unreachable!("one for each name"))
}

fn now_ms(node: &Arc<dyn SharedState>) -> u64 {
    node.clock().unix_ms()
}

fn publish(node: &Arc<dyn SharedState>, key: &str, until_ms: u64) {
    node.publish(KIND, key, News::holds(now_ms(node), until_ms, "{}"));
}

fn until(known: &Known) -> u64 {
    known.fact.as_ref().map_or(0, |fact| fact.until_ms)
}

/// Waits until that is known of the key.
async fn hear(listener: &mut FactListener, key: &str, is_known: impl Fn(&Known) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut last = None;
    loop {
        let next = tokio::time::timeout_at(deadline, listener.next()).await;
        let Ok((of, known)) = next else { panic!("of {key:?} was last known: {last:?}") };
        if *of == *key {
            if is_known(&known) {
                return;
            }
            last = Some(known);
        }
    }
}

/// Waits until each key holds until then, in whatever order that is heard.
async fn hear_all(listener: &mut FactListener, mut left: HashMap<String, u64>) {
    let deadline = Instant::now() + PATIENCE;
    while !left.is_empty() {
        let next = tokio::time::timeout_at(deadline, listener.next()).await;
        let Ok((key, known)) = next else { panic!("nothing was heard of {left:?}") };
        if left.get(&*key) == Some(&until(&known)) {
            left.remove(&*key);
        }
    }
}

/// Waits until something is so.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        sleep(INTERVAL).await;
    }
}

/// Asks again as long as the store does not answer in time.
async fn answered<T>(what: &str, ask: impl AsyncFn() -> Result<T, StoreAway>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(StoreAway) => assert!(Instant::now() < deadline, "{what}: no answer"),
        }
        sleep(INTERVAL).await;
    }
}

async fn get(node: &Arc<dyn SharedState>, space: &'static str, key: &str) -> Option<Bytes> {
    answered("a value", async || node.get(space, key).await).await
}

async fn claim(node: &Arc<dyn SharedState>, key: &str, lasts: Duration) -> Option<Claim> {
    answered("a claim", async || node.claim(key, lasts).await).await
}

/// Waits until a value is there, or gone.
async fn read(node: &Arc<dyn SharedState>, key: &str, value: Option<&[u8]>) {
    let is_read = async || get(node, "contract", key).await.as_deref() == value;
    eventually(&format!("the value of {key:?} is {value:?}"), is_read).await;
}

/// Waits until there is a claim to be had.
async fn claimed(node: &Arc<dyn SharedState>, key: &str, lasts: Duration) -> Claim {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(claim) = claim(node, key, lasts).await {
            return claim;
        }
        assert!(Instant::now() < deadline, "{key:?} is still claimed");
        sleep(INTERVAL).await;
    }
}
