//! Another target while this one cools down
