//! The OpenAPI document: the committed one is current, and suits client generators.

use crate::schema;
use cuckood::http::openapi;
use serde_json::{Value, json};
use std::collections::HashSet;

#[test]
fn committed_document_is_current() {
    let committed = include_str!("../../openapi/openapi.json");
    // Compared as wholes, so that a failure does not print both.
    assert!(
        committed == openapi::served(true),
        "openapi/openapi.json is stale: run `make openapi`"
    );
}

fn document() -> Value {
    schema::resolved(&serde_json::from_str(&openapi::served(true)).unwrap())
}

fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().iter();
            methods.map(move |(method, operation)| (format!("{method} {path}"), operation))
        })
}

/// Whether each success with a body shows one, unless that is bytes.
fn has_example(operation: &Value, document: &Value) -> bool {
    let responses = operation["responses"].as_object().unwrap().iter();
    let successes = responses.filter(|(status, _)| status.starts_with('2'));
    let contents = successes
        .filter_map(|(_, response)| response["content"].as_object())
        .flatten();
    let is_shown = |(media_type, content): (&String, &Value)| {
        let schema = content.pointer("/schema/$ref").and_then(Value::as_str);
        let schema = schema.and_then(|schema| document.pointer(&schema[1..]));
        let is_in_schema = schema.is_some_and(|schema| schema.get("example").is_some());
        is_in_schema || content.get("example").is_some() || media_type == "application/octet-stream"
    };
    contents.into_iter().all(is_shown)
}

#[test]
fn every_operation_is_complete() {
    let document = document();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut ids = HashSet::new();
    for (name, operation) in operations(&document) {
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap()),
            "{name}: its id is taken"
        );
        assert!(operation["summary"].is_string(), "{name} has no summary");
        assert!(
            operation["description"].is_string(),
            "{name} has no description"
        );
        assert!(
            has_example(operation, &document),
            "{name} has no example response"
        );
        let is_api = name.contains(" /v1/");
        assert_eq!(
            !operation["security"].as_array().unwrap().is_empty(),
            is_api,
            "{name}"
        );
        for (status, response) in operation["responses"].as_object().unwrap() {
            let is_problem = response["content"]["application/problem+json"]["schema"]["$ref"]
                == "#/components/schemas/Problem";
            assert_eq!(is_problem, status.as_str() >= "400", "{name} {status}");
        }
        let in_path = name.matches('{').count();
        let parameters = operation["parameters"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        assert_eq!(
            parameters.iter().filter(|p| p["in"] == "path").count(),
            in_path,
            "{name}"
        );
        for parameter in parameters.iter().filter(|p| p["in"] == "path") {
            assert!(
                parameter["schema"]["pattern"].is_string(),
                "{name}: {parameter}"
            );
        }
        if operation.get("requestBody").is_some() {
            let is_required = operation["operationId"] != "cancel_redemption";
            assert_eq!(operation["requestBody"]["required"], is_required, "{name}");
            for status in ["400", "415", "422"] {
                assert!(
                    operation["responses"].get(status).is_some(),
                    "{name} {status}"
                );
            }
            // An import or an image has no maximum length, but an import has a maximum expansion.
            assert_eq!(
                operation["responses"].get("413").is_none(),
                name.ends_with("/image"),
                "{name}"
            );
        }
    }
    assert!(ids.len() > 40, "{}", ids.len());
}

#[test]
fn references_resolve_and_types_are_explicit() {
    fn visit(value: &Value, document: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    let pointer = reference.strip_prefix('#').unwrap();
                    assert!(document.pointer(pointer).is_some(), "{reference}");
                }
                assert!(!fields.contains_key("anyOf"), "{value}");
                fields.values().for_each(|field| visit(field, document));
            }
            Value::Array(values) => values.iter().for_each(|value| visit(value, document)),
            _ => {}
        }
    }
    let document = serde_json::from_str(&openapi::served(true)).unwrap();
    visit(&document, &document);
}

/// What many operations have in common is written once.
#[test]
fn common_parts_are_references() {
    let document: Value = serde_json::from_str(&openapi::served(true)).unwrap();
    for (name, operation) in operations(&document) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            assert_eq!(
                response["$ref"].is_string(),
                status.as_str() >= "400",
                "{name} {status}"
            );
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert_ne!(parameter["in"], "header", "{name}");
        }
    }
    assert!(
        openapi::served(true).len() < 340_000,
        "{}",
        openapi::served(true).len()
    );
}

/// Generated constructors take fields by name, and call the value that they make by the name of its type.
#[test]
fn schema_never_has_field_of_same_name() {
    let document = document();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let fields = schema["properties"]
            .as_object()
            .into_iter()
            .flat_map(|fields| fields.keys());
        let same = fields
            .filter(|field| field.replace('_', "").eq_ignore_ascii_case(name))
            .collect::<Vec<_>>();
        assert!(same.is_empty(), "{name} has {same:?}");
    }
}

/// A generated call knows one media type, the first: that must not be one that settles how the body is read.
#[test]
fn generated_import_sends_every_format() {
    let document = document();
    let imports = operations(&document)
        .filter(|(_, operation)| operation["requestBody"]["content"]["text/csv"].is_object());
    let mut count = 0;
    for (name, operation) in imports {
        let first = operation["requestBody"]["content"]
            .as_object()
            .unwrap()
            .keys()
            .next()
            .unwrap();
        assert_eq!(first, "application/octet-stream", "{name}");
        let mut parameters = operation["parameters"].as_array().unwrap().iter();
        let format = parameters
            .find(|parameter| parameter["name"] == "format")
            .unwrap();
        assert_eq!(
            format["schema"]["$ref"], "#/components/schemas/ImportFormat",
            "{name}"
        );
        count += 1;
    }
    assert_eq!(count, 2);
}

/// Headers are documented where they have an effect.
#[test]
fn response_headers_are_documented() {
    let document = document();
    for (name, operation) in operations(&document) {
        let parameters = operation["parameters"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let takes = |header: &str| {
            parameters
                .iter()
                .any(|parameter| parameter["name"] == header)
        };
        let refusals = operation["responses"]["429"]["description"]
            .as_str()
            .unwrap_or_default();
        assert_eq!(
            takes("X-Client-Id"),
            refusals.contains("too-many-invalid-codes"),
            "{name}"
        );
        for (status, response) in operation["responses"].as_object().unwrap() {
            let tells_position = response["headers"].get("X-Cuckood-Position").is_some();
            assert_eq!(
                tells_position,
                name.contains(" /v1/") && status != "401",
                "{name}: {status}"
            );
        }
    }
    assert_eq!(
        document.pointer("/components/schemas/Layout/properties/bucket_size/enum"),
        Some(&json!([2, 4, 8]))
    );
}

/// Examples are checked against their own schemas, as a client's tests would.
#[test]
fn documented_examples_succeed() {
    let document = document();
    let mut checked = 0;
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let Some(example) = schema.get("example") else {
            continue;
        };
        assert_eq!(schema::fault(example, schema, &document), None, "{name}");
        checked += 1;
    }
    assert!(checked > 10);
}

/// Each component is referred to: linters report others.
#[test]
fn every_component_is_used() {
    fn collect(value: &Value, references: &mut HashSet<String>) {
        match value {
            Value::Object(fields) => {
                references.extend(
                    fields
                        .get("$ref")
                        .and_then(Value::as_str)
                        .map(str::to_owned),
                );
                fields.values().for_each(|field| collect(field, references));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, references)),
            _ => {}
        }
    }
    let document: Value = serde_json::from_str(&openapi::served(true)).unwrap();
    let mut references = HashSet::new();
    collect(&document, &mut references);
    for (kind, components) in document["components"].as_object().unwrap() {
        for name in components
            .as_object()
            .unwrap()
            .keys()
            .filter(|_| kind != "securitySchemes")
        {
            assert!(
                references.contains(&format!("#/components/{kind}/{name}")),
                "{kind}/{name} is not used"
            );
        }
    }
}

#[test]
fn every_operation_documents_client_error() {
    for (name, operation) in operations(&document()) {
        let statuses = operation["responses"].as_object().unwrap().keys();
        assert!(
            statuses.into_iter().any(|status| status.starts_with('4')),
            "{name}"
        );
    }
}

#[test]
fn lists_of_names_have_pattern() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut count = 0;
    for (schema, field) in [
        ("EligibilityRequest", "campaigns"),
        ("LineUpSpec", "campaigns"),
        ("LineUp", "campaigns"),
        ("Eligibility", "eligible"),
        ("Eligibility", "unknown"),
        ("Eligibility", "inactive"),
        ("Eligibility", "excluded"),
    ] {
        let pattern = &schemas[schema]["properties"][field]["items"]["pattern"];
        assert_eq!(pattern, "^[a-z0-9][a-z0-9._-]{0,127}$", "{schema}.{field}");
        count += 1;
    }
    let lists = schemas
        .values()
        .filter_map(|schema| schema["properties"].get("campaigns"));
    assert_eq!(
        lists
            .filter(|list| list["items"]["pattern"].is_string())
            .count(),
        3,
        "of {count}"
    );
}

/// The constant that a generator makes of an enum's value.
fn constant(value: &str) -> String {
    let words = value.split(|c: char| !c.is_ascii_alphanumeric());
    words
        .map(|word| [word[..1].to_ascii_uppercase(), word[1..].to_owned()].concat())
        .collect()
}

/// In Go, constants and types share one name space.
#[test]
fn constants_and_types_have_different_names() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut names: HashSet<String> = schemas.keys().cloned().collect();
    let mut named = 0;
    for (name, schema) in schemas {
        let Some(values) = schema["enum"].as_array() else {
            continue;
        };
        let constants: Vec<String> = match schema["x-enum-varnames"].as_array() {
            Some(constants) => {
                named += 1;
                assert_eq!(constants.len(), values.len(), "{name}");
                constants
                    .iter()
                    .map(|constant| constant.as_str().unwrap().to_owned())
                    .collect()
            }
            None => values
                .iter()
                .filter_map(Value::as_str)
                .map(constant)
                .collect(),
        };
        for constant in constants {
            assert!(
                constant.starts_with(|c: char| c.is_ascii_uppercase()),
                "{name}: {constant}"
            );
            assert!(
                constant.chars().all(|c| c.is_ascii_alphanumeric()),
                "{name}: {constant}"
            );
            assert!(
                names.insert(constant.clone()),
                "{name}: {constant} is taken"
            );
        }
    }
    assert!(named > 0);
}
