//! The names of what is sent. Those that begin with `gen_ai.` are the conventions', which `tests/conventions` has the
//! types of; those that begin with `steadfast.` are this project's own.

/// What is being done: `chat`, `embeddings`.
pub(crate) const OPERATION: &str = "gen_ai.operation.name";
/// Who is asked, in the conventions' word where there is one.
pub(crate) const PROVIDER: &str = "gen_ai.provider.name";
pub(crate) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(crate) const REQUEST_STREAM: &str = "gen_ai.request.stream";
pub(crate) const RESPONSE_ID: &str = "gen_ai.response.id";
pub(crate) const RESPONSE_MODEL: &str = "gen_ai.response.model";
pub(crate) const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
pub(crate) const TIME_TO_FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
pub(crate) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(crate) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(crate) const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
pub(crate) const CACHE_WRITE_TOKENS: &str = "gen_ai.usage.cache_creation.input_tokens";
pub(crate) const THINKING_TOKENS: &str = "gen_ai.usage.reasoning.output_tokens";
pub(crate) const CONVERSATION: &str = "gen_ai.conversation.id";
pub(crate) const AGENT: &str = "gen_ai.agent.name";
pub(crate) const TOKEN_TYPE: &str = "gen_ai.token.type";
pub(crate) const ERROR_TYPE: &str = "error.type";
pub(crate) const SERVER_ADDRESS: &str = "server.address";
pub(crate) const SERVER_PORT: &str = "server.port";

/// How a request or an attempt ended, in the word of its story.
pub(crate) const OUTCOME: &str = "steadfast.outcome";
/// Whether a request was answered because something was done about a failure.
pub(crate) const RECOVERED: &str = "steadfast.recovered";
/// What a failure was concluded from.
pub(crate) const EVIDENCE: &str = "steadfast.evidence";
/// Provider, model and name of the credential.
pub(crate) const TARGET: &str = "steadfast.target";
/// How often a provider was asked for a request.
pub(crate) const ATTEMPTS: &str = "steadfast.attempts";
/// The position of an attempt among those of its request.
pub(crate) const ATTEMPT: &str = "steadfast.attempt";
/// How many bytes of an attempt's answer have come.
pub(crate) const BYTES: &str = "steadfast.bytes";
/// How many steps of a request are not among its events.
pub(crate) const STEPS_DROPPED: &str = "steadfast.steps_dropped";
/// The tokens of all attempts of a request: those of the conventions are on the attempts, and would be added up twice.
pub(crate) const ALL_INPUT_TOKENS: &str = "steadfast.usage.input_tokens";
pub(crate) const ALL_OUTPUT_TOKENS: &str = "steadfast.usage.output_tokens";
/// What a request has cost, in dollars.
pub(crate) const COST: &str = "steadfast.cost";
pub(crate) const TENANT: &str = "steadfast.tenant";
pub(crate) const KEY: &str = "steadfast.key";
pub(crate) const TASK: &str = "steadfast.task";
pub(crate) const ROUTE: &str = "steadfast.route";
/// The id by which `steadfast why` finds a request.
pub(crate) const REQUEST_ID: &str = "steadfast.request.id";
/// Of a step: why.
pub(crate) const REASON: &str = "steadfast.reason";
/// Of a step: how long was waited, in seconds.
pub(crate) const WAIT: &str = "steadfast.wait";
/// Of a step: a short detail.
pub(crate) const DETAIL: &str = "steadfast.detail";
/// Of the counter of steps: which.
pub(crate) const STEP: &str = "steadfast.step";

/// How long attempts took, in seconds.
pub(crate) const OPERATION_DURATION: &str = "gen_ai.client.operation.duration";
/// From the start of an attempt to its first content, in seconds; of answers in pieces.
pub(crate) const OPERATION_FIRST_CHUNK: &str = "gen_ai.client.operation.time_to_first_chunk";
pub(crate) const TOKEN_USAGE: &str = "gen_ai.client.token.usage";
/// How long requests took, in seconds, with all that was done for them.
pub(crate) const REQUEST_DURATION: &str = "steadfast.request.duration";
/// How often layers did what.
pub(crate) const STEPS: &str = "steadfast.steps";
