//! The models that can be asked for: those that the configuration names, and those that providers say they have.

use std::{collections::BTreeSet, fmt, pin::Pin, sync::Arc, time::Duration};

use http::{Request, Response};
use http_body::Body;
use parking_lot::Mutex;
use steadfast::client::{ClientBody, LlmClient};
use steadfast_core::{BoxError, Failure, Reason, time::later};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tower::Service;

use crate::config::{Config, ProviderConfig};

/// How long a list is good for: an hour. Vendors add a model a week.
const FRESH: Duration = Duration::from_secs(3_600);

/// When a provider that gave no list is asked again: after a minute. What it gave before is kept.
const AGAIN: Duration = Duration::from_secs(60);

/// The longest that a provider may take for its list: 3 s. Vendors take a third of a second, and programs that ask for
/// the list before they do anything else give up after 5 s.
const LIMIT: Duration = Duration::from_secs(3);

type ListFuture = Pin<Box<dyn Future<Output = Result<Vec<String>, Failure>> + Send>>;

/// Asks a provider for its list.
type Lister = Box<dyn Fn(&str) -> ListFuture + Send + Sync>;

/// The models that can be asked for by name; cheap to clone. Lists of providers are fetched when somebody asks for
/// one, never for a call of a model.
#[derive(Clone)]
pub(crate) struct Catalog(Arc<Shared>);

struct Shared {
    named: BTreeSet<String>,
    lister: Lister,
    providers: Vec<Listed>,
}

/// A provider and its list.
struct Listed {
    name: String,
    /// Asked and sent; see [`ProviderConfig::models`].
    map: Vec<(String, String)>,
    list: Mutex<List>,
    /// One asks at a time, and who waits has the same answer.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct List {
    /// `None` until it has given one.
    names: Option<Arc<[String]>>,
    /// Why it gave none when it was asked last.
    failure: Option<Arc<Failure>>,
    /// Not asked before.
    next: Option<Instant>,
}

impl Listed {
    fn of(provider: &ProviderConfig) -> Self {
        let map = provider.models.iter().map(|(asked, sent)| (asked.clone(), sent.clone()));
        Self {
            name: provider.name.clone(),
            map: map.collect(),
            list: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// Whether it is sent a model that is asked for as `name`.
    fn takes(&self, name: &str) -> bool {
        let fits = |asked: &str| match asked.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == asked,
        };
        self.map.is_empty() || self.map.iter().any(|(asked, _)| fits(asked))
    }

    /// Whether it is sent what it calls `name` by that name.
    fn passes(&self, name: &str) -> bool {
        let fits =
            |asked: &str| asked.strip_suffix('*').is_some_and(|start| name.starts_with(start));
        self.map.is_empty() || self.map.iter().any(|(asked, sent)| sent == "*" && fits(asked))
    }

    /// Whether a list of its own adds anything.
    fn is_open(&self) -> bool {
        self.map.is_empty() || self.map.iter().any(|(_, sent)| sent == "*")
    }

    fn is_due(&self, now: Instant) -> bool {
        self.is_open() && self.list.lock().next.is_none_or(|next| next <= now)
    }

    async fn refresh(&self, lister: &Lister) {
        let _one = self.asking.lock().await;
        if !self.is_due(Instant::now()) {
            return;
        }
        let answer = timeout(LIMIT, lister(&self.name)).await;
        let answer = answer.unwrap_or_else(|_| {
            let message = format!("`{}` gave no list of its models within {LIMIT:?}", self.name);
            Err(Failure::new(Reason::Timeout, message))
        });
        let (mut list, now) = (self.list.lock(), Instant::now());
        match answer {
            Ok(names) => {
                let names = names.into_iter().filter(|name| self.passes(name)).collect();
                *list = List { names: Some(names), failure: None, next: Some(later(now, FRESH)) };
            }
            Err(failure) => {
                tracing::debug!(name: "steadfast::gateway::no_model_list", target: "steadfast::gateway", provider = self.name, %failure, "a provider gave no list of its models");
                (list.failure, list.next) = (Some(failure.into()), Some(later(now, AGAIN)));
            }
        }
    }
}

impl Catalog {
    /// Of `config`: what it names are `named`. Providers are asked through `client`.
    pub(super) fn new<T, B>(config: &Config, named: Vec<String>, client: LlmClient<T>) -> Self
    where
        T: Service<Request<ClientBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
        T::Future: Send,
        T::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let lister: Lister = Box::new(move |name| {
            let (client, name) = (client.clone(), name.to_owned());
            Box::pin(async move { client.list_models(&name).await })
        });
        let providers = config.providers.iter().map(Listed::of).collect();
        Self(Arc::new(Shared { named: named.into_iter().collect(), lister, providers }))
    }

    /// Every model that can be asked for by name, in the order of their names. Waits for lists that are not known
    /// or old, 3 s at most; those that do not come are left out, or are as they were.
    ///
    /// # Errors
    ///
    /// Where no model is known, and a provider gave no list: its failure. That there are none would not be true.
    pub(crate) async fn names(&self) -> Result<Vec<String>, Arc<Failure>> {
        self.refresh().await;
        let (mut all, mut failed) = (self.0.named.clone(), None);
        for provider in &self.0.providers {
            let list = provider.list.lock();
            all.extend(list.names.iter().flat_map(|names| names.iter().cloned()));
            failed = failed.or_else(|| list.failure.clone());
        }
        match failed {
            Some(failure) if all.is_empty() => Err(failure),
            _ => Ok(all.into_iter().collect()),
        }
    }

    /// Whether `name` can be asked for: it is on the list, or a provider takes it that has given none, or that may
    /// have it all the same as `is_known`: vendors' lists have no short names.
    pub(crate) async fn has(&self, name: &str, is_known: bool) -> bool {
        if self.0.named.contains(name) {
            return true;
        }
        self.refresh().await;
        self.0.providers.iter().any(|provider| {
            let list = provider.list.lock();
            match &list.names {
                Some(names) => {
                    names.iter().any(|one| one == name) || is_known && provider.takes(name)
                }
                None => provider.takes(name),
            }
        })
    }

    async fn refresh(&self) {
        let now = Instant::now();
        let mut asked = JoinSet::new();
        for (at, _) in self.0.providers.iter().enumerate().filter(|(_, one)| one.is_due(now)) {
            let all = self.0.clone();
            // A task of its own: who stops waiting leaves the others their answer.
            asked.spawn(async move { all.providers[at].refresh(&all.lister).await });
        }
        while asked.join_next().await.is_some() {}
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").field("named", &self.0.named).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn provider(name: &str, map: &[(&str, &str)]) -> Listed {
        Listed {
            name: name.to_owned(),
            map: map
                .iter()
                .map(|(asked, sent)| ((*asked).to_owned(), (*sent).to_owned()))
                .collect(),
            list: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// A catalog whose providers answer by `list`, and how often they were asked.
    fn catalog(
        providers: Vec<Listed>,
        list: impl Fn(&str, u32) -> Result<Vec<String>, Failure> + Send + Sync + 'static,
    ) -> (Catalog, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let lister: Lister = Box::new(move |name| {
            let answer = list(name, counted.fetch_add(1, Ordering::Relaxed));
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                answer
            })
        });
        let named = ["alias".to_owned()].into();
        (Catalog(Arc::new(Shared { named, lister, providers })), asked)
    }

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn lists_are_merged_kept_and_asked_for_again() {
        let providers = vec![
            provider("open", &[]),
            provider("own", &[("claude-*", "*"), ("*", "mid")]),
            provider("fixed", &[("a", "b")]),
        ];
        let (catalog, asked) = catalog(providers, |name, n| match (name, n) {
            ("fixed", _) => panic!("its map says it all"),
            (_, 2..) => Err(Failure::new(Reason::Network, "down")),
            ("open", _) => Ok(strings(&["x", "claude-1"])),
            _ => Ok(strings(&["claude-1", "claude-2", "other"])),
        });
        let all = strings(&["alias", "claude-1", "claude-2", "x"]);
        let (first, second) = tokio::join!(catalog.names(), catalog.names());
        assert_eq!((first.unwrap(), second.unwrap()), (all.clone(), all.clone()));
        assert_eq!(asked.load(Ordering::Relaxed), 2, "one asks for both");
        tokio::time::advance(FRESH).await;
        assert_eq!(catalog.names().await.unwrap(), all, "what was known stays");
        assert_eq!(asked.load(Ordering::Relaxed), 4);
        tokio::time::advance(AGAIN - Duration::from_secs(1)).await;
        let _ = catalog.names().await;
        assert_eq!(asked.load(Ordering::Relaxed), 4);
        tokio::time::advance(Duration::from_secs(1)).await;
        let _ = catalog.names().await;
        assert_eq!(asked.load(Ordering::Relaxed), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_that_may_answer_is_found() {
        let providers = vec![provider("p", &[("claude-*", "*")]), provider("fixed", &[("a", "b")])];
        let (known, _) = catalog(providers, |_, _| Ok(strings(&["claude-1-20260101"])));
        for (name, is_known, found) in [
            ("alias", false, true),
            ("claude-1-20260101", false, true),
            ("claude-1", true, true),
            ("claude-9", false, false),
            ("a", false, true),
            ("gpt-4o", true, false),
        ] {
            assert_eq!(known.has(name, is_known).await, found, "{name}");
        }
        let (silent, _) =
            catalog(vec![provider("p", &[])], |_, _| Err(Failure::new(Reason::Auth, "no")));
        assert!(silent.has("anything", false).await, "nobody says that it is not there");
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_says_nothing_is_waited_for_a_little() {
        let lister: Lister = Box::new(|_| Box::pin(std::future::pending()));
        let shared = Shared { named: BTreeSet::new(), lister, providers: vec![provider("p", &[])] };
        let began = Instant::now();
        let failure = Catalog(Arc::new(shared)).names().await.unwrap_err();
        assert_eq!((failure.reason(), began.elapsed()), (Reason::Timeout, LIMIT));
    }
}
