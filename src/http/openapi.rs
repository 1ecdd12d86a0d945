//! The OpenAPI document: generated from the routes, and completed with what holds for all of them.

use super::call::Effect;
use super::events::EventResponse;
use super::imports::lines::{Delimiter, UploadFormat};
use super::response::{RequestFault, document::Document};
use super::router::{self, Operation, Routes, SECURITY_SCHEME};
use super::{events, redemptions};
use http::Method;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use utoipa::OpenApi;

/// The general part of the document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "cuckood",
        description = "Which users may still see which campaign, and which codes may still be used.\n\nAn item (a user \
            id or a code) is a string of 1 to 512 bytes. A command either returns 2xx with outcomes, or is rejected \
            as a whole and changes nothing. Absent fields are omitted, never null; unknown fields are rejected.\n\nRequests may be \
            compressed with gzip (of any number of members) or zstd (with windows of up to 8 MiB, as in RFC 9659); bytes \
            after the end are an error. Responses are compressed if the client accepts it.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers((url = "/", description = "This service")),
    components(schemas(Document<'_>, RequestFault, Delimiter, UploadFormat, EventResponse)),
    tags(
        (name = "campaigns", description = "Sets of users that may see an ad"),
        (name = "users", description = "The users of a campaign"),
        (name = "eligibility", description = "Which of several campaigns a user may see"),
        (name = "line-ups", description = "Named eligibility queries"),
        (name = "coupons", description = "Pools of codes that can each be redeemed once"),
        (name = "codes", description = "The codes of a coupon"),
        (name = "redemptions", description = "Redeeming codes, exactly once"),
        (name = "imports", description = "Uploads of millions of items"),
        (name = "operations", description = "Running the service")
    )
)]
struct General;

/// The document as text, indented and with a final newline, for a service that requires keys or for one that doesn't. Without keys, every
/// operation is marked as usable without one.
pub fn served(asks_for_keys: bool) -> String {
    let mut document = document();
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (_, operation) in paths.flat_map(|(_, item)| item.as_object_mut().into_iter().flatten()) {
        let choices = operation.get_mut("security").and_then(Value::as_array_mut);
        if let Some(choices) = choices.filter(|choices| !asks_for_keys && !choices.is_empty()) {
            choices.insert(0, json!({}));
        }
    }
    format!("{document:#}\n")
}

/// The document.
pub fn document() -> Value {
    let Routes { router, operations } = router::routes();
    let mut general = General::openapi();
    general.merge(router.into_openapi());
    let mut document = serde_json::to_value(general).expect("a document is plain data");
    document["components"]["securitySchemes"] = json!({ SECURITY_SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key from the configuration. If none is configured, no key is required.",
    }});
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        name_values(schemas);
        for (name, schema) in schemas {
            // In a merge-patch, null clears a field. Anywhere else null is refused, and never sent.
            if !name.ends_with("Patch") {
                forbid_null(schema);
            }
            describe_names(schema);
        }
    }
    for declared in &operations {
        let method = declared.method.as_str().to_ascii_lowercase();
        let mut operation = document["paths"][&declared.path][&method].take();
        complete(declared, &mut operation);
        make_body_optional(&mut operation);
        share(&mut operation, &mut document["components"]);
        document["paths"][&declared.path][&method] = operation;
    }
    document
}

/// Turns a body that may be null, as utoipa describes an optional one, into one that may be missing.
fn make_body_optional(operation: &mut Value) {
    let mut is_optional = false;
    let body = operation.get_mut("requestBody");
    let contents = body.and_then(|body| body["content"].as_object_mut());
    for (_, content) in contents.into_iter().flatten() {
        let choices = content["schema"]["oneOf"].as_array().cloned();
        let is_null = |choice: &Value| choice["type"] == "null";
        let Some(choices) = choices.filter(|choices| choices.iter().any(is_null)) else {
            continue;
        };
        if let Some(schema) = choices.into_iter().find(|choice| !is_null(choice)) {
            content["schema"] = schema;
            is_optional = true;
        }
    }
    if is_optional {
        operation["requestBody"]["required"] = false.into();
    }
}

/// The pattern of the names of campaigns, coupons and line-ups.
const NAME_PATTERN: &str = "^[a-z0-9][a-z0-9._-]{0,127}$";

/// Fields with lists of names of campaigns.
const NAME_LISTS: [&str; 5] = ["campaigns", "eligible", "unknown", "inactive", "excluded"];

/// Adds the pattern of names to the lists of names.
fn describe_names(schema: &mut Value) {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (field, list) in fields.into_iter().flatten() {
        if NAME_LISTS.contains(&field.as_str()) && list["items"]["type"] == "string" {
            list["items"]["pattern"] = NAME_PATTERN.into();
        }
    }
}

/// Names the values of enums if a generator without scopes for constants, such as Go's, would use one of their names twice, or that of a
/// type.
fn name_values(schemas: &mut Map<String, Value>) {
    let mut uses: HashMap<String, u32> = HashMap::new();
    for (name, schema) in &*schemas {
        let names = enum_values(schema).map(pascal_case).chain([name.clone()]);
        names.for_each(|name| *uses.entry(name).or_default() += 1);
    }
    for (name, schema) in schemas {
        let is_usable = |value: &str| {
            let name = pascal_case(value);
            name.starts_with(|c: char| c.is_ascii_alphabetic()) && uses.get(&name) == Some(&1)
        };
        if !enum_values(schema).all(is_usable) {
            let names: Vec<String> = enum_values(schema)
                .map(|value| format!("{name}{}", pascal_case(value)))
                .collect();
            schema["x-enum-varnames"] = names.into();
        }
    }
}

fn enum_values(schema: &Value) -> impl Iterator<Item = &str> {
    schema["enum"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// Joins the words of a text, each with a capital letter in front.
fn pascal_case(text: &str) -> String {
    let mut name = String::new();
    for word in text.split(|c: char| !c.is_ascii_alphanumeric()) {
        let mut letters = word.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.extend(letters);
    }
    name
}

/// Moves header parameters, headers and error responses, which many operations have in common, to the components.
fn share(operation: &mut Value, components: &mut Value) {
    for parameter in operation
        .get_mut("parameters")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if parameter["in"] == "header" {
            let name = parameter["name"].as_str().unwrap_or_default().to_owned();
            refer(parameter, components, "parameters", &name);
        }
    }
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        for (name, header) in response["headers"].as_object_mut().into_iter().flatten() {
            refer(header, components, "headers", name);
        }
        if status.as_str() >= "400" {
            let code = response["description"]
                .as_str()
                .unwrap_or_default()
                .split('`')
                .nth(1);
            let name = format!("{status}-{}", code.unwrap_or("failure"));
            refer(response, components, "responses", &name);
        }
    }
}

/// Moves a value to the components of this kind, and refers to it. If another value has the name, a number is appended.
fn refer(value: &mut Value, components: &mut Value, kind: &str, name: &str) {
    let mut numbered = name.to_owned();
    for number in 2.. {
        let known = &mut components[kind][&numbered];
        if known.is_null() || known == value {
            *known = value.take();
            *value = json!({ "$ref": format!("#/components/{kind}/{numbered}") });
            return;
        }
        numbered = format!("{name}-{number}");
    }
}

/// Replaces `T or null` with `T`.
fn forbid_null(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for list in ["type", "oneOf"] {
                let Some(Value::Array(choices)) = fields.get_mut(list) else {
                    continue;
                };
                choices.retain(|choice| choice != "null" && choice["type"] != "null");
                let [only] = choices.as_mut_slice() else {
                    continue;
                };
                match only.take() {
                    Value::Object(only) => {
                        fields.remove(list);
                        fields.extend(only);
                    }
                    only => fields[list] = only,
                }
            }
            fields.values_mut().for_each(forbid_null);
        }
        Value::Array(values) => values.iter_mut().for_each(forbid_null),
        _ => {}
    }
}

/// Adds the parameters and responses that follow from the declaration of the operation's route.
fn complete(declared: &Operation, operation: &mut Value) {
    let path = declared.path.as_str();
    let effect = declared.access.map(|access| access.effect);
    let is_once = effect == Some(Effect::WritesOnce);
    let mut parameters = match operation.get_mut("parameters").map(Value::take) {
        Some(Value::Array(known)) => known,
        _ => Vec::new(),
    };
    parameters
        .iter_mut()
        .for_each(|parameter| forbid_null(&mut parameter["schema"]));
    let in_path = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    parameters.extend(in_path.map(|name| path_parameter(path, name)));
    if declared.is_read() {
        let position = json!({ "type": "integer", "format": "int64", "minimum": 0 });
        let text = "Wait until this node has applied this position of the log, as returned in another response's X-Cuckood-Position.";
        parameters.push(header_parameter("X-Cuckood-Min-Position", text, position));
        let text = "With `strong`, the response reflects everything that any node has acknowledged before.";
        let strong = json!({ "type": "string", "enum": ["strong"] });
        parameters.push(header_parameter("X-Cuckood-Consistency", text, strong));
    }
    if is_once {
        let text = "Repeating a request with the same key has no further effect and returns the same response.";
        let key = json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]{1,255}$" });
        parameters.push(header_parameter("Idempotency-Key", text, key));
    }
    // An end user may use the operation only until too many codes were invalid.
    let too_many = operation["responses"]["429"]["description"].as_str();
    if too_many.is_some_and(|description| description.contains("`too-many-invalid-codes`")) {
        let text = "The end user for whom codes are tried, if the key is one of `guessing.trusted_keys`. For other keys, or without it, the \
            limit on invalid codes counts those of the network address.";
        parameters.push(header_parameter(
            "X-Client-Id",
            text,
            json!({ "type": "string" }),
        ));
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    for (status, text) in general_problems(declared) {
        let response = &mut operation["responses"][status];
        let known = response["description"].as_str();
        let description = known.map_or(text.to_owned(), |known| format!("{known}; {text}"));
        *response = json!({ "description": description });
    }
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        finish(effect, status, response);
        let contents = response.get_mut("content").and_then(Value::as_object_mut);
        for (media_type, content) in contents.into_iter().flatten() {
            if let Some(example) = response_example(path, media_type) {
                content["example"] = example;
            }
        }
    }
    if path == "/v1/events" {
        let line = json!({ "$ref": "#/components/schemas/EventLine" });
        operation["responses"]["200"]["content"]["application/x-ndjson"]["schema"]["contentSchema"] =
            line;
    }
}

/// Returns the example of a response without a schema that has one; none of bytes.
fn response_example(path: &str, media_type: &str) -> Option<Value> {
    let text = match (path, media_type) {
        ("/openapi.json", "application/json") => return Some(json!({ "openapi": "3.1.0" })),
        ("/metrics", "text/plain" | "application/openmetrics-text") => {
            "# HELP cuckood_ready Whether reads are served.\n# TYPE cuckood_ready gauge\ncuckood_ready 1\n"
                .to_owned()
        }
        ("/v1/coupons/{coupon}/codes/generate", "text/csv") => "code\nSUMMER-K7Q2-9FXM\n".to_owned(),
        ("/v1/coupons/{coupon}/codes/generate", "application/x-ndjson") => {
            "{\"code\":\"SUMMER-K7Q2-9FXM\"}\n".to_owned()
        }
        ("/v1/coupons/{coupon}/redemptions", "text/csv") => {
            let id = "0f5e3c2b9a7d4f1e8c6b5a4938271605";
            let at = "2026-12-01T00:00:00.000Z";
            format!("{}\n{id},redeemed,order-42,{at},,{at},,,\n", redemptions::COLUMNS)
        }
        ("/v1/events", "text/csv") => {
            let empty = ",".repeat(events::COLUMNS.matches(',').count() - 4);
            format!(
                "{}\n4711,2026-12-01T00:00:00.000Z,shop,campaign.cleared,spring{empty}\n",
                events::COLUMNS
            )
        }
        ("/v1/events", "application/x-ndjson") => {
            let event = json!({
                "seq": 4711, "at": "2026-12-01T00:00:00.000Z", "key": "shop", "event": "users.added", "campaign": "spring",
                "added": 2
            });
            format!("{event}\n")
        }
        _ => return None,
    };
    Some(text.into())
}

/// Returns the statuses that an operation may respond with, according to the document.
pub(super) fn statuses(declared: &Operation) -> Vec<u16> {
    let general = general_problems(declared).filter_map(|(status, _)| status.parse().ok());
    declared.statuses.iter().copied().chain(general).collect()
}

/// Returns the problems that follow from the declaration of an operation's route, by status.
fn general_problems(declared: &Operation) -> impl Iterator<Item = (&'static str, &'static str)> {
    let path = declared.path.as_str();
    let takes_body = declared.takes_body;
    let is_of = |name: &str| path.contains(name);
    let effect = declared.access.map(|access| access.effect);
    let is_read = declared.is_read();
    let is_once = effect == Some(Effect::WritesOnce);
    let is_put = declared.method == Method::PUT;
    let is_api = effect.is_some();
    let is_probe = matches!(path, "/livez" | "/readyz");
    let is_write = is_api && !is_read;
    let is_upload = takes_body && effect == Some(Effect::Writes);
    let problems = [
        (!is_write, "503", "`recovering`"),
        (
            is_read && (is_api || path == "/metrics"),
            "503",
            "`overloaded`",
        ),
        (
            is_read,
            "503",
            "`too-far-behind`, `no-quorum`: this node can't meet the condition; another may",
        ),
        (is_write, "503", "`recovering`, `draining`, `overloaded`"),
        (
            is_write,
            "503",
            "`storage-failed`: the outcome of a write is unknown",
        ),
        (
            is_write,
            "503",
            "`clock-unsure`: no writes until the machine's clock is right",
        ),
        (
            is_put && (is_of("{campaign}") || is_of("{coupon}")),
            "503",
            "`not-enabled`: some nodes do not understand this yet",
        ),
        (is_write, "507", "`memory-limit`, `disk-full`, `log-full`"),
        (
            true,
            "403",
            "`foreign-origin`: without keys, for another `Host`, or a write from a page of another site",
        ),
        (is_api || is_probe, "400", "`malformed-request`"),
        (is_api, "401", "`unauthenticated`"),
        (is_api, "403", "`forbidden`"),
        (is_api, "429", "`rate-limited`"),
        (is_api, "500", "`internal`"),
        (is_of("/redemptions/{id}"), "404", "`redemption-not-found`"),
        (is_of("/imports/{id}"), "404", "`import-not-found`"),
        (is_of("{line_up}") && !is_put, "404", "`line-up-not-found`"),
        (
            is_of("{campaign}") && !is_put,
            "404",
            "`campaign-not-found`",
        ),
        (is_of("{coupon}") && !is_put, "404", "`coupon-not-found`"),
        (
            is_put && (path.ends_with("{campaign}") || path.ends_with("{coupon}")),
            "507",
            "`too-many-filters`",
        ),
        (
            is_put && path.ends_with("{line_up}"),
            "507",
            "`too-many-line-ups`",
        ),
        (takes_body && !is_upload, "400", "`malformed-json`"),
        (
            takes_body,
            "408",
            "`request-timeout`: the body did not arrive in time",
        ),
        (
            takes_body && !is_upload,
            "413",
            "`body-too-large`: the detail states the limit",
        ),
        (
            is_upload && path.ends_with("/imports"),
            "413",
            "`body-too-large`: the compressed body expands too much",
        ),
        (takes_body, "415", "`unsupported-media-type`"),
        (
            takes_body,
            "501",
            "`not-implemented`: the body has a transfer coding other than `chunked`",
        ),
        (
            is_api,
            "422",
            "`invalid-request`, with a pointer to each fault",
        ),
        (is_once, "429", "`idempotency-full`"),
        (is_once, "422", "`idempotency-key-reused`"),
    ];
    problems
        .into_iter()
        .filter(move |(holds, status, _)| *holds && (!is_probe || *status == "400"))
        .map(|(_, status, text)| (status, text))
}

fn header_parameter(name: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "in": "header", "required": false, "description": description, "schema": schema })
}

/// A path parameter with its pattern.
fn path_parameter(path: &str, name: &str) -> Value {
    let (description, pattern) = match name {
        "id" if path.contains("/redemptions/") => ("The redemption's id", "^[0-9a-f]{32}$"),
        "id" => ("The import's id", "^[A-Za-z0-9._-]{1,128}$"),
        "line_up" => ("The name of the line-up", NAME_PATTERN),
        _ => ("The name of the campaign or coupon", NAME_PATTERN),
    };
    let schema = json!({ "type": "string", "pattern": pattern });
    json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema })
}

/// Adds the headers that go with a status, and the problem document of every failure.
fn finish(effect: Option<Effect>, status: &str, response: &mut Value) {
    let is_api = effect.is_some();
    let is_once = effect == Some(Effect::WritesOnce) && !matches!(status, "401" | "403" | "503");
    let text = json!({ "type": "string" });
    let number = json!({ "type": "integer", "minimum": 1 });
    let position = json!({ "type": "integer", "format": "int64", "minimum": 0 });
    let id = "The request's id if it has 1 to 128 letters, digits and `-_.:/+=@`; otherwise a generated one";
    let wait = "Seconds to wait before the next attempt; absent with `storage-failed`";
    for (holds, name, description, schema) in [
        (true, "X-Request-Id", id, text.clone()),
        (
            is_once,
            "Idempotency-Replayed",
            "`true` if this is the response to an earlier request",
            text,
        ),
        (
            is_api && status != "401",
            "X-Cuckood-Position",
            "The position of the log that the response reflects",
            position,
        ),
        (matches!(status, "429" | "503"), "Retry-After", wait, number),
    ] {
        if holds {
            response["headers"][name] = json!({ "description": description, "schema": schema });
        }
    }
    if status >= "400" {
        let problem = json!({ "schema": { "$ref": "#/components/schemas/Problem" } });
        response["content"] = json!({ "application/problem+json": problem });
    }
}
