//! What can be wrong with a layer.

/// What is wrong with a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// Calls a clone of the service that was polled ready.
    CallsAClone,
    /// Polls a new clone of the inner service each time.
    ReadiesAnew,
    /// Forgets that it was ready.
    LosesReadiness,
    /// Remembers that it was ready, and its clones do too.
    ClonesReadiness,
    /// Says to be ready without asking.
    AlwaysReady,
    /// Leaves a waker that is not the caller's.
    NoWakerInReadiness,
    /// Takes a broken inner service for one that is ready.
    SwallowsErrors,
    /// Waits for a broken inner service.
    WaitsForTheBroken,
    /// Refuses in `poll_ready`.
    FailsInReadiness,
    /// Gives a permit back behind an await, so never when it is dropped there.
    LeaksOnDrop,
    /// Keeps the caller's waker.
    KeepsWakers,
    /// Calls in a task of its own, which nobody aborts.
    Spawns,
    /// Gives a permit back when a body has been read or failed, but not when it is dropped.
    LeaksBodies,
    /// Gives a permit back when a body is dropped, and not before.
    HoldsUntilDrop,
    /// Gives a permit back when a body ends well or is dropped, not when it fails.
    HoldsFailedBodies,
    /// Gives a permit back only after answers.
    LeaksOnError,
    /// Keeps the permit of a refused call.
    LeaksOnRefusal,
    /// Makes its state in `layer()`.
    StateOfTheService,
    /// Has one state for all layers.
    StateOfTheProcess,
    /// Calls, and then refuses.
    CallsAndRefuses,
    /// Throws the ready service away with a refusal, but keeps it reserved.
    HoardsReadiness,
    /// Refuses after thinking about it.
    RefusesLate,
    /// A call ends only when the service is polled again.
    NeedsTheNextCall,
    /// Waits for a clone while it keeps the original ready.
    WaitsForItself,
    /// Polls the inner future with a waker of nobody's.
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
    /// Allocates more than it says.
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
