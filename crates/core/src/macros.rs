/// Makes `get_ref`, `get_mut` and `into_inner` of a service whose field `inner` is the one it is
/// around: every service of a layer has these three.
///
/// ```
/// struct Logged<S> { inner: S }
/// steadfast_core::inner_service!(Logged<S>);
///
/// assert_eq!(Logged { inner: 7 }.into_inner(), 7);
/// ```
#[macro_export]
macro_rules! inner_service {
    ($service:ident<$inner:ident $(, $other:ident)*>) => {
        impl<$inner $(, $other)*> $service<$inner $(, $other)*> {
            /// The service inside.
            pub const fn get_ref(&self) -> &$inner {
                &self.inner
            }

            /// The service inside, to be changed.
            pub const fn get_mut(&mut self) -> &mut $inner {
                &mut self.inner
            }

            /// The service inside, without this one.
            pub fn into_inner(self) -> $inner {
                self.inner
            }
        }
    };
}
