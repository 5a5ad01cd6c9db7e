//! The stack that a configuration stands for, around the client that reaches its providers.

mod attention;
mod available;
mod catalog;
mod count;
mod embed;
mod escalation;
mod gauges;
mod identity;
mod layers;
mod models;
mod report;
mod route;
mod saved;
mod shared;
mod simulated;
mod status;
mod stored;
mod worst;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

pub(crate) use self::attention::{Attention, Severity};
pub(crate) use self::count::{Counted, Counting, Lesson};
pub(crate) use self::escalation::{is_address, shown};
pub(crate) use self::saved::RestoredState;
pub(crate) use self::shared::SharedNames;
pub(crate) use self::simulated::{SimulatedStacks, prices};
use self::{
    catalog::Catalog, embed::Embeddings, identity::Identities, models::ModelLimits,
    stored::StoredClient,
};
pub use self::{
    report::{Line, Report},
    route::RouteStack,
    worst::{Cost, Worst},
};
use crate::{
    config::{
        CloudCredential, Config, ConfigError, ConfigErrors, Link, ProviderConfig, Source,
        credential_name,
    },
    keys,
    secrets::{Fetched, SHORTEST, Secrets, credential, likely_secret},
    webhook::Webhook,
};
use http::{Request, Response};
use http_body::Body;
use serde_json::{Value, json};
#[cfg(feature = "aws")]
use steadfast::cloud::AwsSource;
#[cfg(feature = "google")]
use steadfast::cloud::GoogleSource;
use steadfast::{
    Handles, SpendAccount, Stack, Target,
    client::{
        ClientBody, Credential, CredentialSource, LlmClient, Provider, Providers, Secret,
        transport::Transport,
    },
    compact::{Counter, Models},
    limit::Prices,
};
use steadfast_core::{BoxError, Call, CapSharing, Profile};
use tokio::time::timeout;
use tower::{Service, util::BoxCloneSyncService};

/// The running stacks and their handles; cheap to clone.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    /// In the order of the file; the last one takes every request.
    routes: Vec<RouteStack>,
    counting: Counting,
    /// What may be asked: each provider of the chains, with each of its keys.
    targets: Vec<Target>,
    catalog: Catalog,
    stored: StoredClient,
    keeper_of_responses: Option<Target>,
    /// Every model that the configuration names.
    names: BTreeSet<String>,
    /// Of every tenant and key that the configuration names.
    accounts: HashSet<SpendAccount>,
    /// Models by what stands for them.
    aliases: BTreeMap<String, String>,
    identities: Identities,
    /// Where providers are: host and port.
    servers: Vec<(String, (String, u16))>,
    secrets: Vec<Secret>,
    prices: Arc<Prices>,
    /// Of caps that other gateways spend under, too.
    cap_sharing: CapSharing,
    /// What outlives a change of the configuration, besides the state of the layers.
    kept: Kept,
}

/// What the stacks of all routes use.
struct Kept {
    transport: Transport,
    models: Arc<Models>,
    counter: Arc<Counter>,
    summariser: Option<Handles>,
}

/// What no route takes.
const DEFAULT: &str = "default";

impl Gateway {
    /// The stack of `config`, connected to its providers.
    ///
    /// # Errors
    ///
    /// When a number, address or credential of the configuration is wrong or missing.
    pub fn connect(config: &Config, source: &Source) -> Result<Self, ConfigErrors> {
        Self::over(Transport::new(), config, source, providers(config, source)?, None)
    }

    /// The stack of `config` around `providers`, which replace the configured ones: their
    /// names and those of their credentials must be the same.
    ///
    /// # Errors
    ///
    /// When a number of the configuration is wrong.
    pub fn with_providers(
        config: &Config,
        source: &Source,
        providers: Providers,
    ) -> Result<Self, ConfigErrors> {
        Self::over(Transport::new(), config, source, (providers, Identities::default()), None)
    }

    /// The stack of `config` around `client`, whose providers replace the configured ones: over any
    /// HTTP service, such as simulated providers on a paused clock.
    ///
    /// # Errors
    ///
    /// When a number of the configuration is wrong.
    pub fn with_client<T, B>(
        config: &Config,
        source: &Source,
        client: LlmClient<T>,
    ) -> Result<Self, ConfigErrors>
    where
        T: Service<Request<ClientBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
        T::Future: Send,
        T::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self::build(config, source, client, Transport::new(), Identities::default(), None)
    }

    /// A gateway of `config` that goes on where this one is: with its connections, and with what it knows of
    /// everything that stays. Calls under way here end undisturbed.
    ///
    /// # Errors
    ///
    /// When a number, address or credential of the configuration is wrong or missing: then nothing has
    /// changed.
    pub fn renewed(&self, config: &Config, source: &Source) -> Result<Self, ConfigErrors> {
        let transport = self.0.kept.transport.clone();
        Self::over(transport, config, source, providers(config, source)?, Some(self))
    }

    fn over(
        transport: Transport,
        config: &Config,
        source: &Source,
        (providers, identities): (Providers, Identities),
        before: Option<&Self>,
    ) -> Result<Self, ConfigErrors> {
        let client = LlmClient::with_service(providers, transport.clone());
        Self::build(config, source, client, transport, identities, before)
    }

    /// `transport` is what further gateways, renewed from this one, go on with.
    fn build<T, B>(
        config: &Config,
        source: &Source,
        client: LlmClient<T>,
        transport: Transport,
        identities: Identities,
        before: Option<&Self>,
    ) -> Result<Self, ConfigErrors>
    where
        T: Service<Request<ClientBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
        T::Future: Send,
        T::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let kept = before.map(|before| &before.0.kept);
        let known = kept.map(|kept| kept.models.clone()).unwrap_or_default();
        let counter = kept.map(|kept| kept.counter.clone()).unwrap_or_default();
        let limits = ModelLimits::of(config, known.clone()).with_counter(counter.clone());
        let address = escalation::address(config, source)?;
        let mut secrets = secrets(config, client.providers());
        secrets.extend(address.iter().filter_map(|(_, secret)| secret.clone()));
        // A provider may have found a tenant's key in a prompt. The server reports one that can not be read.
        let ring = keys::KeyRing::read(config, source);
        let keys = ring.map_or_else(|_| Vec::new(), |(_, known)| known);
        let masks = Arc::new(Secrets::of(secrets.iter().chain(&keys).map(Secret::expose)));
        let ledger = before.map(|before| before.handles().spend.clone());
        let spend = layers::spend_limit(config, source, ledger)?;
        let summariser = layers::summariser(config, source, &spend, &masks)?;
        let summariser = summariser.map(|stack| {
            // Its policies are no file's: to share what it knows changes nothing of that.
            let handles = kept.and_then(|kept| kept.summariser.as_ref());
            let stack = handles.map_or_else(|| stack.clone(), |old| stack.clone().sharing(old));
            (stack.boxed(client.clone()), stack.handles())
        });
        let summaries = summariser.as_ref().map(|(service, _)| service);

        // Whatever can be wrong is found before anything that is shared changes.
        let webhook = address.map(|(uri, _)| Webhook::new(uri, transport.clone(), masks.clone()));
        let health = escalation::Health::default();
        let escalation = escalation::layer(config, source, webhook, &health)?;
        let stack = |config: &Config| {
            let stack = layers::stack(config, source, &limits, summaries, &spend, &masks)?;
            Ok::<_, ConfigErrors>(stack.with_escalation(escalation.clone()))
        };
        let base = stack(config)?;
        let mut stacks = Vec::new();
        for (name, route) in config.routes() {
            let own = source.route(config, name)?;
            let stack = stack(&own)?;
            let pipeline = own.timeout.deadline.pipeline;
            let choose = layers::choose(&own, source)?;
            stacks.push((name, route, own, choose, pipeline, stack));
        }

        let base = match before {
            Some(before) => {
                before.forget_changed(&identities);
                base.sharing(before.handles())
            }
            None => base,
        };
        let handles = base.handles();
        // Nothing else sets it.
        let _ = health.set(handles.failover.clone());
        let mut routes = Vec::new();
        let embeddings = |config: &Config, stack: &Stack<layers::Choose>| {
            let boxed = |stack: steadfast::EmbedStack| stack.boxed(client.clone().embeddings());
            let made = Embeddings::of(config, stack, boxed);
            made.map_err(|error| source.error("failover.chain", error.to_string()))
        };
        for (name, route, own, choose, pipeline, stack) in stacks {
            let stack = stack.sharing(&handles);
            routes.push(RouteStack {
                name: name.into(),
                when: Some(route.clone()),
                handles: stack.handles(),
                embeddings: embeddings(&own, &stack)?,
                choose,
                service: stack.boxed(client.clone()),
                chain: own.chain(),
                pipeline,
            });
        }
        let catalog = Catalog::new(config, models(config), client.clone());
        let stored = StoredClient::new(client.clone());
        let counting = BoxCloneSyncService::new(client.clone().counting());
        let counting = Counting::new(counting, counter.clone());
        let (embeddings, choose) = (embeddings(config, &base)?, layers::choose(config, source)?);
        let servers = client.providers().servers();
        let servers = servers.map(|(name, at)| (name.to_owned(), at)).collect();
        let service = base.boxed(client);
        let chain = config.chain();
        let pipeline = config.timeout.deadline.pipeline;
        let name = DEFAULT.into();
        let when = None;
        routes.push(RouteStack {
            name,
            when,
            service,
            embeddings,
            choose,
            handles,
            chain,
            pipeline,
        });
        Ok(Self(Arc::new(Inner {
            targets: targets(config, &routes),
            catalog,
            stored,
            prices: spend.prices().clone(),
            cap_sharing: config.state.caps,
            keeper_of_responses: keeper_of_responses(config),
            names: names(config),
            accounts: accounts(config),
            aliases: config.aliases.clone(),
            identities,
            servers,
            secrets,
            kept: Kept {
                transport,
                models: known,
                counter,
                summariser: summariser.map(|(_, handles)| handles),
            },
            routes,
            counting,
        })))
    }

    /// Forgets what is known of the targets that are gone or others under `identities`.
    fn forget_changed(&self, identities: &Identities) {
        let holds = |target: &Target| self.0.identities.holds(identities, target);
        for Handles { failover, breaker, rate_limit, health, .. } in
            [self.handles()].into_iter().chain(&self.0.kept.summariser)
        {
            failover.retain(holds);
            rate_limit.retain(holds);
            health.retain(|provider| self.0.identities.holds_whole(identities, provider));
            for one in breaker.snapshot() {
                if !one.key.as_ref().is_none_or(holds) {
                    breaker.forget(&one.key);
                }
            }
        }
    }

    /// Every route in the order of the file; the last one takes what no other takes.
    pub fn routes(&self) -> &[RouteStack] {
        &self.0.routes
    }

    /// Who counts tokens.
    pub(crate) fn counting(&self) -> &Counting {
        &self.0.counting
    }

    /// The route that `request` takes.
    pub fn route(&self, request: &impl Call) -> &RouteStack {
        let found = self.0.routes.iter().find(|route| route.takes(request));
        found.unwrap_or_else(|| self.base())
    }

    /// What no route takes.
    fn base(&self) -> &RouteStack {
        &self.0.routes[self.0.routes.len() - 1]
    }

    /// The model that `name` stands for, if it is an alias.
    pub fn alias(&self, name: &str) -> Option<&str> {
        self.0.aliases.get(name).map(String::as_str)
    }

    /// The handles of the layers, whose state all routes share.
    pub fn handles(&self) -> &Handles {
        self.base().handles()
    }

    /// The providers in the order they are asked, without a route.
    pub fn chain(&self) -> &[Link] {
        self.base().chain()
    }

    /// The first provider that may keep responses.
    pub(crate) fn keeper_of_responses(&self) -> Option<Target> {
        self.0.keeper_of_responses.clone()
    }

    /// Who asks providers for responses that they keep.
    pub(crate) fn stored(&self) -> &StoredClient {
        &self.0.stored
    }

    /// The models that can be asked for by name.
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.0.catalog
    }

    /// Whether `model` is publicly known.
    pub(crate) fn is_public(&self, model: &str) -> bool {
        self.0.kept.models.has(model)
    }

    /// The window of what `profile` names, in tokens, as far as it is known.
    pub(crate) fn window(&self, profile: &Profile) -> Option<u64> {
        let known = || self.0.kept.models.get(profile.target.model()?);
        profile.can.window.or_else(|| known().map(|limits| limits.window))
    }

    /// What models cost.
    pub(crate) fn prices(&self) -> &Arc<Prices> {
        &self.0.prices
    }

    /// How many targets each route has, and how many of them may be asked now.
    pub(crate) fn availability(&self) -> Vec<(Arc<str>, (usize, usize))> {
        let resting = available::Resting::now(self.handles());
        let of = |route: &RouteStack| available::of_route(route, &self.0.targets, &resting);
        self.0.routes.iter().map(|route| (route.name().clone(), of(route))).collect()
    }

    /// The provider, or the provider with one of its keys, of this name that a chain may ask.
    pub(crate) fn configured(&self, name: &str) -> Option<Target> {
        let parts = |target: &Target| [target.clone(), Target::new(target.provider())];
        self.0.targets.iter().flat_map(parts).find(|target| target.as_str() == name)
    }

    /// Whether some provider of a chain may be asked with some key. One that is only cooling may: a cooldown
    /// is a preference between targets.
    pub fn any_target_available(&self) -> bool {
        let snapshot = self.handles().failover.snapshot();
        let refuses = |target: &Target| {
            let health = snapshot.get(target);
            health.and_then(|health| health.cooling).is_some_and(|cooldown| cooldown.refuses)
        };
        self.0
            .targets
            .iter()
            .any(|target| !refuses(&Target::new(target.provider())) && !refuses(target))
    }

    /// What its providers are sent and nobody else may see.
    pub(crate) fn secrets(&self) -> &[Secret] {
        &self.0.secrets
    }

    /// Where its providers are, by their names: host and port.
    pub(crate) fn servers(&self) -> &[(String, (String, u16))] {
        &self.0.servers
    }

    /// Who is resting, why and until when, each breaker's state, and what of all that is configured may be asked.
    pub fn status(&self) -> Value {
        let mut status = status::json(self.handles(), &self.0.routes);
        let resting = available::Resting::now(self.handles());
        let may_be_asked = |target: &Target| !resting.all_of(target);
        status["available"] = (self.0.targets.iter())
            .map(|target| json!({ "target": target.as_str(), "available": may_be_asked(target) }))
            .collect();
        status
    }

    /// What each tenant and key has spent, and what summaries have, where that is recorded.
    pub fn spend(&self) -> Value {
        status::spend(self.handles())
    }

    /// The same as Prometheus gauges, with the mark that ends an exposition; what tenants and keys have spent only
    /// `with_accounts`.
    pub fn gauges(&self, with_accounts: bool) -> String {
        let Inner { names, accounts, kept, .. } = &*self.0;
        let is_known = |model: &str| names.contains(model) || kept.models.has(model);
        let accounts = with_accounts.then_some(accounts);
        format!(
            "# TYPE steadfast_provider_connections gauge\nsteadfast_provider_connections {}\n{}",
            kept.transport.connections(),
            gauges::of(self.handles(), is_known, accounts, (&self.0.routes, &self.0.targets))
        )
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("routes", &self.0.routes).finish_non_exhaustive()
    }
}

/// The providers of `config` with their credentials read.
fn providers(config: &Config, source: &Source) -> Result<(Providers, Identities), ConfigErrors> {
    let mut errors: Vec<ConfigError> = Vec::new();
    let (mut all, mut identities) = (Vec::new(), Identities::default());
    for (index, given) in config.providers.iter().enumerate() {
        let mut provider = Provider::new(given.name.as_str(), given.dialect);
        match given.platform() {
            Ok(platform) => provider = provider.on(platform),
            Err(problems) => errors.extend(
                problems
                    .into_iter()
                    .map(|(key, why)| source.error(&format!("providers[{index}].{key}"), why)),
            ),
        }
        if let Some(also) = given.also {
            provider = provider.with_also(also);
        }
        if let Some(url) = &given.base_url {
            provider = provider.with_base_url(url);
        }
        for (name, value) in &given.headers {
            provider = provider.with_header(name, value);
        }
        if given.propagate.unwrap_or(config.otel.propagate) {
            provider = provider.with_trace_context();
        }
        if given.credentials.is_empty() {
            provider = provider.without_credential();
        }
        let mut credentials = Vec::new();
        for (n, reference) in given.credentials.iter().enumerate() {
            let name = credential_name(reference);
            let added = match CloudCredential::of(reference) {
                Some(cloud) => cloud.and_then(cloud_source).map(|source| {
                    provider = provider.clone().with_source(name, source);
                    // Which one it is says where it comes from.
                    Credential::new(name, reference.as_str())
                }),
                None => keys::resolve(reference).map(|secret| {
                    let credential = Credential::new(name, secret.expose());
                    provider = provider.clone().with_credential(credential.clone());
                    credential
                }),
            };
            match added {
                Ok(credential) => credentials.push(credential),
                Err(why) => {
                    errors.push(source.error(&format!("providers[{index}].credentials[{n}]"), why));
                }
            }
        }
        identities.add(given, credentials);
        all.push(provider);
    }
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    let providers = Providers::new(all);
    let providers = providers.map_err(|error| source.error("providers", error.to_string()))?;
    Ok((providers, identities))
}

/// Where the credentials come from that `cloud` names.
fn cloud_source(cloud: CloudCredential<'_>) -> Result<Fetched, String> {
    match cloud {
        #[cfg(feature = "aws")]
        CloudCredential::AwsDefault => Ok(Fetched::new(AwsSource::default_chain())),
        #[cfg(feature = "aws")]
        CloudCredential::AwsProfile(name) => Ok(Fetched::new(AwsSource::profile(name))),
        #[cfg(feature = "google")]
        CloudCredential::GoogleDefault => Ok(Fetched::new(GoogleSource::default_chain())),
        #[cfg(feature = "google")]
        CloudCredential::GoogleFile(path) => Ok(Fetched::new(GoogleSource::service_account(path))),
        #[cfg(not(all(feature = "aws", feature = "google")))]
        _ => Err("this build has no credentials of that cloud".to_owned()),
    }
}

/// Fetches each credential of a cloud once, and drops it: by provider and where it comes from, why it can not be had.
pub(crate) async fn fetch_credentials(config: &Config) -> Vec<(String, Option<String>)> {
    let mut fetched = Vec::new();
    for (provider, reference) in config
        .providers
        .iter()
        .flat_map(|provider| provider.credentials.iter().map(|one| (&provider.name, one)))
    {
        let Some(Ok(cloud)) = CloudCredential::of(reference) else { continue };
        let why = match cloud_source(cloud) {
            Ok(source) => match timeout(FETCH, source.fetch()).await {
                Ok(done) => done.err().map(|failure| failure.to_string()),
                Err(_) => Some(format!("nothing has come within {FETCH:?}")),
            },
            Err(why) => Some(why),
        };
        fetched.push((format!("{provider}: {reference}"), why));
    }
    fetched
}

/// The longest that a check waits for a credential: as long as the gateway does.
const FETCH: Duration = Duration::from_secs(20);

/// What providers are sent and nobody else may see: credentials, and headers that hold one.
fn secrets(config: &Config, providers: &Providers) -> Vec<Secret> {
    let headers = config.providers.iter().flat_map(|provider| &provider.headers);
    let own = headers
        .filter_map(|(name, value)| credential(name, value).or_else(|| likely_secret(name, value)))
        .map(Secret::new);
    let all = providers.secrets().cloned().chain(own);
    // A program's own providers may have shorter ones, which would be found in words.
    all.filter(|secret| secret.expose().len() >= SHORTEST).collect()
}

/// Each provider of the chains with each of its keys.
fn targets(config: &Config, routes: &[RouteStack]) -> Vec<Target> {
    let links = routes.iter().flat_map(|route| &route.chain);
    let is_asked = |name: &String| links.clone().any(|link| link.names().contains(name));
    let in_chain = config.providers.iter().filter(|provider| is_asked(&provider.name));
    in_chain
        .flat_map(|provider| {
            let whole = Target::new(provider.name.as_str());
            let keys = provider.credentials.iter();
            let keyed: Vec<_> =
                keys.map(|key| whole.with_credential(credential_name(key))).collect();
            if keyed.is_empty() { vec![whole] } else { keyed }
        })
        .collect()
}

/// Every alias, and every model that maps and aliases name, patterns left out.
fn models(config: &Config) -> Vec<String> {
    config
        .providers
        .iter()
        .flat_map(|provider| &provider.models)
        .chain(&config.aliases)
        .flat_map(|(asked, sent)| [asked, sent])
        .filter(|model| !model.contains('*'))
        .cloned()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// The first provider that may keep responses, by its first key.
fn keeper_of_responses(config: &Config) -> Option<Target> {
    let speaks = |provider: &&ProviderConfig| {
        provider.dialect == steadfast::Dialect::Responses
            || provider.also == Some(steadfast::Dialect::Responses)
    };
    let provider = config.providers.iter().find(speaks)?;
    let target = Target::new(provider.name.as_str());
    let key = provider.credentials.first();
    Some(key.map_or(target.clone(), |key| target.with_credential(credential_name(key))))
}

/// The accounts of all tenants and keys.
fn accounts(config: &Config) -> HashSet<SpendAccount> {
    let of_tenants = config.tenants.iter().flat_map(|tenant| {
        let name: Arc<str> = tenant.name.as_str().into();
        let keys = tenant.key_names().map(|key| SpendAccount::Key(key.into()));
        keys.chain([SpendAccount::Tenant(name.clone()), SpendAccount::Summaries(name)])
    });
    // Of callers without a tenant.
    let nobody = [SpendAccount::Tenant("".into()), SpendAccount::Summaries("".into())];
    of_tenants.chain(nobody).collect()
}

/// Those, what stands in for them, and what routes are for.
fn names(config: &Config) -> BTreeSet<String> {
    let downgrades = config.providers.iter().flat_map(|provider| &provider.downgrades);
    let downgrades = downgrades.flat_map(|(from, to)| std::iter::once(from).chain(to));
    let of_routes = config.routes().into_iter().flat_map(|(_, route)| &route.models);
    downgrades.chain(of_routes).cloned().chain(models(config)).collect()
}
