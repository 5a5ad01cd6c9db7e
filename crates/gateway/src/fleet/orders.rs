//! What an operator wants of another node: passed on to it, done there once, and answered.
//!
//! Who passes an order on has the claim of its subject meanwhile, so that no two are under way. The claim's token goes
//! with it: a node does nothing that is not newer than what it did last for that subject, whatever comes late or twice.
//! An order ends before its claim does, and one that has ended is not carried out. So when nobody has answered in time,
//! nothing happens later either, and whoever asks again is not in the way of the first.

use std::{borrow::Cow, collections::HashMap, future::Future, sync::Arc, time::Duration};

use http::StatusCode;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use sha2::{Digest, Sha256};
use steadfast::shared::{FactListener, Known, News, SharedState, SharedTask};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

/// Orders, by their subject and token.
const ORDERS: &str = "orders";

/// What became of them, under the same key.
const ANSWERS: &str = "answers";

/// How long an order may be carried out: what an operator waits for a node that answers in milliseconds.
const LASTS: Duration = Duration::from_secs(5);

/// How much longer its answer is waited for, since it may be carried out at the last moment.
const GRACE: Duration = Duration::from_secs(1);

/// How long an answer stays to be read.
const ANSWERED: Duration = Duration::from_secs(15);

/// The largest value of a fact, in bytes: every node has it in memory.
pub(super) const VALUE_LIMIT: usize = 16 * 1024;

/// The longest text of an answer.
const TEXT_LIMIT: usize = 4 * 1024;

/// The longest subject that is spelled out in a key; of a longer one its digest is.
const SPELLED_OUT: usize = 128;

/// Orders that one node carries out at a time.
const RUNNING: usize = 64;

/// Subjects of which the last token is remembered; the oldest goes.
const REMEMBERED: usize = 1_024;

/// Something that another node is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Which node.
    pub(crate) node: Box<str>,
    /// What, such as `escalation.decide`.
    pub(crate) action: Cow<'static, str>,
    /// With what, such as the id of a request. Nothing else is done with it at the same time.
    pub(crate) subject: Box<str>,
    /// How.
    pub(crate) body: Value,
}

/// What became of an order, as an answer by HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OrderAnswer {
    pub(crate) status: u16,
    pub(crate) text: String,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotPassed {
    /// The store can not be reached.
    #[error(
        "the store that the nodes share can not be reached, so nothing is passed on to another node; ask the one that \
         has it itself"
    )]
    Away,
    /// The node is not there, as far as the store knows.
    #[error(
        "the node `{0}` is not heard of: either it has ended, and what it had with it, or it can not reach the store and \
         has to be asked itself"
    )]
    NotHeard(Box<str>),
    /// Another order with the same subject is under way.
    #[error("somebody else does something with `{0}` at this moment; see the list again")]
    UnderWay(Box<str>),
    /// It does not fit into a fact.
    #[error(
        "that is too large to be passed on to the node `{0}` (more than {VALUE_LIMIT} bytes); ask it itself"
    )]
    TooLarge(Box<str>),
    /// The node did not answer.
    #[error(
        "the node `{0}` has not answered in {waited} s. It does not begin it any more; whether it did is to be seen in its list",
        waited = (LASTS + GRACE).as_secs()
    )]
    NoAnswer(Box<str>),
}

impl NotPassed {
    /// As an answer by HTTP.
    pub(crate) fn answer(&self) -> OrderAnswer {
        let status = match self {
            Self::Away | Self::NotHeard(_) => 503,
            Self::UnderWay(_) => 409,
            Self::TooLarge(_) => 413,
            Self::NoAnswer(_) => 504,
        };
        OrderAnswer::new(status, self.to_string())
    }
}

impl OrderAnswer {
    pub(crate) fn new(status: u16, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// Whether it was done.
    pub(crate) fn is_done(&self) -> bool {
        self.status == 200
    }

    /// As it is sent; one that is none, of a node of another version, is its gateway's failure.
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_GATEWAY)
    }
}

/// An order in the store.
#[derive(Debug, Serialize, Deserialize)]
struct Passed {
    token: u64,
    /// By which node.
    by: Box<str>,
    #[serde(flatten)]
    order: Order,
}

/// Whether `node` is heard of.
pub(super) fn is_heard(state: &dyn SharedState, node: &str) -> bool {
    state.fleet().nodes.iter().any(|known| known.name == node)
}

/// Passes `order` on, and waits for its answer for some seconds at most. A future that is dropped leaves the order to be
/// carried out.
///
/// # Errors
///
/// Why there is no answer.
pub(crate) async fn pass(state: &dyn SharedState, order: Order) -> Result<OrderAnswer, NotPassed> {
    if state.is_away() {
        return Err(NotPassed::Away);
    }
    if !is_heard(state, &order.node) {
        return Err(NotPassed::NotHeard(order.node));
    }
    let (node, subject) = (order.node.clone(), order.subject.clone());
    let mut passed = Passed { token: u64::MAX, by: state.node().into(), order };
    if written(&passed).len() > VALUE_LIMIT {
        return Err(NotPassed::TooLarge(node));
    }
    // Before the claim is taken: so it ends after the order, by the store's clock, which all of them go by.
    let since = state.clock();
    let ends = since.at() + LASTS + GRACE;
    let key = passed.order.key();
    let claim = state.claim(&format!("order:{node}:{key}"), LASTS + GRACE).await;
    let Some(claim) = claim.map_err(|_| NotPassed::Away)? else {
        return Err(NotPassed::UnderWay(subject));
    };
    passed.token = claim.token;
    let key = format!("{key}#{}", claim.token);
    let answers = state.subscribe(ANSWERS);
    let until_ms = since.to_unix_ms(since.at() + LASTS);
    state.publish(ORDERS, &key, News::holds(since.unix_ms(), until_ms, written(&passed)));
    let answer = timeout_at(ends, answer_of(answers, &key)).await;
    state.release(&claim);
    answer.map_err(|_| NotPassed::NoAnswer(node))
}

async fn answer_of(mut answers: FactListener, key: &str) -> OrderAnswer {
    loop {
        let (of, known) = answers.next().await;
        if *of == *key
            && let Some(answer) = read(&known)
        {
            return answer;
        }
    }
}

/// Has `carry_out` do what other nodes pass on to this one, until the task is dropped.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub(crate) fn follow<F>(
    state: Arc<dyn SharedState>,
    carry_out: impl Fn(Order) -> F + Send + 'static,
) -> SharedTask
where
    F: Future<Output = OrderAnswer> + Send + 'static,
{
    let mut orders = state.subscribe(ORDERS);
    SharedTask::spawn(async move {
        let (mut last, mut running) = (LastTokens::default(), JoinSet::new());
        loop {
            let (key, known) = tokio::select! {
                next = orders.next() => next,
                Some(_) = running.join_next(), if !running.is_empty() => continue,
            };
            let now_ms = state.clock().unix_ms();
            let is_on = known.fact.as_ref().is_some_and(|fact| fact.until_ms > now_ms);
            let Some(passed) = read::<Passed>(&known).filter(|_| is_on) else { continue };
            if *passed.order.node != *state.node() {
                continue;
            }
            let mine = Carried { state: state.clone(), key, passed };
            match last.advance(mine.passed.order.key(), mine.passed.token) {
                // It comes twice: the first one has its answer.
                Token::Same => {}
                Token::Older => mine.answer(OrderAnswer::new(409, "a later order was carried out")),
                Token::Newer if running.len() >= RUNNING => {
                    mine.answer(OrderAnswer::new(
                        503,
                        "the node does too much else at this moment",
                    ));
                }
                Token::Newer => {
                    let done = carry_out(mine.passed.order.clone());
                    running.spawn(async move { mine.answer(done.await) });
                }
            }
        }
    })
}

/// An order at the node that carries it out.
struct Carried {
    state: Arc<dyn SharedState>,
    key: Box<str>,
    passed: Passed,
}

impl Carried {
    fn answer(&self, mut answer: OrderAnswer) {
        let Passed { token, by, order } = &self.passed;
        tracing::info!(
            name: "steadfast::gateway::order",
            target: "steadfast::gateway",
            action = %crate::escape::text(&order.action),
            subject = %crate::escape::text(&order.subject),
            by = %by,
            token,
            status = answer.status,
            "another node has passed on what an operator wants"
        );
        cut(&mut answer.text, TEXT_LIMIT);
        let since = self.state.clock();
        let until_ms = since.to_unix_ms(since.at() + ANSWERED);
        let news = News::holds(since.unix_ms(), until_ms, written(&answer));
        self.state.publish(ANSWERS, &self.key, news);
    }
}

impl Order {
    /// What is done once at a time, by one node for another.
    fn key(&self) -> String {
        let Self { action, subject, .. } = self;
        if subject.len() <= SPELLED_OUT {
            return format!("{action}:{subject}");
        }
        let digest = Sha256::digest(subject.as_bytes());
        let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{action}:#{digest}")
    }
}

/// The token of the last order of each subject.
#[derive(Debug, Default)]
struct LastTokens(HashMap<String, (u64, Option<Instant>)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Newer,
    Same,
    Older,
}

impl LastTokens {
    /// Whether an order of this subject with this token is the newest one.
    fn advance(&mut self, subject: String, token: u64) -> Token {
        let (last, at) = self.0.entry(subject).or_default();
        let is = match token.cmp(last) {
            std::cmp::Ordering::Greater => Token::Newer,
            std::cmp::Ordering::Equal => return Token::Same,
            std::cmp::Ordering::Less => return Token::Older,
        };
        (*last, *at) = (token, Some(Instant::now()));
        if self.0.len() > REMEMBERED {
            let oldest = self.0.iter().min_by_key(|(_, (_, at))| *at);
            if let Some(oldest) = oldest.map(|(subject, _)| subject.clone()) {
                self.0.remove(&oldest);
            }
        }
        is
    }
}

/// Cuts what `text` has beyond `limit` bytes, between characters.
pub(super) fn cut(text: &mut String, limit: usize) {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

fn written(value: &impl Serialize) -> String {
    // Maps with names for keys can always be written.
    serde_json::to_string(value).unwrap_or_default()
}

/// What a fact says; `None` where a node of another version says something else, or it is over.
fn read<T: DeserializeOwned>(known: &Known) -> Option<T> {
    serde_json::from_str(&known.fact.as_ref()?.value).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;
    use steadfast::shared::{EmbeddedNode, EmbeddedStore};
    use tokio::time::sleep;

    use super::*;

    /// A node that does what it is asked for in `takes`, and counts it.
    struct Worker {
        node: Option<EmbeddedNode>,
        done: Arc<AtomicUsize>,
        task: Option<SharedTask>,
    }

    impl Worker {
        fn new(store: &EmbeddedStore, name: &str, takes: Duration) -> Self {
            let (node, done) = (store.join(name), Arc::<AtomicUsize>::default());
            let counted = done.clone();
            let task = follow(Arc::new(node.clone()), move |order| {
                let counted = counted.clone();
                async move {
                    sleep(takes).await;
                    let times = counted.fetch_add(1, Ordering::Relaxed) + 1;
                    OrderAnswer::new(200, format!("{} {times}", order.subject))
                }
            });
            Self { node: Some(node), done, task: Some(task) }
        }

        fn done(&self) -> usize {
            self.done.load(Ordering::Relaxed)
        }

        fn die(&mut self) {
            drop((self.task.take(), self.node.take()));
        }
    }

    fn order(subject: &str) -> Order {
        let (node, action) = ("worker".into(), "test".into());
        Order { node, action, subject: subject.into(), body: json!({ "times": 1 }) }
    }

    fn done(text: &str) -> Result<OrderAnswer, NotPassed> {
        Ok(OrderAnswer::new(200, text))
    }

    const MOMENT: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn an_order_is_carried_out_by_the_node_that_it_is_for_and_answered() {
        let store = EmbeddedStore::new();
        let (one, worker) = (store.join("one"), Worker::new(&store, "worker", MOMENT));
        let other = Worker::new(&store, "other", MOMENT);
        let long = "x".repeat(5_000);
        for (subject, answer) in [("a", "a 1"), ("a", "a 2"), (&*long, &*format!("{long} 3"))] {
            let answer = &answer[..answer.len().min(TEXT_LIMIT)];
            assert_eq!(pass(&one, order(subject)).await, done(answer));
        }
        assert_eq!((worker.done(), other.done()), (3, 0));
        let keys = one.fleet().facts.into_iter().map(|row| row.key.len());
        assert!(keys.max().is_some_and(|longest| longest < 256));
        let large = Order { body: "x".repeat(VALUE_LIMIT).into(), ..order("b") };
        assert_eq!(pass(&one, large).await, Err(NotPassed::TooLarge("worker".into())));
        // What was passed on is forgotten.
        sleep(Duration::from_secs(60)).await;
        let now_ms = one.clock().unix_ms();
        assert!(one.fleet().facts.iter().all(|row| row.fact.ends_ms() < now_ms));
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_who_ask_at_once_one_is_served() {
        let store = EmbeddedStore::new();
        let (one, two) = (store.join("one"), store.join("two"));
        let worker = Worker::new(&store, "worker", Duration::from_millis(50));
        let answers = tokio::join!(pass(&one, order("a")), pass(&two, order("a")));
        assert_eq!(answers, (done("a 1"), Err(NotPassed::UnderWay("a".into()))));
        assert_eq!(worker.done(), 1);
        assert_eq!(pass(&two, order("a")).await, done("a 2"), "the claim was given back");
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_twice_or_late_is_not_carried_out_again() {
        let store = EmbeddedStore::new();
        let (one, worker) = (store.join("one"), Worker::new(&store, "worker", MOMENT));
        let again = async |key: &str, token| {
            let now_ms = one.clock().unix_ms();
            let passed = Passed { token, by: "one".into(), order: order("a") };
            one.publish(ORDERS, key, News::holds(now_ms, now_ms + 5_000, written(&passed)));
            sleep(Duration::from_secs(1)).await;
            worker.done()
        };
        assert_eq!(again("test:a#7", 7).await, 1);
        assert_eq!(again("test:a#7", 7).await, 1, "it comes again");
        assert_eq!(again("test:a#other", 7).await, 1, "and in another fact");
        assert_eq!(again("test:a#5", 5).await, 1, "a node that was late");
        let answer = answer_of(one.subscribe(ANSWERS), "test:a#5").await;
        assert_eq!(answer.status, 409);
        assert_eq!(again("test:a#8", 8).await, 2);
        let ended = one.clock().unix_ms() - 1;
        let passed = Passed { token: 9, by: "one".into(), order: order("a") };
        one.publish(ORDERS, "test:a#9", News::holds(1, ended, written(&passed)));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(worker.done(), 2, "it has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_dies_with_an_order_leaves_no_doubt_that_there_is_no_answer() {
        let store = EmbeddedStore::new();
        let one = store.join("one");
        let mut worker = Worker::new(&store, "worker", Duration::from_secs(1));
        let dies = async {
            sleep(Duration::from_millis(10)).await;
            worker.die();
        };
        let start = Instant::now();
        let (answer, ()) = tokio::join!(pass(&one, order("a")), dies);
        let why = NotPassed::NoAnswer("worker".into());
        assert_eq!((answer, start.elapsed()), (Err(why.clone()), LASTS + GRACE));
        assert!(why.answer().text.contains("not answered in 6 s"), "{why}");
        assert_eq!(pass(&one, order("a")).await, Err(NotPassed::NotHeard("worker".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_goes_away_between_is_no_answer_and_nothing_happens_later() {
        let store = EmbeddedStore::new();
        let (one, worker) = (store.join("one"), Worker::new(&store, "worker", MOMENT));
        store.set_away(true);
        assert_eq!(pass(&one, order("a")).await, Err(NotPassed::Away));
        store.set_away(false);
        // It is carried out, and its answer comes too late.
        let goes = async {
            sleep(MOMENT / 2).await;
            store.set_away(true);
        };
        let (answer, ()) = tokio::join!(pass(&one, order("a")), goes);
        assert_eq!(answer, Err(NotPassed::NoAnswer("worker".into())));
        assert_eq!(pass(&one, order("a")).await, Err(NotPassed::Away));
        store.set_away(false);
        sleep(Duration::from_secs(30)).await;
        assert_eq!(worker.done(), 1);
        assert_eq!(pass(&one, order("a")).await, done("a 2"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_node_hears_when_it_is_back_is_over_by_then() {
        let store = EmbeddedStore::new();
        let (one, worker) = (store.join("one"), Worker::new(&store, "worker", MOMENT));
        let node = worker.node.clone().unwrap();
        // It is still heard of when it is asked.
        let key = order("a").key();
        node.set_away(true);
        let now_ms = one.clock().unix_ms();
        let passed = Passed { token: 1, by: "one".into(), order: order("a") };
        one.publish(ORDERS, &key, News::holds(now_ms, now_ms + 5_000, written(&passed)));
        sleep(LASTS).await;
        node.set_away(false);
        sleep(MOMENT * 5).await;
        assert_eq!(worker.done(), 0);
    }

    #[test]
    fn tokens_are_remembered_for_so_many_subjects() {
        let mut last = LastTokens::default();
        for number in 0..5_000_u64 {
            assert_eq!(last.advance(number.to_string(), number + 1), Token::Newer);
        }
        assert!(last.0.len() <= REMEMBERED);
    }
}
