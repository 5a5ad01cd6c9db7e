//! Embeddings, which are over when they are there.

use steadfast_chat::EmbedResponse;

use super::{MeteredReply, ReplyMeter};

impl<M: ReplyMeter> MeteredReply<M> for EmbedResponse {
    type Metered = Self;

    fn metered(mut self, mut meter: M) -> Self {
        if meter.log().is_enabled() {
            self.head.log = meter.log().clone();
        }
        meter.head(self.head.status, self.head.headers.received());
        // Its bytes are no tokens of output.
        let mut usage = self.usage;
        usage.output = usage.output.or(Some(0));
        meter.usage(&usage);
        meter.success();
        self
    }
}
