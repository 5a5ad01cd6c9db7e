//! S14: the request fits its window.

use super::{Position, TranscriptRule, TranscriptRules, error_text, outcome::Findings};
use crate::ChatRequest;

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    let (Some(window), Some(count)) = (rules.window, &rules.count) else { return };
    let input = count.count(request);
    let output = request.params.max_output.filter(|_| rules.output_counts).unwrap_or(0);
    if input.saturating_add(output).saturating_add(rules.reserve) > window {
        let text = error_text::size(rules.dialect, input, output, window);
        found.push(TranscriptRule::Size, Position::Request, text);
    }
}
