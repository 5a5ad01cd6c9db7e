//! What tools may touch: checked before they are called.

mod arguments;
mod hosts;
mod paths;
mod policy;

use std::{
    collections::BTreeMap,
    fmt, fs,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use steadfast_chat::{ToolCall, ToolFailureKind, ToolInvocation, ToolResult};
use steadfast_core::{CallContext, Failure, IntoFailure, Reason, Step, inner_service};
use tower_layer::Layer;
use tower_service::Service;

use self::hosts::{HostPattern, host_of};
pub use self::policy::{AccessPolicy, AccessProfile, ToolArguments};
use crate::{PolicyError, called::head};

/// Refuses calls of tools that name a file, a host or a size that they may not: before they are made, with a
/// failed result that says what would be allowed.
///
/// Paths are compared after `..` and links are resolved, at the time of the call. That is a check of what the
/// model asks for, and no sandbox: whoever can change links at the same moment, or runs commands, gets past
/// it. Links are read in `call`, so roots belong on a local disk.
///
/// Every service made by one layer value, and by its clones, shares one counter.
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct ToolPolicyLayer {
    shared: Arc<Access>,
}

/// A policy made ready for use.
struct Access {
    policy: AccessPolicy,
    profiles: BTreeMap<String, ReadyProfile>,
    refused: AtomicU64,
}

struct ReadyProfile {
    profile: AccessProfile,
    hosts: Option<Vec<HostPattern>>,
    /// Where relative paths begin.
    base: PathBuf,
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Denied {
    /// For logs: they name no path, since that is the model's text.
    why: &'static str,
    text: String,
}

impl ToolPolicyLayer {
    /// Refuses by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the error says what would be valid.
    pub fn new(policy: AccessPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        let profiles = policy.profiles.iter();
        let profiles = profiles.map(|(name, profile)| (name.clone(), ReadyProfile::new(profile)));
        let profiles = profiles.collect();
        let shared = Arc::new(Access { policy, profiles, refused: AtomicU64::default() });
        Ok(Self { shared })
    }

    /// The policy in force.
    pub fn policy(&self) -> &AccessPolicy {
        &self.shared.policy
    }

    /// How many calls it has refused.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for ToolPolicyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolPolicyLayer")
            .field("policy", self.policy())
            .field("refused", &self.refused())
            .finish()
    }
}

impl<S> Layer<S> for ToolPolicyLayer {
    type Service = ToolPolicy<S>;

    fn layer(&self, inner: S) -> ToolPolicy<S> {
        ToolPolicy { inner, shared: self.shared.clone() }
    }
}

impl ReadyProfile {
    fn new(profile: &AccessProfile) -> Self {
        let hosts = profile.hosts.as_ref();
        let hosts =
            hosts.map(|all| all.iter().filter_map(|host| HostPattern::parse(host)).collect());
        let base = profile.base.clone();
        let base = base.or_else(|| profile.roots.as_ref().and_then(|roots| roots.first().cloned()));
        let base = base.or_else(|| std::env::current_dir().ok());
        Self { profile: profile.clone(), hosts, base: base.unwrap_or_else(|| "/".into()) }
    }

    /// The call may be made.
    fn check(&self, call: &ToolCall, arguments: &[&ToolArguments]) -> Result<(), Denied> {
        let profile = &self.profile;
        if profile.refused_tools.iter().any(|tool| tool.eq_ignore_ascii_case(&call.name)) {
            return Err(Denied {
                why: "tool",
                text: "This agent may not use this tool".to_owned(),
            });
        }
        let is = |of: fn(&ToolArguments) -> &Vec<String>, name: &str| {
            arguments.iter().any(|names| of(names).iter().any(|known| known == name))
        };
        let mut result = Ok(());
        let json = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
        let object = arguments::texts(json, |name, text| {
            if result.is_err() {
                return;
            }
            if is(|names| &names.paths, name) {
                result = self.check_path(text);
            } else if is(|names| &names.urls, name) {
                result = self.check_url(text);
            } else if is(|names| &names.contents, name) {
                result = self.check_size(text.len() as u64, "the content");
            }
        });
        if result.is_ok() && !object && !arguments.is_empty() {
            let text =
                "Its arguments are not a JSON object, so what it would touch can not be checked";
            return Err(Denied { why: "arguments", text: text.to_owned() });
        }
        result
    }

    fn check_path(&self, text: &str) -> Result<(), Denied> {
        let denied = |why, text| Err(Denied { why, text });
        let shown = head(text, 200);
        let path = text.strip_prefix("file://").unwrap_or(text);
        let AccessProfile { roots, refused_paths, .. } = &self.profile;
        if roots.is_none() && refused_paths.is_empty() {
            return self.check_file(&self.base.join(path));
        }
        if path.starts_with('~') || path.contains(['\0', '\\']) {
            let text = format!("Where `{shown}` leads can not be checked; write the whole path");
            return denied("path", text);
        }
        let Some(path) = paths::resolve(Path::new(path), &self.base) else {
            return denied("path", format!("Where `{shown}` leads can not be checked"));
        };
        // They may be reached through a link, too.
        let within = |folders: &[PathBuf]| {
            folders.iter().any(|folder| {
                let leads = paths::resolve(folder, Path::new("/"));
                path.starts_with(leads.as_ref().unwrap_or(folder))
            })
        };
        if within(refused_paths) {
            return denied("path", format!("`{shown}` is not for its tools. Use other files"));
        }
        if let Some(roots) = roots
            && !within(roots)
        {
            let allowed: Vec<_> =
                roots.iter().map(|root| format!("`{}`", root.display())).collect();
            let allowed = match allowed.is_empty() {
                true => "It may use no files".to_owned(),
                false => format!("Use files in {}", allowed.join(", ")),
            };
            return denied("path", format!("`{shown}` is outside of what it may use. {allowed}"));
        }
        self.check_file(&path)
    }

    /// The size of a file, if it is one.
    fn check_file(&self, path: &Path) -> Result<(), Denied> {
        if self.profile.max_file_bytes.is_none() {
            return Ok(());
        }
        match fs::metadata(path) {
            Ok(found) if found.is_file() => self.check_size(found.len(), "the file"),
            _ => Ok(()),
        }
    }

    fn check_size(&self, bytes: u64, what: &str) -> Result<(), Denied> {
        match self.profile.max_file_bytes {
            Some(most) if bytes > most => {
                let text = format!(
                    "With {bytes} bytes {what} is larger than the {most} that it may have. Use a part of it"
                );
                Err(Denied { why: "size", text })
            }
            _ => Ok(()),
        }
    }

    fn check_url(&self, url: &str) -> Result<(), Denied> {
        let Some(hosts) = &self.hosts else { return Ok(()) };
        let found = host_of(url);
        if found.is_some_and(|(host, port)| hosts.iter().any(|known| known.matches(&host, port))) {
            return Ok(());
        }
        let allowed = self.profile.hosts.iter().flatten().map(|host| format!("`{host}`"));
        let allowed = match hosts.is_empty() {
            true => "It may call no host".to_owned(),
            false => format!("It may call {}", allowed.collect::<Vec<_>>().join(", ")),
        };
        let text =
            format!("The host of `{}` is not one that it may call. {allowed}", head(url, 200));
        Err(Denied { why: "host", text })
    }
}

impl Access {
    fn check(&self, context: &CallContext, call: &ToolCall) -> Result<(), Denied> {
        let own = context.agent().and_then(|agent| self.profiles.get(agent));
        // It is there: the policy is valid.
        let Some(profile) = own.or_else(|| self.profiles.get(&self.policy.default)) else {
            return Ok(());
        };
        if profile.profile.allows_all() {
            return Ok(());
        }
        let names = [self.policy.arguments.get("*"), self.policy.arguments.get(&call.name)];
        let names: Vec<_> = names.into_iter().flatten().collect();
        profile.check(call, &names)
    }

    /// The result of a call that is not made.
    fn refuse(&self, context: &CallContext, call: &ToolCall, denied: &Denied) -> ToolResult {
        self.refused.fetch_add(1, Ordering::Relaxed);
        tracing::event!(
            name: "steadfast::tool::refused",
            target: "steadfast::tool",
            tracing::Level::INFO,
            agent = context.agent(),
            tool = call.name.as_str(),
            why = denied.why,
            "tool call refused by its policy"
        );
        context.log.record(|| {
            Step::new("tool", "refused").with_detail(format!("{} {}", call.name, denied.why))
        });
        let text = format!("`{}` was not called. {}.", call.name, denied.text);
        ToolResult::failed(call, ToolFailureKind::Refused, text)
    }
}

/// Checks the calls of the inner service; see [`ToolPolicyLayer`].
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct ToolPolicy<S> {
    inner: S,
    shared: Arc<Access>,
}

inner_service!(ToolPolicy<S>);

impl<S: fmt::Debug> fmt::Debug for ToolPolicy<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolPolicy").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, R> Service<R> for ToolPolicy<S>
where
    S: Service<R, Response = ToolResult>,
    S::Error: IntoFailure,
    R: ToolInvocation,
{
    type Response = ToolResult;
    type Error = Failure;
    type Future = ToolPolicyFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        match self.shared.check(request.context(), request.call()) {
            Ok(()) => ToolPolicyFuture { inner: Some(self.inner.call(request)), refused: None },
            Err(denied) => {
                let refused = self.shared.refuse(request.context(), request.call(), &denied);
                ToolPolicyFuture { inner: None, refused: Some(refused) }
            }
        }
    }
}

pin_project! {
    /// Waits for the result. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ToolPolicyFuture<F> {
        #[pin]
        inner: Option<F>,
        refused: Option<ToolResult>,
    }
}

impl<F, E> Future for ToolPolicyFuture<F>
where
    F: Future<Output = Result<ToolResult, E>>,
    E: Into<Failure>,
{
    type Output = Result<ToolResult, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Some(inner) = this.inner.as_pin_mut() {
            return inner.poll(cx).map_err(Into::into);
        }
        let again = "the future of a refused tool call was polled after it was ready";
        let again = || Failure::refused_fixed(Reason::Unknown, again);
        Poll::Ready(this.refused.take().ok_or_else(again))
    }
}

impl<F> fmt::Debug for ToolPolicyFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolPolicyFuture")
            .field("refused", &self.refused.is_some())
            .finish_non_exhaustive()
    }
}
