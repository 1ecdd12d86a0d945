//! Collects the faults of a request, each with a pointer to the part that is not valid.

use crate::http::answer::problem::{FAULTS_MAX, Fault, Problem};
use serde_path_to_error::{Path, Segment};
use std::borrow::Cow;

/// The longest field name that a pointer spells out, in characters.
const NAME_CHARACTERS_MAX: usize = 64;

/// The faults of a request, up to a limit.
#[derive(Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    /// Adds a fault.
    pub(crate) fn note(&mut self, pointer: impl FnOnce() -> String, detail: impl Into<Cow<'static, str>>) {
        if self.0.len() < FAULTS_MAX {
            self.0.push(Fault { pointer: pointer(), detail: detail.into() });
        }
    }

    /// The problem that the faults make up, if there are any.
    pub(crate) fn check(self) -> Result<(), Problem> {
        if self.0.is_empty() { Ok(()) } else { Err(Problem::invalid(self.0)) }
    }
}

/// The problem that serde's message about a part of a request stands for. It contains no value of the request.
pub(super) fn located(path: &Path, message: &str) -> Problem {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => pointer.push_str(&format!("/{}", escaped(key))),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    let named = |beginning| message.strip_prefix(beginning)?.strip_suffix('`');
    if let Some(field) = named("missing field `") {
        return Problem::invalid_at(&format!("{pointer}/{field}"), "missing");
    }
    if let Some(field) = named("duplicate field `") {
        return Problem::invalid_at(&format!("{pointer}/{field}"), "given twice");
    }
    let detail = match message.rsplit_once(", expected ") {
        Some((met, expected)) if met.starts_with("unknown field") => {
            format!("unknown field, expected {expected}")
        }
        Some((_, expected)) => format!("expected {}", words(expected)),
        // The message of one of our own types, which does not quote.
        None => message.to_owned(),
    };
    Problem::invalid_at(&pointer, detail)
}

/// A field's name as a step of a JSON pointer; a very long name is cut.
fn escaped(name: &str) -> String {
    let cut: String = name.chars().take(NAME_CHARACTERS_MAX).collect();
    cut.replace('~', "~0").replace('/', "~1")
}

/// What serde expects, a Rust type or plain words, in plain words.
fn words(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0 on",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        _ if expected.starts_with("struct ") => "an object",
        words => words,
    }
}
