//! What can be wrong with a layer.

/// A violation of a clause, which the layer under test has on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// Calls a clone of the service that was polled ready.
    CallsAClone,
    /// Polls a new clone of the inner service each time.
    PollsNewClones,
    /// Forgets that it was ready.
    LosesReadiness,
    /// Remembers that it was ready, and its clones do too.
    ClonesReadiness,
    /// Is ready without polling the inner service.
    AlwaysReady,
    /// Registers a waker that is not the caller's.
    NoWakerInReadiness,
    /// Treats a broken inner service as ready.
    SwallowsErrors,
    /// Waits for a broken inner service.
    WaitsForTheBroken,
    /// Refuses in `poll_ready`.
    FailsInReadiness,
    /// Releases a permit after an await, so never when it is dropped there.
    LeaksOnDrop,
    /// Keeps the caller's waker.
    KeepsWakers,
    /// Calls in a spawned task, which is never aborted.
    Spawns,
    /// Releases a permit when a body has been read or failed, but not when it is dropped.
    LeaksBodies,
    /// Releases a permit when a body is dropped, and not before.
    HoldsUntilDrop,
    /// Releases a permit when a body ends well or is dropped, not when it fails.
    HoldsFailedBodies,
    /// Releases a permit only after answers.
    LeaksOnError,
    /// Keeps the permit of a refused call.
    LeaksOnRefusal,
    /// Makes its state in `layer()`.
    StateOfTheService,
    /// Has one state for all layers.
    StateOfTheProcess,
    /// Calls, and then refuses.
    CallsAndRefuses,
    /// Replaces the ready service after a refusal, but keeps it reserved.
    HoardsReadiness,
    /// Refuses after a wait.
    RefusesLate,
    /// A call ends only when the service is polled again.
    NeedsTheNextCall,
    /// Waits for a clone while it keeps the original ready.
    WaitsForItself,
    /// Panics when the inner call fails.
    Panics,
    /// Polls the inner future with a waker that does nothing.
    NoWaker,
    /// Keeps the waker of the first poll.
    StaleWaker,
    /// The same for bodies.
    NoWakerInBodies,
    /// Wakes itself whenever it is pending.
    Spins,
    /// Wakes itself when it is not ready.
    SpinsInReadiness,
    /// Shows requests in its `Debug`.
    ShowsRequests,
    /// Allocates more than it declares.
    Allocates,
    /// Adds a header to requests.
    ChangesRequests,
    /// Calls twice, to be sure.
    CallsTwice,
    /// Changes the status of replies.
    ChangesHeads,
    /// Leaves out the first piece.
    DropsAPiece,
}
