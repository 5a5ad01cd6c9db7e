//! The contract that every tower layer should pass, as one macro.
