//! What a category's checks run against: a gateway, and the providers behind it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    check::{Category, Failed, Seen, expect},
    process::{Gateway, Setup, Usage},
    provider::{KEY, Providers},
    wire,
};

/// A gateway and its providers.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) binary: PathBuf,
    pub(crate) gateway: Gateway,
    pub(crate) providers: Providers,
    setup: Setup,
    /// After the first call.
    baseline: Usage,
}

impl Site {
    pub(crate) async fn start(binary: &Path, category: &Category) -> Result<Arc<Self>, Failed> {
        let providers = Providers::start((category.simulated)()).await?;
        let setup = with_keys((category.setup)(&providers));
        let gateway = Gateway::start(binary, &setup).await?;
        let mut site = Self {
            binary: binary.to_owned(),
            gateway,
            providers,
            setup,
            baseline: Usage::default(),
        };
        site.is_well().await?;
        site.baseline = site.gateway.usage()?;
        Ok(Arc::new(site))
    }

    /// One more gateway in front of the same providers, with changes to how it is started.
    pub(crate) async fn another(&self, change: impl FnOnce(&mut Setup)) -> Result<Gateway, Failed> {
        let mut setup = self.setup.clone();
        change(&mut setup);
        Gateway::start(&self.binary, &setup).await
    }

    /// The same, before it is known to answer.
    pub(crate) fn spawn(&self, change: impl FnOnce(&mut Setup)) -> Result<Gateway, Failed> {
        let mut setup = self.setup.clone();
        change(&mut setup);
        Gateway::spawn(&self.binary, &setup)
    }

    /// Whether the gateway lives and answers.
    pub(crate) async fn is_well(&self) -> Result<(), Failed> {
        is_well(&self.gateway).await
    }

    /// Whether the process is as it was before: its health, its answers, its memory, its descriptors.
    pub(crate) async fn is_as_before(&self) -> Seen {
        self.is_well().await?;
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let now = self.gateway.usage()?;
            let callers = self.gateway.callers();
            let own =
                now.descriptors.saturating_sub(self.gateway.upstream(&self.providers.ports()));
            let holds = callers == 0
                && own <= self.baseline.descriptors + 4
                && now.rss_mib <= self.baseline.rss_mib + 100;
            if holds || Instant::now() > deadline {
                return expect(
                    holds,
                    format!(
                        "memory {} -> {} MiB (peak {}), descriptors {} -> {own}, {callers} callers' connections",
                        self.baseline.rss_mib, now.rss_mib, now.peak_mib, self.baseline.descriptors
                    ),
                );
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The tenant's key of checks that need one.
pub(crate) const TENANT: &str = "tenant-one-7f3a9c5e1b";
/// Another tenant's.
pub(crate) const OTHER: &str = "tenant-two-2d8b4f6a0c";
/// The operator's.
pub(crate) const ADMIN: &str = "operator-only-91c7e35d";

fn with_keys(mut setup: Setup) -> Setup {
    let keys = [
        ("SIEGE_PROVIDER", KEY),
        ("SIEGE_TENANT", TENANT),
        ("SIEGE_OTHER", OTHER),
        ("SIEGE_ADMIN", ADMIN),
    ];
    setup.env.extend(keys.map(|(name, value)| (name.to_owned(), value.to_owned())));
    setup
}

/// Whether a gateway lives and answers an ordinary call.
pub(crate) async fn is_well(gateway: &Gateway) -> Result<(), Failed> {
    if let Some(status) = gateway.exited() {
        return Err(format!("the process has ended: {status}: {}", gateway.log()).into());
    }
    let health = wire::get(gateway.addr, "/healthz").await?;
    let bearer = format!("authorization: Bearer {TENANT}\r\n");
    let body = wire::question("gpt-4o", "Are you well?", false);
    let reply = wire::call(gateway.addr, wire::chat(&bearer, &body), wire::SOON).await?;
    if health.status == 200 && reply.status == 200 && reply.is_whole {
        return Ok(());
    }
    Err(format!("it is not well: {} {}", health.brief(), reply.brief()).into())
}

/// Asks ordinary questions for so long: how much longer one took than the provider alone, at most and of 99 in 100.
///
/// The provider is in this process, which is busy itself with what it sends.
pub(crate) async fn others(
    site: Arc<Site>,
    time: Duration,
) -> Result<(Duration, Duration), Failed> {
    let until = Instant::now() + time;
    let mut took = vec![Duration::ZERO];
    let provider = site.providers.good.addr();
    while Instant::now() < until {
        let from = Instant::now();
        let direct =
            wire::chat("authorization: Bearer x\r\n", &wire::question("gpt-4o", "And I?", false));
        wire::call(provider, direct, wire::SOON).await?;
        let alone = from.elapsed();
        let from = Instant::now();
        let reply = wire::ask(site.gateway.addr, "gpt-4o", "And I?").await?;
        if reply.status != 200 {
            return Err(format!("another caller was answered {}", reply.brief()).into());
        }
        took.push(from.elapsed().saturating_sub(alone));
        sleep(Duration::from_millis(20)).await;
    }
    took.sort_unstable();
    Ok((took[took.len() - 1], took[(took.len() - 1) * 99 / 100]))
}
