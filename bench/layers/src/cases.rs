//! Everything that is measured, table by table.

use tokio::runtime::Runtime;

use crate::{
    conversation,
    drive::{Case, case},
    ours, peers,
    subject::{Answers, EveryOther, Number},
};

/// Cases that share a bare service.
#[derive(Debug)]
pub struct Table {
    /// Its heading.
    pub title: &'static str,
    /// What the bare service does, and how to read the table.
    pub about: &'static str,
    /// How many of the measured things are in one call of a case.
    pub per_call: u32,
    /// The service without any layer.
    pub bare: Case,
    /// Of this project, of tower, of tower-resilience.
    pub columns: [Vec<Case>; 3],
}

/// Pieces in the stream of which one event is measured.
const EVENTS: u32 = 1_000;

/// All tables. `runtime` is the one in which the cases will run.
pub fn tables(runtime: &Runtime) -> Vec<Table> {
    let _inside = runtime.enter();
    let mut tables = vec![
        Table {
            title: "a call, its answer read to the end",
            about: "The bare service answers at once with a stream of one piece and the end. Ours \
                    record the outcome when the answer has ended, the others at its head.",
            per_call: 1,
            bare: case("bare", Answers { pieces: 1 }, ours::ask()),
            columns: [ours::answers(1), peers::tower_answers(1), peers::resilience_answers(1)],
        },
        Table {
            title: "a call, recorded at its head",
            about: "The same answers, read to the end. All record the outcome at the head, ours by \
                    `at_once`: the same work for all, but without the purpose of ours.",
            per_call: 1,
            bare: case("bare", Answers { pieces: 1 }, ours::ask()),
            columns: [ours::heads(), vec![], peers::resilience_answers(1)],
        },
        Table {
            title: "a call whose reply is a plain value",
            about: "The bare service answers at once with a number.",
            per_call: 1,
            bare: case("bare", Number, ours::ask()),
            columns: [ours::numbers(), peers::tower_numbers(), peers::resilience_numbers()],
        },
        Table {
            title: "an event of a stream",
            about: "Of a stream of 1,000 pieces. The others ignore everything after the head, so \
                    there is nothing to compare.",
            per_call: EVENTS,
            bare: case("bare", Answers { pieces: EVENTS }, ours::ask()),
            columns: [ours::answers(EVENTS), vec![], vec![]],
        },
        Table {
            title: "a call refused",
            about: "By an open breaker; tower's nearest is a load shedder over a service that is \
                    never ready. The refusal is a typed failure with a retry delay.",
            per_call: 1,
            bare: case("bare", Number, ours::ask()),
            columns: [
                vec![ours::refused()],
                vec![peers::tower_refused()],
                vec![peers::resilience_refused(runtime)],
            ],
        },
        Table {
            title: "a call that fails, and then does not",
            about: "Under the layer is a service that fails every other call; the bare one answers \
                    with a number. So the difference is the cost of the layer, of a second call, and \
                    of the failure, which is in the table below. No wait between attempts; \
                    tower-resilience's retry always uses a timer and is left out.",
            per_call: 1,
            bare: case("bare", Number, ours::ask()),
            columns: [
                vec![ours::retried(), ours::failed_over()],
                vec![peers::tower_retried()],
                vec![peers::resilience_failed_over()],
            ],
        },
        Table {
            title: "the failure itself",
            about: "The cost of the failing call in the table above and of its failure, to be \
                    subtracted there.",
            per_call: 1,
            bare: case("bare", Number, ours::ask()),
            columns: [vec![failing()], vec![], vec![]],
        },
    ];
    tables.extend(conversation::tables());
    tables
}

/// Makes and drops the failure of [`EveryOther`], and its answer.
fn failing() -> Case {
    let (mut service, ask) = (EveryOther::default(), ours::ask());
    Case {
        name: "a failure made and dropped",
        run: Box::new(move |calls| {
            for _ in 0..calls {
                for _ in 0..2 {
                    let reply = tower::Service::call(&mut service, ask.clone());
                    drop(std::hint::black_box(reply));
                }
            }
        }),
    }
}
