//! The methods of an optimizer that give a setting of its rule another value.

/// For each name, a method that sets the field of the rule with this name: to the method's argument, or
/// to `true`.
macro_rules! setters {
    () => {};
    ($(#[$doc:meta])* $name:ident; $($rest:tt)*) => {
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: f64) -> Self {
            self.rule.$name = $name;
            self
        }

        setters! { $($rest)* }
    };
    ($(#[$doc:meta])* $name:ident = true; $($rest:tt)*) => {
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self) -> Self {
            self.rule.$name = true;
            self
        }

        setters! { $($rest)* }
    };
}
