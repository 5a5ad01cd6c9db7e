//! One's own configuration before a world that misbehaves, in virtual time.
//!
//! It is the real stack of the configuration, on a clock that jumps from one event to the next, before targets that answer
//! as the [`World`] has it. What became of each call is read from its log, as the stories of a gateway are. The same seed
//! gives the same calls.
//!
//! Not part of it are what is before the stack (reading requests, limits of connections and memory, escalations to a
//! person) and compaction: conversations have sizes and no text.

mod assertion;
mod conversations;
mod figures;
mod page;
mod picture;
mod replay;
mod report;
mod run;
mod target;
mod vary;
mod world;

use std::{sync::Arc, time::Duration};

use steadfast::limit::Prices;
use steadfast_core::Dialect;

pub use self::{
    assertion::{Assertion, Violation},
    figures::{Figures, Times},
    replay::{Recorded, ReplayError, read_recording},
    target::{Named, TargetTally, Targets},
    vary::Variation,
    world::{Calls, Ill, Selector, Shape, TargetTraits, World, WorldError, WorldEvent, WorldTime},
};
use crate::{
    config::{Config, ConfigErrors, Source, stand_in},
    stack::Report,
};

/// A configuration and the world it is put before.
#[derive(Clone, Debug)]
pub struct Simulation {
    config: Config,
    source: Source,
    world: World,
    options: SimulationOptions,
    chain: Vec<Named>,
    model: String,
}

/// How long, and how many calls.
#[derive(Clone, Debug)]
pub struct SimulationOptions {
    /// How long calls come.
    pub length: Duration,
    /// Calls a second, in the mean.
    pub rate: f64,
    /// The same seed gives the same calls.
    pub seed: u64,
    /// Calls that came once, in place of those.
    pub recorded: Arc<[Recorded]>,
}

impl SimulationOptions {
    /// The calls of a recording.
    #[must_use]
    pub fn replaying(mut self, recorded: Vec<Recorded>) -> Self {
        let last = recorded.last().map_or(Duration::ZERO, |call| call.at);
        self.length = last + Duration::from_secs(1);
        self.rate = recorded.len() as f64 / self.length.as_secs_f64();
        self.recorded = recorded.into();
        self
    }
}

impl Default for SimulationOptions {
    fn default() -> Self {
        Self {
            length: Duration::from_secs(24 * 3_600),
            rate: 50.0,
            seed: 1,
            recorded: Arc::default(),
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// The stack of the configuration.
    Steadfast,
    /// A client that asks the first provider once.
    Plain,
    /// One that asks it again up to three times, as the official SDKs do: after half a second, doubling to eight, with
    /// jitter; a hint of up to a minute is obeyed.
    Retries,
}

impl Contender {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Steadfast, Self::Retries, Self::Plain];

    /// As reports name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Steadfast => "steadfast",
            Self::Plain => "one client",
            Self::Retries => "three retries",
        }
    }
}

impl Simulation {
    /// The configuration of `source` in `world`.
    ///
    /// # Errors
    ///
    /// When something in the configuration is wrong.
    pub fn new(
        config: Config,
        source: Source,
        world: World,
        options: SimulationOptions,
    ) -> Result<Self, ConfigErrors> {
        config.validate(&source)?;
        let links = config.chain();
        let named = |name: &str| {
            let provider = config.providers.iter().find(|provider| provider.name == name)?;
            Some(Named { name: name.to_owned(), dialect: provider.dialect })
        };
        let of_chain = links.iter().flat_map(|link| link.names()).map(String::as_str);
        let mut chain: Vec<Named> = Vec::new();
        for name in of_chain.chain(config.providers.iter().map(|provider| provider.name.as_str())) {
            if chain.iter().all(|known| known.name != name) {
                chain.extend(named(name));
            }
        }
        let dialect = chain.first().map_or(Dialect::OpenAi, |first| first.dialect);
        let model = world.calls.model.clone().unwrap_or_else(|| stand_in(dialect).to_owned());
        Ok(Self { config, source, world, options, chain, model })
    }

    /// The world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// How long, and how many calls.
    pub fn options(&self) -> &SimulationOptions {
        &self.options
    }

    /// For a terminal: what `all` came to.
    pub fn text(&self, all: &[Figures]) -> String {
        report::text(self, all)
    }

    /// What happened over time, as SVG.
    pub fn svg(&self, all: &[Figures]) -> String {
        picture::svg(self, all)
    }

    /// A page with both, which loads nothing.
    pub fn html(&self, all: &[Figures]) -> String {
        page::html(self, all)
    }

    /// The numbers of the configuration.
    fn numbers(&self) -> String {
        Report::of(&self.config, &self.source)
            .map_or_else(|errors| errors.to_string(), |report| report.to_string())
    }

    /// Runs it once, asked by `contender`. It takes a thread of its own.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration contradict each other.
    pub fn run(&self, contender: Contender) -> Result<Figures, ConfigErrors> {
        // Of its own, as chance and the clock are a thread's.
        std::thread::scope(|scope| {
            let run = scope.spawn(|| run::run(self, contender));
            run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs it by all contenders, on two threads: the clients together take less time than the stack alone.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration contradict each other.
    pub fn run_all(&self) -> Result<Vec<Figures>, ConfigErrors> {
        let [stack, clients @ ..] = Contender::ALL;
        std::thread::scope(|scope| {
            let clients = scope.spawn(move || clients.map(|client| self.run(client)));
            let stack = self.run(stack);
            let clients = clients.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            std::iter::once(stack).chain(clients).collect()
        })
    }

    fn prices(&self) -> Result<Arc<Prices>, ConfigErrors> {
        crate::stack::prices(&self.config, &self.source)
    }
}
