//! The words every Steadfast layer speaks: failures, calls, targets, leases, transcripts
