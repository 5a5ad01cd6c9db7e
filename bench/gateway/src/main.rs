//! See the package description.

fn main() {}
