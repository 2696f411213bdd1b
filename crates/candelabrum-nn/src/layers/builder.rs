//! The methods with which the settings of a layer are chosen, one after the other.

/// For each line a method that takes the layer, runs the line's code on it and gives the layer back.
/// The first word is the layer's name in the code.
macro_rules! builder {
    ($layer:ident: $(
        $(#[$doc:meta])*
        $name:ident($($argument:ident: $type:ty),*) => $change:expr;
    )*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(self $(, $argument: $type)*) -> Self {
            let mut $layer = self;
            $change;
            $layer
        }
    )*};
}
