/// Defines `get_ref`, `get_mut` and `into_inner` of a service with the inner service in the field
/// `inner`, as every service of a layer has them.
///
/// ```
/// struct Logged<S> { inner: S }
/// steadfast_core::inner_service!(Logged<S>);
///
/// assert_eq!(Logged { inner: 7 }.into_inner(), 7);
/// ```
#[macro_export]
macro_rules! inner_service {
    ($service:ident<$inner:ident $(, $other:ident $(: $bound:path)?)*>) => {
        impl<$inner $(, $other $(: $bound)?)*> $service<$inner $(, $other)*> {
            /// The inner service.
            pub const fn get_ref(&self) -> &$inner {
                &self.inner
            }

            /// The inner service, to be changed.
            pub const fn get_mut(&mut self) -> &mut $inner {
                &mut self.inner
            }

            /// The inner service, without this one.
            pub fn into_inner(self) -> $inner {
                self.inner
            }
        }
    };
}
