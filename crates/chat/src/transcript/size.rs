//! S14: the request fits its window.

use super::{Place, Rule, Rules, outcome::Findings, words};
use crate::ChatRequest;

pub(super) fn check(request: &ChatRequest, rules: &Rules, found: &mut Findings) {
    let (Some(window), Some(count)) = (rules.window, &rules.count) else { return };
    let input = count.count(request);
    let output = request.params.max_output.filter(|_| rules.output_counts).unwrap_or(0);
    if input.saturating_add(output).saturating_add(rules.reserve) > window {
        let words = words::size(rules.dialect, input, output, window);
        found.push(Rule::Size, Place::Request, words);
    }
}
