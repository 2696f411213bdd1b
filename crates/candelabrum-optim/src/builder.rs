//! The methods with which the settings of an optimizer are chosen, one after the other.

/// For each line a method that takes the value, runs the line's code on it and gives the value back.
/// The first word is the value's name in the code.
macro_rules! builder {
    ($this:ident: $(
        $(#[$doc:meta])*
        $name:ident($($argument:ident: $type:ty),*) => $change:expr;
    )*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(self $(, $argument: $type)*) -> Self {
            let mut $this = self;
            $change;
            $this
        }
    )*};
}
