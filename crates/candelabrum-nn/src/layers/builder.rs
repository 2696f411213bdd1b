//! Methods that several layers have: those with which the settings of a layer are chosen, one after the other, and those
//! that give its parameters.

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

/// The methods that give the parameters of a layer, of its `weights`.
macro_rules! weights {
    () => {
        /// The weight, `None` before the first input, which creates it.
        pub fn weight(&self) -> Option<&$crate::Param> {
            self.weights.get().map(|weights| &weights.weight)
        }

        /// The bias, `None` before the first input, which creates it, and for a layer without bias.
        pub fn bias(&self) -> Option<&$crate::Param> {
            self.weights.get().and_then(|weights| weights.bias.as_ref())
        }
    };
}
