//! What an answer is: an error after all, why it stopped, whether there is anything in it.
//!
//! Nothing here allocates: it runs on every answer.

use std::borrow::Cow;

use super::{
    events::{self, Line},
    numbers,
    walk::{Item, Raw, Walk},
};

/// What an answer is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answer<'a> {
    /// It says it is an error.
    pub(crate) error: bool,
    /// It has the shape of a chat answer.
    pub(crate) known: bool,
    /// There is text, thinking or a picture in it.
    pub(crate) content: bool,
    /// There is a tool call in it.
    pub(crate) tools: bool,
    /// It was blocked before anything was written.
    pub(crate) blocked: bool,
    /// Why it stopped.
    pub(crate) stop: Option<Raw<'a>>,
    /// Its stream ended as its dialect ends streams.
    pub(crate) terminal: bool,
    /// Tokens read, caches included.
    pub(crate) input: Option<u64>,
    /// A top-level message next to a code, as flat error envelopes have.
    message: bool,
    code: bool,
    /// Something in a list of errors at the top.
    listed: bool,
}

impl<'a> Answer<'a> {
    /// Inspects one JSON document, or several in a row.
    pub(crate) fn document(&mut self, text: &'a str) {
        let mut walk = Walk::new(text);
        // What makes an error envelope has to be in one document.
        let known = std::mem::take(&mut self.known);
        (self.message, self.code, self.listed) = (false, false, false);
        let mut in_errors = false;
        while let Some(item) = walk.next() {
            let depth = walk.depth();
            match item {
                Item::Open { key, array } => {
                    if depth == 2 {
                        in_errors = array && key == "errors";
                    }
                    self.listed |= in_errors && depth == 3;
                    self.open(key, array, depth);
                }
                Item::Close => in_errors &= depth >= 2,
                Item::Text { key, text } => {
                    self.listed |= in_errors && depth == 2;
                    self.text(key, text, depth);
                }
                Item::Word { key, word } => self.word(key, word, depth),
            }
        }
        // Flat error envelopes, and lists as of JSON:API; answers in part have errors as well.
        self.error |= !self.known && (self.listed || (self.message && self.code));
        self.known |= known;
    }

    fn open(&mut self, key: &str, array: bool, depth: usize) {
        match key {
            // Inside an event's wrapper (`response.error`, `data.error`) too.
            "error" | "Error" if depth <= 3 => self.error |= !array,
            "choices" | "candidates" => self.known = true,
            "content" | "output" if array && depth == 2 => self.known = true,
            "tool_calls" | "function_call" | "functionCall" | "tool_use" => self.tools = true,
            "inlineData" | "inline_data" | "fileData" | "audio" | "images" => self.content = true,
            "executableCode" | "codeExecutionResult" => self.content = true,
            _ => {}
        }
    }

    fn text(&mut self, key: &str, text: Raw<'a>, depth: usize) {
        if text.is_empty() {
            return;
        }
        match key {
            "content" | "text" | "thinking" | "reasoning" | "reasoning_content" | "refusal"
            | "partial_json" | "delta" | "output_text" | "arguments" | "b64_json" | "signature" => {
                self.content = true;
            }
            "finish_reason" | "finishReason" | "stop_reason" | "done_reason" => {
                self.stop = Some(text);
            }
            "blockReason" | "block_reason" => {
                self.blocked = true;
                self.stop = Some(text);
            }
            // `incomplete_details.reason`.
            "reason" if depth >= 2 => self.stop = self.stop.or(Some(text)),
            "error" | "Error" if depth <= 3 => self.error = true,
            "error_message" | "errorMessage" if depth == 1 => self.error = true,
            "message" | "Message" | "msg" | "detail" if depth == 1 => self.message = true,
            "code" | "Code" if depth == 1 => {
                let code = text.text();
                let fine = ["0", "200", "ok", "success"];
                self.code |= !fine.iter().any(|fine| code.eq_ignore_ascii_case(fine));
            }
            "type" => match text.text().as_ref() {
                "error" if depth == 1 => self.error = true,
                "tool_use" | "function_call" | "tool_call" | "server_tool_use" => self.tools = true,
                "message_stop" | "response.completed" | "response.incomplete" => {
                    self.terminal = true;
                }
                "response.failed" => self.error = true,
                _ => {}
            },
            "event" | "object" if depth == 1 => {
                self.error |= text.text() == "error";
            }
            "status" if depth <= 2 => {
                let status = text.text();
                self.error |= status == "failed" || (depth == 1 && status == "error");
            }
            _ => {}
        }
    }

    fn word(&mut self, key: &str, word: &str, depth: usize) {
        let number = || numbers::count(word).map(|(value, _)| value);
        match key {
            "success" if depth == 1 => self.error |= word.eq_ignore_ascii_case("false"),
            "done" if depth == 1 => self.terminal |= word == "true",
            "code" if depth == 1 => {
                self.code |= number().is_some_and(|code| !matches!(code, 0 | 200..=299));
            }
            "error_code" if depth == 1 => self.error |= number().is_some_and(|code| code != 0),
            "status_code" if depth == 2 => self.error |= number().is_some_and(|code| code != 0),
            "prompt_tokens" | "input_tokens" | "promptTokenCount" | "prompt_eval_count" => {
                self.input = self.input.max(number());
            }
            "cache_read_input_tokens" | "cache_creation_input_tokens" => {
                let cached = number().unwrap_or(0);
                self.input = Some(self.input.unwrap_or(0).saturating_add(cached));
            }
            _ => {}
        }
    }

    /// Inspects an event stream.
    pub(crate) fn stream(&mut self, text: &'a str) {
        let mut error_event = false;
        for line in events::lines(text) {
            match line {
                Line::Blank => error_event = false,
                Line::Event(name) => {
                    error_event = name == "error";
                    self.terminal |= name == "message_stop";
                }
                Line::Data(events::DONE) => self.terminal = true,
                Line::Data(data) => {
                    self.error |= error_event;
                    self.document(data);
                    self.known = true;
                }
                Line::Raw(document) => self.document(document),
            }
        }
        // Gemini has no other end.
        if let Some(stop) = self.stop {
            self.terminal |= stop.text().chars().all(|c| c.is_ascii_uppercase() || c == '_');
        }
    }

    /// Whether there is anything in it.
    pub(crate) fn has_content(&self) -> bool {
        self.content || self.tools
    }

    /// Chat shape, ended as it should, and nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.known && !self.has_content() && self.stop.is_some()
    }
}

/// A body as text, without copying when it is UTF-8 already.
pub(crate) fn text(body: &[u8], limit: usize) -> Cow<'_, str> {
    let body = &body[..body.len().min(limit)];
    match std::str::from_utf8(body) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(body),
    }
}
