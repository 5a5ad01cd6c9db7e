//! Policies are data: invalid ones are refused, with the name of the field.
#![allow(clippy::unwrap_used, reason = "tests")]

use steadfast_recover::{
    ContinuationLayer, ContinuationPolicy, OverlapPolicy, ResumePolicy, StreamResumeLayer,
};

#[test]
fn invalid_policies_are_refused_with_the_name_of_the_field() {
    type Change = fn(&mut ResumePolicy);
    let cases: [(Change, &str, &str); 7] = [
        (|p| p.max_partial = 0, "max_partial", "or set `resumes` to 0"),
        (|p| p.overlap.shortest = 0, "overlap.shortest", "at least 1"),
        (|p| p.overlap.tails.push(0), "overlap.tails", "at least 1"),
        (|p| p.overlap.anchor = 5, "overlap.anchor", "found by chance"),
        (|p| p.overlap.hold = 39, "overlap.hold", "below `overlap.anchor`, which is 40"),
        (|p| p.overlap.hold = 47, "overlap.hold", "below `overlap.tails`, which is 48"),
        (|p| p.overlap.tails = vec![usize::MAX], "overlap.hold", "below `overlap.tails`"),
    ];
    for (change, field, message) in cases {
        let mut policy = ResumePolicy::default();
        change(&mut policy);
        let error = StreamResumeLayer::new(policy).unwrap_err();
        assert_eq!(error.field(), field);
        assert!(error.to_string().contains(message), "{error}");
        let error = StreamResumeLayer::default().tune(change).unwrap_err();
        assert_eq!(error.field(), field);
    }
    let error = ContinuationLayer::default().tune(|p| p.max_partial = 0).unwrap_err();
    assert_eq!(error.field(), "max_partial");
    assert!(error.to_string().contains("`continuations` and `escalate_to` to 0"), "{error}");
}

#[test]
fn valid_policies_are_accepted() {
    let overlap = OverlapPolicy { tails: Vec::new(), within: 0, shortest: 1, hold: 1, anchor: 1 };
    for policy in [ResumePolicy::default(), ResumePolicy { resumes: 0, max_partial: 1, overlap }] {
        assert_eq!(*StreamResumeLayer::new(policy.clone()).unwrap().policy(), policy);
    }
    let off = ContinuationPolicy {
        first_limit: 0,
        escalate_to: 0,
        continuations: 0,
        little: 0,
        poor_in_a_row: 0,
        when_callers_limit: true,
        least: 0,
        withhold: true,
        max_partial: usize::MAX,
    };
    for policy in [ContinuationPolicy::default(), off] {
        assert_eq!(*ContinuationLayer::new(policy.clone()).unwrap().policy(), policy);
    }
}
