//! What an operator may decide of the classification; plain data.

use std::collections::BTreeMap;

use steadfast_core::{Failure, Reason, RecoveryTable, Retry};

/// The evidence of an answer that can not be read.
const UNREADABLE: &str = "malformed";

/// The beginning of the evidence where nothing but the status decided.
const BY_STATUS: &str = "status:";

/// What an operator may decide of the classification; plain fields.
///
/// ```
/// use http::StatusCode;
/// use steadfast_classify::{Classifier, ClassifyPolicy};
/// use steadfast_core::{Failure, Reason};
///
/// let mut policy = ClassifyPolicy::default();
/// policy.statuses.insert(502, Reason::Overloaded);
/// let classifier = Classifier::new().with_policy(policy);
/// let failure = Failure::new(Reason::ServerError, "").with_status(StatusCode::BAD_GATEWAY);
/// assert_eq!(classifier.failure(failure, None).reason(), Reason::Overloaded);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ClassifyPolicy {
    /// The reason of an answer that can not be read: bytes that are no answer in the provider's dialect.
    /// `server_error`: another attempt may be readable.
    pub unreadable: Reason,
    /// Reasons of single statuses, where the provider's words say no more than the status does. By default
    /// none but the built-in ones: 502 is `server_error`, 504 is `timeout`.
    #[cfg_attr(feature = "serde", serde(with = "statuses"))]
    #[cfg_attr(feature = "schemars", schemars(with = "BTreeMap<String, Reason>"))]
    pub statuses: BTreeMap<u16, Reason>,
    /// Texts in the message of a failure with which it is never retried in place, whatever its reason; upper
    /// and lower case are equal. By default none: the reason decides.
    pub final_texts: Vec<String>,
}

impl Default for ClassifyPolicy {
    fn default() -> Self {
        Self { unreadable: Reason::ServerError, statuses: BTreeMap::new(), final_texts: Vec::new() }
    }
}

impl ClassifyPolicy {
    /// `failure`, which the rules have judged, as this policy has it.
    pub(crate) fn apply(&self, failure: Failure, table: &RecoveryTable) -> Failure {
        let failure = match self.reason(&failure) {
            Some(reason) if reason != failure.reason() => {
                failure.with_reason(reason).with_table(table)
            }
            _ => failure,
        };
        if failure.retry() == Retry::Yes && self.is_final(failure.message()) {
            return failure.with_retry(Retry::No);
        }
        failure
    }

    /// Another reason for `failure`, if it is one that this policy decides.
    fn reason(&self, failure: &Failure) -> Option<Reason> {
        if failure.reason() == Reason::ServerError && failure.evidence() == UNREADABLE {
            return Some(self.unreadable);
        }
        let status = failure.status()?;
        let by_status = failure.evidence().starts_with(BY_STATUS)
            || Reason::from_status(status) == Some(failure.reason());
        self.statuses.get(&status.as_u16()).copied().filter(|_| by_status)
    }

    fn is_final(&self, message: &str) -> bool {
        if self.final_texts.is_empty() {
            return false;
        }
        let message = message.to_lowercase();
        self.final_texts.iter().any(|text| message.contains(&text.to_lowercase()))
    }
}

/// The keys of a table of a configuration are strings.
#[cfg(feature = "serde")]
mod statuses {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use steadfast_core::Reason;

    pub(super) fn serialize<S: Serializer>(
        statuses: &BTreeMap<u16, Reason>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(statuses.iter().map(|(status, reason)| (status.to_string(), reason)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<u16, Reason>, D::Error> {
        let written = BTreeMap::<String, Reason>::deserialize(deserializer)?;
        let status = |(key, reason): (String, Reason)| {
            let status = key.parse().ok().filter(|status| (400..=599).contains(status));
            let wrong =
                || D::Error::custom(format!("`{key}` is no status of an error, such as 502"));
            Ok((status.ok_or_else(wrong)?, reason))
        };
        written.into_iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use steadfast_core::Failover;

    use super::*;

    #[test]
    fn a_status_gives_way_to_what_the_provider_says() {
        let mut policy = ClassifyPolicy::default();
        policy.statuses.extend([
            (502, Reason::Overloaded),
            (403, Reason::Unknown),
            (409, Reason::Unknown),
        ]);
        let table = RecoveryTable::default();
        let judged = |status: u16, reason| {
            let failure =
                Failure::new(reason, "").with_status(StatusCode::from_u16(status).unwrap());
            policy.apply(failure, &table).reason()
        };
        assert_eq!(judged(502, Reason::ServerError), Reason::Overloaded);
        assert_eq!(judged(502, Reason::Billing), Reason::Billing);
        assert_eq!(judged(500, Reason::ServerError), Reason::ServerError);
        assert_eq!(judged(403, Reason::Auth), Reason::Unknown);
        assert_eq!(judged(409, Reason::ServerError), Reason::Unknown);
        assert_eq!(judged(409, Reason::Overloaded), Reason::Overloaded);
        let conflict = Failure::new(Reason::Overloaded, "").with_status(StatusCode::CONFLICT);
        let failure = policy.apply(conflict.with_evidence("status:409"), &table);
        assert_eq!(failure.reason(), Reason::Unknown, "nothing but the status was known");
    }

    #[test]
    fn what_can_not_be_read_has_the_reason_of_the_policy() {
        let mut policy = ClassifyPolicy::default();
        let unreadable = || Failure::new(Reason::ServerError, "").with_evidence("malformed");
        let table = RecoveryTable::default();
        assert_eq!(policy.apply(unreadable(), &table).retry(), Retry::Yes);
        policy.unreadable = Reason::Format;
        let failure = policy.apply(unreadable(), &table);
        assert_eq!(failure.reason(), Reason::Format);
        assert_eq!((failure.retry(), failure.failover()), (Retry::No, Failover::Never));
    }

    #[test]
    fn final_texts_are_not_retried() {
        let final_texts = vec!["quota exceeded".to_owned()];
        let policy = ClassifyPolicy { final_texts, ..ClassifyPolicy::default() };
        let retry = |reason, message: &str| {
            policy.apply(Failure::new(reason, message), &RecoveryTable::default()).retry()
        };
        assert_eq!(retry(Reason::RateLimit, "Quota EXCEEDED for today"), Retry::No);
        assert_eq!(retry(Reason::RateLimit, "slow down"), Retry::Yes);
        assert_eq!(retry(Reason::Safety, "quota exceeded"), Retry::Forbidden);
    }
}
