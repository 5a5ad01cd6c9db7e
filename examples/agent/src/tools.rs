//! The agent's tools: files and commands of one folder, behind the layers for tools.

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use steadfast::{
    Failure, OnStepLayer, Part, RawJson, Tool, ToolCall, ToolFailureKind, ToolRequest, ToolResult,
    guard::SafetyGuardHandle,
    tool::{
        AccessPolicy, AccessProfile, CommandPolicy, CommandRunner, PolicyError, ShellTool,
        ToolBreakerLayer, ToolErrorLayer, ToolPolicyLayer, ToolTimeoutLayer,
    },
};
use tower::{Layer as _, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};

use crate::{agent::STATE, helpers::Helpers};

/// Tools as a service.
pub(crate) type ToolService = BoxCloneSyncService<ToolRequest, ToolResult, Failure>;

/// The name under which helpers run, who may read and not write.
pub(crate) const HELPER: &str = "helper";

/// The largest file that is read or written: what a model can take in.
const MAX_FILE: u64 = 256 << 10;

/// Every tool in `folder`, behind every layer for tools: a call always has a result that the model can work with. A helper has time limits
/// of its own, so `delegate` is outside of the one for tools alone.
pub(crate) fn service(
    folder: &Path,
    guard: &SafetyGuardHandle,
    steps: OnStepLayer,
    helpers: Option<Helpers>,
) -> Result<ToolService, PolicyError> {
    let commands = CommandPolicy { dir: Some(folder.to_owned()), ..CommandPolicy::default() };
    let shell = ShellTool::new(CommandRunner::new(commands)?);
    let files = Files(folder.to_owned());
    let tools = service_fn(move |request: ToolRequest| {
        let (files, shell) = (files.clone(), shell.clone());
        async move {
            match request.call.name.as_str() {
                "run_command" => shell.oneshot(request).await,
                _ => Ok(files.call(&request.call).await),
            }
        }
    });
    let limited = ToolTimeoutLayer::default().layer(tools);
    let tools = service_fn(move |request: ToolRequest| {
        let (limited, helpers) = (limited.clone(), helpers.clone());
        async move {
            match helpers.filter(|_| request.call.name == "delegate") {
                Some(helpers) => Ok(helpers.call(request).await),
                None => limited.oneshot(request).await,
            }
        }
    });
    let tools = ServiceBuilder::new()
        .layer(steps)
        .layer(guard.tool_layer())
        .layer(ToolPolicyLayer::new(access(folder))?)
        .layer(ToolBreakerLayer::default())
        .layer(ToolErrorLayer::default())
        .service(tools);
    Ok(BoxCloneSyncService::new(tools))
}

/// Files outside of the folder, and the agent's own state, are nobody's business; and helpers change none. Commands are not read: they can
/// do all that this process can.
fn access(folder: &Path) -> AccessPolicy {
    let own = AccessProfile {
        roots: Some(vec![folder.to_owned()]),
        refused_paths: vec![folder.join(STATE)],
        max_file_bytes: Some(MAX_FILE),
        ..AccessProfile::default()
    };
    let refused = ["write_file", "edit_file", "run_command", "delegate"];
    let helpers =
        AccessProfile { refused_tools: refused.map(str::to_owned).to_vec(), ..own.clone() };
    let mut policy = AccessPolicy::of(own);
    policy.profiles.insert(HELPER.to_owned(), helpers);
    policy
}

/// What the model may call; helpers may read.
pub(crate) fn declarations(is_helper: bool) -> Vec<Tool> {
    let path = json!({"type": "string", "description": "A path in the working folder."});
    let text = |about: &str| json!({"type": "string", "description": about});
    let tool = |name: &str, about: &str, properties: serde_json::Value, required: &[&str]| {
        let schema = json!({"type": "object", "properties": properties, "required": required});
        let schema = RawJson::parse(&schema.to_string()).ok();
        Tool::Function {
            name: name.to_owned(),
            description: Some(about.to_owned()),
            parameters: schema,
            strict: None,
            custom: None,
            extra: None,
            dialect: None,
        }
    };
    let mut tools = vec![
        tool("list_files", "Lists the files in a folder.", json!({"path": path}), &[]),
        tool("read_file", "Reads a text file or an image.", json!({"path": path}), &["path"]),
    ];
    if is_helper {
        return tools;
    }
    let contents = text("The whole content.");
    let (old, new) = (text("The text to replace; it occurs once."), text("What replaces it."));
    let edit = json!({"path": path, "old_string": old, "new_string": new});
    let task = text("What to find out, with all that the helper has to know.");
    let background = json!({"type": "boolean", "description": "Go on at once; the user hears of the result later."});
    tools.extend([
        tool(
            "write_file",
            "Writes a file, with its folders. It replaces one that is there.",
            json!({"path": path, "content": contents}),
            &["path", "content"],
        ),
        tool(
            "edit_file",
            "Replaces a text in a file.",
            edit,
            &["path", "old_string", "new_string"],
        ),
        ShellTool::declaration("run_command"),
        tool(
            "delegate",
            "Gives a task to a helper, who can read files and has a fresh memory.",
            json!({"task": task, "background": background}),
            &["task"],
        ),
    ]);
    tools
}

/// The tools that work on files.
#[derive(Clone)]
struct Files(PathBuf);

#[derive(Deserialize)]
struct At {
    #[serde(default)]
    path: String,
}

#[derive(Deserialize)]
struct Write {
    path: String,
    content: String,
}

#[derive(Deserialize)]
struct Edit {
    path: String,
    old_string: String,
    new_string: String,
}

/// Why a tool has nothing to show.
enum Fault {
    Arguments(String),
    Failed(String),
}

impl Files {
    async fn call(&self, call: &ToolCall) -> ToolResult {
        let done = match call.name.as_str() {
            "list_files" => self.list(call).await,
            "read_file" => self.read(call).await,
            "write_file" => self.write(call).await,
            "edit_file" => self.edit(call).await,
            other => Err(Fault::Arguments(format!("There is no tool `{other}`."))),
        };
        match done {
            Ok(part) => ToolResult { content: vec![part], ..ToolResult::of(call, "") },
            Err(Fault::Arguments(text)) => {
                ToolResult::failed(call, ToolFailureKind::Arguments, text)
            }
            Err(Fault::Failed(text)) => ToolResult::failed(call, ToolFailureKind::Failed, text),
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    async fn list(&self, call: &ToolCall) -> Result<Part, Fault> {
        let At { path } = arguments(call)?;
        let mut entries = tokio::fs::read_dir(self.at(&path)).await.map_err(on(&path))?;
        let mut names = Vec::new();
        while let Some(entry) = entries.next_entry().await.map_err(on(&path))? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_folder = entry.file_type().await.is_ok_and(|kind| kind.is_dir());
            // The agent's own state is not the user's work.
            if !name.starts_with('.') {
                names.push(if is_folder { format!("{name}/") } else { name });
            }
        }
        names.sort_unstable();
        Ok(Part::text(if names.is_empty() { "(empty)".to_owned() } else { names.join("\n") }))
    }

    async fn read(&self, call: &ToolCall) -> Result<Part, Fault> {
        let At { path } = arguments(call)?;
        let bytes = tokio::fs::read(self.at(&path)).await.map_err(on(&path))?;
        let kind = Path::new(&path).extension().and_then(|kind| kind.to_str());
        match kind {
            Some(kind @ ("png" | "jpeg" | "gif" | "webp")) => {
                Ok(Part::image(format!("image/{kind}"), BASE64_STANDARD.encode(&bytes)))
            }
            Some("jpg") => Ok(Part::image("image/jpeg", BASE64_STANDARD.encode(&bytes))),
            _ if bytes.is_empty() => Ok(Part::text("(empty)")),
            _ => Ok(Part::text(String::from_utf8_lossy(&bytes))),
        }
    }

    async fn write(&self, call: &ToolCall) -> Result<Part, Fault> {
        let Write { path, content } = arguments(call)?;
        self.replace(&path, &content).await?;
        Ok(Part::text(format!("{} bytes are in {path}.", content.len())))
    }

    async fn edit(&self, call: &ToolCall) -> Result<Part, Fault> {
        let Edit { path, old_string, new_string } = arguments(call)?;
        let text = tokio::fs::read_to_string(self.at(&path)).await.map_err(on(&path))?;
        match text.matches(&old_string).count() {
            1 if !old_string.is_empty() => {
                self.replace(&path, &text.replacen(&old_string, &new_string, 1)).await?;
                Ok(Part::text(format!("{path} is changed.")))
            }
            times => Err(Fault::Arguments(format!(
                "`old_string` has to occur once in {path}; it occurs {times} times. Read the file again."
            ))),
        }
    }

    /// Nobody sees half of a file, whenever the process ends.
    async fn replace(&self, path: &str, text: &str) -> Result<(), Fault> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let to = self.at(path);
        let Some((folder, name)) = to.parent().zip(to.file_name()) else {
            return Err(Fault::Arguments(format!("`{path}` is no file.")));
        };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{}.{}.{number}.tmp", name.to_string_lossy(), std::process::id());
        let from = folder.join(name);
        let written = async {
            tokio::fs::create_dir_all(folder).await?;
            tokio::fs::write(&from, text).await?;
            tokio::fs::rename(&from, &to).await
        };
        let written = written.await;
        if written.is_err() {
            let _ = tokio::fs::remove_file(&from).await;
        }
        written.map_err(on(path))
    }
}

fn arguments<T: DeserializeOwned>(call: &ToolCall) -> Result<T, Fault> {
    let text = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
    serde_json::from_str(text).map_err(|error| {
        Fault::Arguments(format!("The arguments of `{}` can not be used: {error}.", call.name))
    })
}

fn on(path: &str) -> impl Fn(io::Error) -> Fault {
    move |error| match error.kind() {
        // The model's own mistakes count for no breaker.
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
            Fault::Arguments(format!("`{path}`: {error}."))
        }
        _ => Fault::Failed(format!("`{path}`: {error}.")),
    }
}
