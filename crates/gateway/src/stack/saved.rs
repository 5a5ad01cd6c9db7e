//! What outlives the process, as the content of a file: cooldowns, open breakers, and what was spent.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use steadfast::{
    Handles, Spend, SpendAccount, SpendLedger, SpendRecord, SpendRecordRow, SpendWindow, Target,
    breaker::SavedBreaker,
    circuit::{Restored, SavedCircuit},
    failover::SavedHealth,
};

use super::{Gateway, identity::IdentityTags};

/// What a file of ours begins with.
const FORMAT: &str = "steadfast-state";
/// Raised when older gateways would misread it; what is new beside the old is no reason.
const VERSION: u32 = 1;
/// The most cooldowns, and the most breakers, in a file: some 400 KB each, and 1 MB with the longest names. Callers can ask for any number of models
/// that do not exist, and each of them rests.
const MOST: usize = 1_000;
/// The most accounts in a file, some 8 KB each when something is spent all the time: those that have spent most this
/// month. They are tenants and keys of the configuration, which no caller can make up.
const MOST_ACCOUNTS: usize = 1_000;

#[derive(Deserialize, Serialize)]
struct StateDocument {
    format: String,
    version: u32,
    identities: IdentityTags,
    #[serde(default)]
    stack: SavedLayers,
    #[serde(default)]
    summariser: SavedLayers,
    /// Of all, as there is one ledger.
    #[serde(default)]
    spend: Vec<Value>,
}

/// What an account has spent: by window, what is not forgotten yet, each with its start in seconds since 1970, its
/// tokens and its micro-dollars.
#[derive(Deserialize, Serialize)]
struct SavedAccount {
    account: SpendAccount,
    #[serde(default)]
    hour: Vec<(u64, u64, u64)>,
    #[serde(default)]
    day: Vec<(u64, u64, u64)>,
    #[serde(default)]
    month: Vec<(u64, u64, u64)>,
}

/// An entry that can not be read costs no other.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct SavedLayers {
    cooldowns: Vec<Value>,
    breakers: Vec<Value>,
}

/// How many entries of a file were what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestoredState {
    /// Cooldowns that go on.
    pub(crate) cooldowns: usize,
    /// Breakers that are open again.
    pub(crate) breakers: usize,
    /// Accounts that go on with what was spent.
    pub(crate) accounts: usize,
    /// Rests that are over.
    pub(crate) expired: usize,
    /// Those of targets that are not configured, or are others.
    pub(crate) unknown: usize,
    /// Those that could not be read.
    pub(crate) unreadable: usize,
}

impl Gateway {
    /// What rests and what was spent, for [`restore_state`](Self::restore_state): the same bytes as long as nothing has changed. Left out
    /// is what `shows_secret`, such as the model that a caller named.
    pub(crate) fn save_state(&self, shows_secret: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let save = |handles: &Handles| SavedLayers::of(handles, &shows_secret);
        let document = StateDocument {
            format: FORMAT.to_owned(),
            version: VERSION,
            identities: self.0.identities.tags(),
            stack: save(self.handles()),
            summariser: self.0.kept.summariser.as_ref().map(save).unwrap_or_default(),
            spend: saved_spend(&self.handles().spend, &shows_secret),
        };
        // Its maps have texts as keys.
        let mut text = serde_json::to_vec(&document).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Goes on with the rests in `text`, as far as their targets are configured as they were, and with what was spent.
    ///
    /// # Errors
    ///
    /// When it is no such file: then nothing has changed.
    pub(crate) fn restore_state(&self, text: &[u8]) -> Result<RestoredState, String> {
        let document: StateDocument =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if document.format != FORMAT {
            return Err("it is another program's".to_owned());
        }
        if document.version != VERSION {
            let version = document.version;
            return Err(format!("it has version {version}, and this gateway reads {VERSION}"));
        }
        let now = self.0.identities.tags();
        let known = |target: &Target| now.holds(&document.identities, target);
        let mut counts = RestoredState::default();
        document.stack.restore(self.handles(), &known, &mut counts);
        match &self.0.kept.summariser {
            Some(handles) => document.summariser.restore(handles, &known, &mut counts),
            None => counts.unknown += document.summariser.len(),
        }
        restore_spend(document.spend, &self.handles().spend, &mut counts);
        Ok(counts)
    }
}

impl SavedLayers {
    fn of(handles: &Handles, shows_secret: &impl Fn(&[u8]) -> bool) -> Self {
        let mut cooldowns = handles.failover.save();
        cooldowns.sort_by_cached_key(|one| rank(Some(&one.target), &one.circuit));
        let mut breakers = handles.breaker.save();
        breakers.sort_by_cached_key(|one| rank(one.key.as_ref(), &one.circuit));
        Self {
            cooldowns: values(&cooldowns, shows_secret, MOST),
            breakers: values(&breakers, shows_secret, MOST),
        }
    }

    fn len(&self) -> usize {
        self.cooldowns.len() + self.breakers.len()
    }

    fn restore(
        self,
        handles: &Handles,
        known: &impl Fn(&Target) -> bool,
        counts: &mut RestoredState,
    ) {
        let cooldowns: Vec<SavedHealth> = read(self.cooldowns, counts);
        let Restored { restored, expired, unknown, .. } =
            handles.failover.restore(&cooldowns, known);
        counts.cooldowns += restored;
        let breakers: Vec<SavedBreaker<Option<Target>>> = read(self.breakers, counts);
        let known = |target: &Option<Target>| target.as_ref().is_none_or(known);
        let more = handles.breaker.restore(&breakers, known);
        counts.breakers += more.restored;
        counts.expired += expired + more.expired;
        counts.unknown += unknown + more.unknown;
    }
}

/// What `ledger` knows, by account.
fn saved_spend(ledger: &SpendLedger, shows_secret: &impl Fn(&[u8]) -> bool) -> Vec<Value> {
    let mut accounts: Vec<SavedAccount> = Vec::new();
    // The rows of an account follow each other.
    for SpendRecordRow { account, window, at, spent } in ledger.save().rows {
        if accounts.last().is_none_or(|last| last.account != account) {
            let (hour, day, month) = (Vec::new(), Vec::new(), Vec::new());
            accounts.push(SavedAccount { account, hour, day, month });
        }
        if let Some(last) = accounts.last_mut() {
            last.window(window).push((at, spent.tokens, spent.cost));
        }
    }
    if accounts.len() > MOST_ACCOUNTS {
        let spent =
            |one: &SavedAccount| one.month.iter().map(|(_, tokens, _)| *tokens).sum::<u64>();
        accounts.sort_by_cached_key(|one| Reverse(spent(one)));
    }
    values(&accounts, shows_secret, MOST_ACCOUNTS)
}

fn restore_spend(accounts: Vec<Value>, ledger: &SpendLedger, counts: &mut RestoredState) {
    let accounts: Vec<SavedAccount> = read(accounts, counts);
    counts.accounts += accounts.len();
    let mut record = SpendRecord::default();
    for mut one in accounts {
        for window in SpendWindow::ALL {
            let account = one.account.clone();
            let rows = std::mem::take(one.window(window)).into_iter();
            record.rows.extend(rows.map(|(at, tokens, cost)| SpendRecordRow {
                account: account.clone(),
                window,
                at,
                spent: Spend::new(tokens, cost),
            }));
        }
    }
    ledger.restore(&record);
}

impl SavedAccount {
    fn window(&mut self, window: SpendWindow) -> &mut Vec<(u64, u64, u64)> {
        match window {
            SpendWindow::Hour => &mut self.hour,
            SpendWindow::Day => &mut self.day,
            SpendWindow::Month => &mut self.month,
        }
    }
}

/// The order in which entries are kept where there are too many: what rests for all models before single ones, which
/// callers may have made up, and the longest rest before the others.
fn rank(target: Option<&Target>, circuit: &SavedCircuit) -> (bool, Reverse<u64>, String) {
    let is_model = target.is_some_and(|target| target.model().is_some());
    let name = target.map(ToString::to_string).unwrap_or_default();
    (is_model, Reverse(circuit.until_ms), name)
}

fn values<T: Serialize>(
    all: &[T],
    shows_secret: &impl Fn(&[u8]) -> bool,
    most: usize,
) -> Vec<Value> {
    all.iter()
        .filter_map(|one| serde_json::to_value(one).ok())
        .filter(|value| !shows_secret(value.to_string().as_bytes()))
        .take(most)
        .collect()
}

fn read<T: DeserializeOwned>(values: Vec<Value>, counts: &mut RestoredState) -> Vec<T> {
    let mut all = Vec::new();
    for value in values {
        match serde_json::from_value(value) {
            Ok(one) => all.push(one),
            Err(_) => counts.unreadable += 1,
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::{Instant, advance};

    use super::*;
    use crate::config::Source;

    const FILE: &str = "
        [server]
        auth = 'none'
        [[providers]]
        name = 'a'
        dialect = 'openai'
        base_url = 'http://a.test/v1'
        headers = { x-team = 'one' }
        credentials = ['file:KEYS/first', 'file:KEYS/second']
        [[providers]]
        name = 'b'
        dialect = 'openai'
        base_url = 'http://b.test/v1'
        ";

    const FIRST: &str = "sk-live-first-5f1c8812";

    fn gateway(folder: &std::path::Path, text: &str) -> Gateway {
        let text = text.replace("KEYS", &folder.display().to_string());
        let source = Source::text(text);
        Gateway::connect(&source.parse().unwrap(), &source).unwrap()
    }

    fn keys(name: &str, first: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("steadfast-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("first"), first).unwrap();
        std::fs::write(folder.join("second"), "sk-live-second-99e0").unwrap();
        folder
    }

    fn nothing(_: &[u8]) -> bool {
        false
    }

    fn targets() -> [Target; 5] {
        let a = Target::new("a");
        [
            a.clone(),
            a.with_credential("first"),
            a.with_credential("second"),
            a.with_model("m").with_credential("first"),
            Target::new("b").with_model("m"),
        ]
    }

    fn rest(gateway: &Gateway) {
        for target in targets() {
            gateway.handles().failover.cool(&target, Duration::from_secs(600));
        }
        let reason = steadfast_core::Reason::Overloaded;
        gateway.handles().breaker.trip(
            &Some(targets()[3].clone()),
            reason,
            Duration::from_secs(60),
        );
    }

    fn cooling(gateway: &Gateway) -> Vec<String> {
        let snapshot = gateway.handles().failover.snapshot();
        snapshot.cooling().map(|health| health.target.to_string()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_process_goes_on_and_the_file_has_no_secret() {
        let folder = keys("state-next", FIRST);
        let old = gateway(&folder, FILE);
        rest(&old);
        let text = old.save_state(nothing);
        advance(Duration::from_secs(30)).await;
        assert_eq!(old.save_state(nothing), text, "the same while nothing changes");
        let shown = String::from_utf8(text.clone()).unwrap();
        for secret in [FIRST, "sk-live-second-99e0", "a.test"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        let new = gateway(&folder, FILE);
        let counts = new.restore_state(&text).unwrap();
        assert_eq!(counts, RestoredState { cooldowns: 5, breakers: 1, ..RestoredState::default() });
        assert_eq!(cooling(&new), cooling(&old));
        let left = |gateway: &Gateway| {
            let snapshot = gateway.handles().failover.snapshot();
            snapshot.targets()[0].cooling_for(Instant::now()).unwrap().as_secs_f64().round()
        };
        assert_eq!((left(&new), left(&old)), (570.0, 570.0));
        // After the breaker's minute, and after ten.
        for (wait, cooldowns, expired) in [(40, 5, 1), (600, 0, 6)] {
            advance(Duration::from_secs(wait)).await;
            let counts = gateway(&folder, FILE).restore_state(&text).unwrap();
            assert_eq!(
                (counts.cooldowns, counts.breakers, counts.expired),
                (cooldowns, 0, expired)
            );
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_another_target_now_does_not_rest() {
        let folder = keys("state-other", FIRST);
        let old = gateway(&folder, FILE);
        rest(&old);
        let text = old.save_state(nothing);
        let check = |change: &dyn Fn(String) -> String, expected: &[&str]| {
            let new = gateway(&folder, &change(FILE.to_owned()));
            let counts = new.restore_state(&text).unwrap();
            assert_eq!(cooling(&new), expected);
            assert_eq!(counts.cooldowns + counts.breakers + counts.unknown, 6);
        };
        let all = ["a", "a#first", "a#second", "a/m#first", "b/m"];
        check(&|text| text, &all);
        check(&|text| text.replace("b.test", "c.test"), &all[..4]);
        check(&|text| text.replace("'one'", "'two'"), &["b/m"]);
        check(&|text| text.replace("name = 'a'", "name = 'c'"), &["b/m"]);
        check(&|text| text.replace("'file:KEYS/first', ", ""), &["a", "a#second", "b/m"]);
        std::fs::write(folder.join("first"), "sk-live-renewed-77aa01").unwrap();
        check(&|text| text, &["a", "a#second", "b/m"]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_spent_is_spent_in_the_next_process() {
        let folder = keys("state-spend", FIRST);
        let old = gateway(&folder, FILE);
        let account = |name: &str| SpendAccount::Tenant(name.into());
        let charge = |name: &str, tokens, cost| {
            old.handles().spend.charge(&account(name), Spend::new(tokens, cost), Instant::now());
        };
        charge("acme", 700, 9);
        charge("made of secrets", 5, 5);
        advance(Duration::from_secs(2 * 3_600)).await;
        charge("acme", 40, 1);
        let summaries = SpendAccount::Summaries("acme".into());
        old.handles().spend.charge(&summaries, Spend::new(11, 2), Instant::now());
        let hides = |text: &[u8]| String::from_utf8_lossy(text).contains("made of secrets");
        let text = old.save_state(hides);
        assert_eq!(old.save_state(hides), text, "the same while nothing changes");
        let new = gateway(&folder, FILE);
        assert_eq!(new.restore_state(&text).unwrap().accounts, 2);
        let totals = |gateway: &Gateway, account: &SpendAccount| {
            gateway.handles().spend.totals(account, Instant::now())
        };
        for account in [account("acme"), summaries] {
            assert_eq!(totals(&new, &account), totals(&old, &account), "{account}");
        }
        let acme = totals(&new, &account("acme"));
        assert_eq!((acme.hour, acme.day), (Spend::new(40, 1), Spend::new(740, 10)));
        assert_eq!(totals(&new, &account("made of secrets")).month, Spend::ZERO);
        // One that can not be read costs no other.
        let text = String::from_utf8(text).unwrap();
        let text = text.replacen("{\"summaries\":", "{\"of a later version\":", 1);
        let counts = gateway(&folder, FILE).restore_state(text.as_bytes()).unwrap();
        assert_eq!((counts.accounts, counts.unreadable), (1, 1));

        // Of too many, those that have spent most.
        for n in 0..=MOST_ACCOUNTS as u64 {
            charge(&format!("tenant-{n}"), 100 + n, 0);
        }
        let new = gateway(&folder, FILE);
        assert_eq!(new.restore_state(&old.save_state(hides)).unwrap().accounts, MOST_ACCOUNTS);
        assert_eq!(totals(&new, &account("acme")), totals(&old, &account("acme")));
        assert_eq!(totals(&new, &account("tenant-0")).month, Spend::ZERO);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_models_leaves_the_keys_in_the_file() {
        let folder = keys("state-flood", FIRST);
        let old = gateway(&folder, FILE);
        for n in 0..3_000 {
            let model = Target::new("b").with_model(format!("made-up-{n}"));
            old.handles().failover.cool(&model, Duration::from_secs(3_600));
        }
        rest(&old);
        let hides = |text: &[u8]| String::from_utf8_lossy(text).contains("made-up-7");
        let text = old.save_state(hides);
        assert!(!String::from_utf8_lossy(&text).contains("made-up-7") && text.len() < 500_000);
        let new = gateway(&folder, FILE);
        assert_eq!(new.restore_state(&text).unwrap().cooldowns, MOST);
        let cooling = cooling(&new);
        assert!(
            ["a", "a#first", "a#second"].iter().all(|key| cooling.iter().any(|one| one == key))
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_that_can_not_be_read_costs_no_other() {
        let folder = keys("state-entry", FIRST);
        let old = gateway(&folder, FILE);
        rest(&old);
        let text = String::from_utf8(old.save_state(nothing)).unwrap();
        let text = text.replacen("\"cooling\"", "\"a reason of a later version\"", 2);
        let text = text.replacen("\"breakers\":[", "\"breakers\":[7,{},", 1);
        let counts = gateway(&folder, FILE).restore_state(text.as_bytes()).unwrap();
        assert_eq!((counts.cooldowns, counts.breakers, counts.unreadable), (3, 1, 4));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_such_file_is_refused() {
        let folder = keys("state-foreign", FIRST);
        let old = gateway(&folder, FILE);
        rest(&old);
        let text = old.save_state(nothing);
        let new = gateway(&folder, FILE);
        for length in 0..text.len() - 1 {
            new.restore_state(&text[..length]).unwrap_err();
        }
        for foreign in
            ["", "null", "[]", "{}", "7", "{\"format\":\"other\",\"version\":1,\"identities\":{}}"]
        {
            new.restore_state(foreign.as_bytes()).unwrap_err();
        }
        new.restore_state("[".repeat(100_000).as_bytes()).unwrap_err();
        let later = String::from_utf8(text).unwrap().replace("\"version\":1", "\"version\":2");
        let error = new.restore_state(later.as_bytes()).unwrap_err();
        assert!(error.contains("version 2"), "{error}");
        assert!(cooling(&new).is_empty());
        std::fs::remove_dir_all(folder).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// A file in which bytes have changed: no panic, and no rest beyond a day.
        #[test]
        fn changed_bytes_are_survived(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let folder = keys("state-bytes", FIRST);
                let gateway = gateway(&folder, FILE);
                rest(&gateway);
                let mut text = gateway.save_state(nothing);
                for (at, byte) in changes {
                    let at = at.index(text.len());
                    // Digits for digits, so that most are still JSON.
                    text[at] = if text[at].is_ascii_digit() { b'0' + byte % 10 } else { byte };
                }
                let new = self::gateway(&folder, FILE);
                if new.restore_state(&text).is_ok() {
                    let snapshot = new.handles().failover.snapshot();
                    let now = Instant::now();
                    let longest = snapshot.targets().iter().filter_map(|one| one.cooling_for(now)).max();
                    prop_assert!(longest <= Some(Duration::from_secs(86_400)));
                }
                Ok(())
            })?;
        }
    }
}
