//! The values that a block, a leg or a row is made of, by name, and texts with their names in braces.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::sample::{SettingValues, text};

#[derive(Clone, Debug, Default)]
pub(crate) struct Bindings(SettingValues);

impl Bindings {
    pub(crate) fn new(values: SettingValues) -> Self {
        Self(values)
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    pub(crate) fn extend(&mut self, values: SettingValues) {
        self.0.extend(values);
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A value as text, empty if there is none.
    pub(crate) fn text(&self, name: &str) -> String {
        match self.0.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(value) => text(value),
        }
    }

    /// A value as a number, 0 if there is none.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.0.get(name).and_then(Value::as_f64).unwrap_or(0.0)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        !matches!(self.0.get(name), None | Some(Value::Null | Value::Bool(false)))
            && !self.text(name).is_empty()
    }

    /// The text with values in place of names, or nothing if one of the values is empty.
    pub(crate) fn fill(&self, text: &str) -> Result<Option<String>> {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let is_name = |name: &&str| {
                !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            };
            filled += before;
            let Some(name) = after.split_once('}').map(|(name, _)| name).filter(is_name) else {
                // A brace of JSON.
                filled.push('{');
                rest = after;
                continue;
            };
            if !self.0.contains_key(name) {
                bail!("`{text}` has the name {name}, and there is no such value");
            }
            let value = self.text(name);
            if value.is_empty() {
                return Ok(None);
            }
            filled += &value;
            rest = &after[name.len() + 1..];
        }
        Ok(Some(filled + rest))
    }

    /// The words of a text, each filled, or nothing if one of the values is empty. A value with a space is one word.
    pub(crate) fn words(&self, text: &str) -> Result<Option<Vec<String>>> {
        text.split_whitespace().map(|word| self.fill(word)).collect()
    }

    /// Whether a condition holds: that there is a value (`name`) or none (`!name`), or that it is equal to a text
    /// (`=`, `!=`), less (`<`) or greater (`>`) than a number or than another value.
    pub(crate) fn holds(&self, condition: &str) -> bool {
        let number = |text: &str| text.parse().unwrap_or_else(|_| self.number(text));
        let split = |sign| condition.split_once(sign);
        if let Some((name, value)) = split("!=") {
            self.text(name) != value
        } else if let Some((name, value)) = split("=") {
            self.text(name) == value
        } else if let Some((name, value)) = split("<") {
            self.number(name) < number(value)
        } else if let Some((name, value)) = split(">") {
            self.number(name) > number(value)
        } else {
            condition.strip_prefix('!').map_or_else(|| self.has(condition), |name| !self.has(name))
        }
    }

    /// A JSON object of a text.
    pub(crate) fn object(&self, text: &str) -> Result<SettingValues> {
        let filled = self.fill(text)?.filter(|text| !text.is_empty());
        let filled = filled.unwrap_or_else(|| "{}".to_owned());
        serde_json::from_str(&filled).with_context(|| format!("`{filled}` is no object"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::values;
    use super::*;

    #[test]
    fn names_become_values_and_words_without_a_value_are_left_out() {
        let scope = Bindings(values([("steps", Value::from(3)), ("file", Value::from(""))]));
        for holds in ["steps", "!file", "!none", "steps=3", "file!=a", "steps>2", "steps<4"] {
            assert!(scope.holds(holds), "{holds}");
        }
        for fails in ["file", "none", "!steps", "steps=4", "steps!=3", "steps>3", "none>steps"] {
            assert!(!scope.holds(fails), "{fails}");
        }
        let object = scope.object(r#"{"steps":{steps},"evaluate":true}"#).unwrap();
        assert_eq!((&object["steps"], &object["evaluate"]), (&Value::from(3), &Value::from(true)));
        assert_eq!(scope.fill("--problem={file}").unwrap(), None);
        assert!(scope.fill("{batch_size}").unwrap_err().to_string().contains("batch_size"));
        assert_eq!(scope.words("--steps {steps}").unwrap().unwrap(), ["--steps", "3"]);
    }
}
