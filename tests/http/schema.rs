//! Whether a JSON value is as a schema of the OpenAPI document wants it. It knows the part of JSON Schema (2020-12)
//! that the document uses, and fails on anything else: a validator for all of it takes longer to build than all tests.

use regex_lite::Regex;
use serde_json::Value;

/// Returns the violations of the schema, if any.
///
/// # Panics
/// On a keyword that it does not know.
pub fn fault(value: &Value, schema: &Value, document: &Value) -> Option<String> {
    let fields = schema.as_object().expect("a schema is an object");
    for (keyword, wanted) in fields {
        let number = || wanted.as_f64().expect("a limit is a number");
        let count = || wanted.as_u64().expect("a limit is a whole number") as usize;
        let pattern =
            || Regex::new(wanted.as_str().expect("a pattern is a string")).expect("a pattern");
        let mut inner = None;
        let is_fine = match keyword.as_str() {
            "description" | "title" | "example" | "default" => true,
            "x-enum-varnames" | "contentSchema" => true,
            "$ref" => {
                let pointer = wanted
                    .as_str()
                    .and_then(|reference| reference.strip_prefix('#'));
                let referred = document.pointer(pointer.expect("a reference into the document"));
                inner = fault(
                    value,
                    referred.expect("a reference leads somewhere"),
                    document,
                );
                inner.is_none()
            }
            "allOf" => {
                let mut parts = wanted.as_array().expect("parts are a list").iter();
                inner = parts.find_map(|part| fault(value, part, document));
                inner.is_none()
            }
            "type" => match wanted {
                Value::Array(names) => names.iter().any(|name| is_of_type(value, name)),
                name => is_of_type(value, name),
            },
            "enum" => wanted
                .as_array()
                .is_some_and(|choices| choices.contains(value)),
            "oneOf" => {
                let choices = wanted.as_array().expect("choices are a list").iter();
                choices
                    .filter(|choice| fault(value, choice, document).is_none())
                    .count()
                    == 1
            }
            "format" => has_format(value, wanted.as_str().expect("a format is a name")),
            "pattern" => value.as_str().is_none_or(|text| pattern().is_match(text)),
            "minLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() >= count()),
            "maxLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() <= count()),
            "minimum" => value.as_f64().is_none_or(|value| value >= number()),
            "maximum" => value.as_f64().is_none_or(|value| value <= number()),
            "minItems" => value.as_array().is_none_or(|list| list.len() >= count()),
            "maxItems" => value.as_array().is_none_or(|list| list.len() <= count()),
            "items" => {
                let mut items = value.as_array().into_iter().flatten();
                inner = items.find_map(|item| fault(item, wanted, document));
                inner.is_none()
            }
            "maxProperties" => value
                .as_object()
                .is_none_or(|object| object.len() <= count()),
            "propertyNames" => {
                let mut names = value
                    .as_object()
                    .into_iter()
                    .flat_map(|object| object.keys());
                inner = names.find_map(|name| fault(&Value::from(name.as_str()), wanted, document));
                inner.is_none()
            }
            "required" => {
                let mut names = wanted.as_array().expect("names are a list").iter();
                names.all(|name| {
                    !value.is_object() || value.get(name.as_str().expect("a name")).is_some()
                })
            }
            "properties" => {
                let mut properties = wanted.as_object().expect("properties have names").iter();
                inner =
                    properties.find_map(|(name, schema)| fault(value.get(name)?, schema, document));
                inner.is_none()
            }
            "additionalProperties" => {
                let known = fields.get("properties").and_then(Value::as_object);
                let is_known = |name: &String| known.is_some_and(|known| known.contains_key(name));
                let mut others = value
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter(|(name, _)| !is_known(name));
                match wanted {
                    Value::Bool(is_allowed) => *is_allowed || others.next().is_none(),
                    wanted => {
                        inner = others.find_map(|(_, value)| fault(value, wanted, document));
                        inner.is_none()
                    }
                }
            }
            keyword => panic!("what {keyword} means is not known here: {schema}"),
        };
        if !is_fine {
            return inner
                .or_else(|| Some(format!("{value} is not as {keyword} of {schema} wants it")));
        }
    }
    None
}

/// The document with its shared parameters, headers and responses in place of the references to them. References to schemas stay.
pub fn resolved(document: &Value) -> Value {
    fn resolve(value: &Value, document: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let reference = fields.get("$ref").and_then(Value::as_str);
                match reference.filter(|reference| !reference.starts_with("#/components/schemas/"))
                {
                    Some(reference) => {
                        let pointer = reference
                            .strip_prefix('#')
                            .expect("a reference into the document");
                        resolve(
                            document
                                .pointer(pointer)
                                .expect("a reference leads somewhere"),
                            document,
                        )
                    }
                    None => {
                        let field = |(name, field): (&String, &Value)| {
                            (name.clone(), resolve(field, document))
                        };
                        fields.iter().map(field).collect()
                    }
                }
            }
            Value::Array(values) => values
                .iter()
                .map(|value| resolve(value, document))
                .collect(),
            value => value.clone(),
        }
    }
    resolve(document, document)
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str().expect("a type has a name") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        name => panic!("there is no type {name}"),
    }
}

fn has_format(value: &Value, format: &str) -> bool {
    match format {
        "date-time" => value.as_str().is_none_or(|text| {
            let shape = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$";
            Regex::new(shape).unwrap().is_match(text)
        }),
        "date" => value
            .as_str()
            .is_none_or(|text| Regex::new(r"^\d{4}-\d\d-\d\d$").unwrap().is_match(text)),
        "int32" | "int64" | "uint64" | "double" | "float" | "binary" => true,
        format => panic!("there is no format {format}"),
    }
}

#[test]
fn schema_violations_are_reported() {
    let document =
        serde_json::json!({"name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}});
    let schema = serde_json::json!({
        "type": "object",
        "required": ["name"],
        "additionalProperties": false,
        "properties": {
            "name": {"$ref": "#/name"},
            "count": {"type": "integer", "minimum": 1},
            "list": {"type": "array", "items": {"enum": ["x"]}, "minItems": 1},
            "either": {"oneOf": [{"type": "string"}, {"type": "boolean"}]},
            "at": {"type": "string", "format": "date-time"},
            "labels": {
                "type": "object",
                "maxProperties": 2,
                "propertyNames": {"pattern": "^[a-z]+$"},
                "additionalProperties": {"type": "string"},
            },
        },
    });
    let is_fine = |value: Value| fault(&value, &schema, &document).is_none();
    assert!(is_fine(serde_json::json!({
        "name": "abc", "count": 1, "list": ["x"], "either": true, "labels": {"team": "shop"}, "at": "2026-12-01T00:00:00.5Z"
    })));
    for (field, value) in [
        ("name", serde_json::json!("abcd")),
        ("name", serde_json::json!("A")),
        ("name", serde_json::json!(1)),
        ("count", serde_json::json!(0)),
        ("count", serde_json::json!(1.5)),
        ("list", serde_json::json!([])),
        ("list", serde_json::json!(["y"])),
        ("either", serde_json::json!(1)),
        ("at", serde_json::json!("yesterday")),
        ("other", serde_json::json!(1)),
        ("labels", serde_json::json!({"Team": "shop"})),
        ("labels", serde_json::json!({"team": 1})),
        ("labels", serde_json::json!({"a": "", "b": "", "c": ""})),
    ] {
        let mut object = serde_json::json!({"name": "abc"});
        object[field] = value;
        assert!(!is_fine(object.clone()), "{object}");
    }
    assert!(!is_fine(serde_json::json!({})) && !is_fine(serde_json::json!([])));
}
