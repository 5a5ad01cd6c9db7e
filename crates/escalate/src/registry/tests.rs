//! The held registry against a naive model.

use proptest::prelude::*;

use super::*;

const BOUNDS: Bounds = Bounds { held: 4, bytes: 100 };

#[derive(Clone, Debug)]
enum Operation {
    Admit(u64),
    Hold(u64),
    Decide(u64, bool),
    Expire(u64),
    Leave(u64),
}

/// What a request of the model is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Admitted,
    Waiting,
    Decided,
    Gone,
}

/// Every request ever admitted: its bytes and its phase.
#[derive(Default)]
struct Model(Vec<(u64, Phase)>);

impl Model {
    fn present(&self) -> impl Iterator<Item = &(u64, Phase)> {
        self.0.iter().filter(|(_, phase)| *phase != Phase::Gone)
    }

    fn phase(&mut self, number: u64) -> Option<&mut Phase> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        self.0.get_mut(at).map(|(_, phase)| phase)
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    let number = 0..12_u64;
    prop_oneof![
        3 => (0..60_u64).prop_map(Operation::Admit),
        3 => number.clone().prop_map(Operation::Hold),
        3 => (number.clone(), any::<bool>()).prop_map(|(number, valid)| Operation::Decide(number, valid)),
        1 => number.clone().prop_map(Operation::Expire),
        2 => number.prop_map(Operation::Leave),
    ]
}

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    NotHeld(NotHeld),
    Invalid,
}

impl From<NotHeld> for Refusal {
    fn from(why: NotHeld) -> Self {
        Self::NotHeld(why)
    }
}

proptest! {
    #[test]
    fn it_does_what_the_model_does(operations in proptest::collection::vec(operation(), 1..80)) {
        let (mut registry, mut model) = (Registry::<u64, u64>::new(), Model::default());
        for operation in operations {
            match operation {
                Operation::Admit(bytes) => {
                    let used: u64 = model.present().map(|(bytes, _)| bytes).sum();
                    let expected = if model.present().count() >= BOUNDS.held {
                        Err(Overflow::Held)
                    } else if used + bytes > BOUNDS.bytes {
                        Err(Overflow::Bytes)
                    } else {
                        model.0.push((bytes, Phase::Admitted));
                        Ok(model.0.len() as u64)
                    };
                    prop_assert_eq!(registry.admit(bytes, BOUNDS), expected);
                }
                Operation::Hold(number) => {
                    registry.hold(number, number * 10, number * 100);
                    if let Some(phase) = model.phase(number).filter(|phase| **phase != Phase::Gone) {
                        *phase = Phase::Waiting;
                    }
                }
                Operation::Decide(number, valid) => {
                    let check = |held: &u64| {
                        assert_eq!(*held, number * 10);
                        if valid { Ok(()) } else { Err(Refusal::Invalid) }
                    };
                    let decided = registry.decide(number, check);
                    let expected = match model.phase(number) {
                        None => Err(NotHeld::Unknown.into()),
                        Some(Phase::Gone) => Err(NotHeld::Over.into()),
                        Some(Phase::Admitted | Phase::Decided) => Err(NotHeld::Decided.into()),
                        Some(Phase::Waiting) if !valid => Err(Refusal::Invalid),
                        Some(phase) => {
                            *phase = Phase::Decided;
                            Ok(number * 100)
                        }
                    };
                    prop_assert_eq!(decided, expected);
                }
                Operation::Expire(number) => {
                    let waits = model.phase(number).filter(|phase| **phase == Phase::Waiting);
                    prop_assert_eq!(registry.expire(number), waits.is_some());
                    if let Some(phase) = waits {
                        *phase = Phase::Decided;
                    }
                }
                Operation::Leave(number) => {
                    let phase = model.phase(number);
                    prop_assert_eq!(registry.leave(number), phase.as_deref() == Some(&Phase::Waiting));
                    if let Some(phase) = phase {
                        *phase = Phase::Gone;
                    }
                }
            }
            let waits = |(at, (_, phase)): (usize, &(u64, Phase))| {
                (*phase == Phase::Waiting).then_some(at as u64 + 1)
            };
            let waiting: Vec<_> = model.0.iter().enumerate().filter_map(waits).collect();
            let held: Vec<_> = registry.held().map(|(number, _)| number).collect();
            prop_assert_eq!(&held, &waiting);
            for number in 0..12 {
                let described = waiting.contains(&number).then_some(number * 10);
                prop_assert_eq!(registry.get(number).copied(), described);
            }
            let used: u64 = model.present().map(|(bytes, _)| bytes).sum();
            prop_assert_eq!((registry.len(), registry.bytes()), (model.present().count(), used));
            prop_assert!(registry.len() <= BOUNDS.held && registry.bytes() <= BOUNDS.bytes);
        }
    }
}
