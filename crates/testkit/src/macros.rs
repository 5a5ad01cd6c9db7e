//! The macro that makes tests of the clauses.

use crate::{Contract, ContractViolation, Exchange, contract::ContractedLayer};

/// A module with a test for every [`clause`](crate::clause) of a [`Contract`].
///
/// ```
/// use steadfast_testkit::{Contract, Http, contract};
/// use tower::layer::util::Identity;
///
/// contract!(over_http, Contract::new(Http, Identity::new));
/// ```
///
/// makes `mod over_http` with `#[test] fn ready_before_call()` and so on: `cargo test over_http`
/// runs them all. Each test evaluates the expression of the contract again, on tokio's paused
/// clock. No dependency on tokio is needed.
#[macro_export]
macro_rules! contract {
    ($name:ident, $contract:expr $(,)?) => {
        $crate::contract! { @with tests [$name, $contract] }
    };
    (@with $what:ident $arguments:tt) => {
        $crate::contract! {
            @$what $arguments
            ready_before_call
            readiness_is_kept_until_used
            readiness_is_absent_in_a_clone
            readiness_passes_through
            readiness_errors_pass_through
            poll_ready_never_fails_by_itself
            a_dropped_future_frees
            a_dropped_body_frees
            a_body_read_to_its_end_frees
            a_failed_body_frees
            every_error_frees
            state_is_shared
            a_new_layer_has_new_state
            a_refusal_calls_nothing
            works_in_a_concurrency_limit
            works_around_a_concurrency_limit
            works_in_a_buffer
            works_around_a_buffer
            a_waker_on_every_pending
            nothing_spins
            auto_traits
            allocations
            a_request_passes_unchanged
            a_reply_passes_unchanged
        }
    };
    (@tests [$name:ident, $contract:expr] $($clause:ident)*) => {
        mod $name {
            #[allow(unused_imports, reason = "whatever the contract needs")]
            use super::*;
            $(
                #[test]
                fn $clause() {
                    $crate::run(async { $crate::clause::$clause(&$contract).await });
                }
            )*
        }
    };
    (@names [] $($clause:ident)*) => { &[$(stringify!($clause)),*] };
    (@check [$name:ident, $contract:ident] $($clause:ident)*) => {
        match $name {
            $(stringify!($clause) => $crate::clause::$clause($contract).await,)*
            _ => Err($crate::ContractViolation::new("", format!("there is no clause `{}`", $name))),
        }
    };
}

/// Every clause, by name.
pub const CLAUSES: &[&str] = contract!(@with names []);

/// Checks one clause, by its name.
///
/// # Errors
///
/// When the layer violates it, or there is none of that name.
pub async fn check_clause<E: Exchange, L: ContractedLayer<E>>(
    clause: &str,
    contract: &Contract<E, L>,
) -> Result<(), ContractViolation> {
    contract!(@with check [clause, contract])
}

/// Checks every clause, in order, until one is violated.
///
/// # Errors
///
/// The first clause that is violated, and how.
pub async fn verify<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> Result<(), ContractViolation> {
    for clause in CLAUSES {
        check_clause(clause, contract).await?;
    }
    Ok(())
}

/// Runs a clause on a new runtime, with tokio's clock paused.
///
/// # Panics
///
/// With the violation, when there is one.
#[track_caller]
pub fn run(clause: impl Future<Output = Result<(), ContractViolation>>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let found = match runtime {
        Ok(runtime) => runtime.block_on(clause),
        Err(error) => panic!("can not start a runtime for the clause: {error}"),
    };
    if let Err(violation) = found {
        panic!("{violation}");
    }
}
