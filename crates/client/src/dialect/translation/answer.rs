//! Going through what a provider answers to a caller of another dialect.

use steadfast_core::{
    Dialect, Failure, FaultSide, Reason, RecoveryLog, Retry, Scope, Step, Target,
};

use super::{LeftOut, check::Walk, table::Where};

/// Goes through an answer, whole or frame by frame: what its caller's dialect has no word for ends it
/// where it is content, and is named once where it is not.
#[derive(Debug)]
pub(crate) struct AnswerCheck {
    from: Dialect,
    to: Dialect,
    left_out: LeftOut,
    /// How many names have been reported.
    reported: usize,
}

impl AnswerCheck {
    /// Of an answer in the dialect `from` to a caller of the dialect `to`; `None` when they are one.
    pub(crate) fn new(from: Dialect, to: Option<Dialect>) -> Option<Box<Self>> {
        let to = to.filter(|to| *to != from)?;
        Some(Box::new(Self { from, to, left_out: LeftOut::new(), reported: 0 }))
    }

    /// Goes through a body, or the data of a frame.
    ///
    /// # Errors
    ///
    /// When it has content that the caller's dialect has no word for.
    pub(crate) fn body(&mut self, body: &[u8]) -> Result<(), Failure> {
        let Self { from, to, .. } = *self;
        let walk = Walk::new(from, to, Where::Answer, &mut self.left_out);
        walk.body(body).map_err(|field| {
            let message = format!("the answer has {field}: the {to} dialect has no word for it");
            // Nobody's failure but the model's, and paid already: it is not asked for again here.
            Failure::new(Reason::ServerError, message)
                .with_retry(Retry::No)
                .with_scope(Scope::Request)
                .with_fault(FaultSide::Model)
                .with_evidence("translation:answer")
        })
    }

    /// Reports what has been left out since the last time.
    pub(crate) fn report(&mut self, target: &Target, log: &RecoveryLog) {
        let count = self.left_out.names().count();
        if count == self.reported {
            return;
        }
        let names: Vec<&str> = self.left_out.names().skip(self.reported).collect();
        let names = format!("of the answer: {}", names.join(", "));
        self.reported = count;
        left_out(target, &names, log);
    }
}

/// Reports fields that are left out.
pub(crate) fn left_out(target: &Target, names: &str, log: &RecoveryLog) {
    log.record(|| Step::new("client", "left_out").with_target(Some(target)).with_detail(names));
    tracing::debug!(
        name: "steadfast::client::left_out",
        target: "steadfast::client",
        target = %target,
        names,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a body in a caller's other dialect: the names of what is left out, or an error.
    fn checked(from: Dialect, body: &str) -> Result<String, String> {
        let to = if from == Dialect::OpenAi { Dialect::Anthropic } else { Dialect::OpenAi };
        let mut check = AnswerCheck::new(from, Some(to)).unwrap();
        let ended = check.body(body.as_bytes());
        ended.map(|()| check.left_out.to_string()).map_err(|failure| failure.message().to_owned())
    }

    #[test]
    fn a_new_field_around_an_answer_is_named_and_new_content_is_an_error() {
        for (from, body) in [
            (
                Dialect::Gemini,
                r#"{"candidates":[{"content":{"parts":[{"text":"hi"}]},"zig":{"a":1}}]}"#,
            ),
            (
                Dialect::OpenAi,
                r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"zig":true}]}"#,
            ),
            (Dialect::Anthropic, r#"{"content":[{"type":"text","text":"hi"}],"zig":1}"#),
        ] {
            let names = checked(from, body).unwrap();
            assert!(names.ends_with("zig"), "{from}: {names}");
        }
        for (from, body) in [
            (Dialect::Gemini, r#"{"candidates":[{"content":{"parts":[{"zig":{"a":1}}]}}]}"#),
            (Dialect::Anthropic, r#"{"content":[{"type":"zig","x":"y"}]}"#),
            (
                Dialect::Anthropic,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"zig","x":"y"}}"#,
            ),
        ] {
            let why = checked(from, body).unwrap_err();
            assert!(why.contains("zig"), "{from}: {why}");
        }
    }
}
