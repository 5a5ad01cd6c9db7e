//! Requests, answers and events of OpenAI's Responses API, with as much in them as those of chat completions have.

use bytes::Bytes;

/// What every event has of the response.
const RESPONSE: &str = "\"id\":\"resp_bench0123456789abcdef\",\"object\":\"response\",\"created_at\":1760000000,\"model\":\"gpt-4o-mini-2024-07-18\",\"parallel_tool_calls\":true,\"store\":true,\"tools\":[],\"error\":null,\"incomplete_details\":null,\"instructions\":null";

/// How many events come before the first with content, and after the last.
pub(crate) const AROUND: u64 = 4 + 4;

fn frame(kind: &str, number: u64, rest: &str) -> String {
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{rest},\"sequence_number\":{number}}}\n\n")
}

/// The events before the content.
pub(crate) fn first() -> Bytes {
    let response = format!("\"response\":{{{RESPONSE},\"status\":\"in_progress\",\"output\":[]}}");
    let item = "\"output_index\":0,\"item\":{\"id\":\"msg_bench\",\"type\":\"message\",\"status\":\"in_progress\",\"role\":\"assistant\",\"content\":[]}";
    let part = "\"item_id\":\"msg_bench\",\"output_index\":0,\"content_index\":0,\"part\":{\"type\":\"output_text\",\"text\":\"\",\"annotations\":[]}";
    let frames = [
        frame("response.created", 0, &response),
        frame("response.in_progress", 1, &response),
        frame("response.output_item.added", 2, item),
        frame("response.content_part.added", 3, part),
    ];
    frames.concat().into()
}

/// Event `number` with content, from 0 on: about 200 bytes, another word in each.
pub(crate) fn event(number: u32) -> Bytes {
    let word = crate::wire::word(number as usize);
    let rest = format!(
        "\"item_id\":\"msg_bench0123456789\",\"output_index\":0,\"content_index\":0,\"delta\":\" {word}\",\"logprobs\":[]"
    );
    frame("response.output_text.delta", u64::from(number) + 4, &rest).into()
}

/// The last events of a stream with so many.
pub(crate) fn tail(events: u32) -> [Bytes; 4] {
    let number = u64::from(events) + 4;
    let at = "\"item_id\":\"msg_bench\",\"output_index\":0,\"content_index\":0";
    let part = "{\"type\":\"output_text\",\"text\":\"word\",\"annotations\":[]}";
    let item = format!(
        "{{\"id\":\"msg_bench\",\"type\":\"message\",\"status\":\"completed\",\"role\":\"assistant\",\"content\":[{part}]}}"
    );
    let response = whole(&item);
    [
        frame("response.output_text.done", number, &format!("{at},\"text\":\"word\"")).into(),
        frame("response.content_part.done", number + 1, &format!("{at},\"part\":{part}")).into(),
        frame(
            "response.output_item.done",
            number + 2,
            &format!("\"output_index\":0,\"item\":{item}"),
        )
        .into(),
        frame("response.completed", number + 3, &format!("\"response\":{response}")).into(),
    ]
}

fn whole(item: &str) -> String {
    format!(
        "{{{RESPONSE},\"status\":\"completed\",\"output\":[{item}],\"usage\":{{\"input_tokens\":190,\"input_tokens_details\":{{\"cached_tokens\":0}},\"output_tokens\":120,\"output_tokens_details\":{{\"reasoning_tokens\":0}},\"total_tokens\":310}}}}"
    )
}

/// A request's body: about a kilobyte. It is not to be stored, as most of agents.
pub(crate) fn request(model: &str, stream: bool) -> String {
    let words = "Say what the weather will be like, and why you think so. ".repeat(12);
    let stream = if stream { ",\"stream\":true" } else { "" };
    format!(
        "{{\"model\":\"{model}\",\"instructions\":\"You are brief and exact.\",\"input\":[{{\"role\":\"user\",\"content\":\"{words}\"}},{{\"role\":\"assistant\",\"content\":\"Where?\"}},{{\"role\":\"user\",\"content\":\"In Trondheim.\"}}],\"temperature\":0.7,\"store\":false,\"max_output_tokens\":512{stream}}}"
    )
}

/// An answer's body: about a kilobyte.
pub(crate) fn answer() -> String {
    let words = "It will rain, since it has rained on most days of this month. ".repeat(9);
    whole(&format!(
        "{{\"id\":\"msg_bench\",\"type\":\"message\",\"status\":\"completed\",\"role\":\"assistant\",\"content\":[{{\"type\":\"output_text\",\"text\":\"{words}\",\"annotations\":[]}}]}}"
    ))
}
