//! The OpenAPI document: generated from the routes, and completed with what holds for all of them.

use super::answer::{Fault, problem::Document};
use super::call::Effect;
use super::events::EventAnswer;
use super::imports::lines::{Delimiter, Format};
use super::router::{self, Operation, Routes, SECURITY_SCHEME};
use http::Method;
use serde_json::{Value, json};
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
    components(schemas(Document<'_>, Fault, Delimiter, Format, EventAnswer)),
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
        for (name, schema) in schemas {
            // In a merge-patch, null clears a field. Anywhere else null is refused, and never sent.
            if !name.ends_with("Patch") {
                forbid_null(schema);
            }
        }
    }
    for declared in &operations {
        let method = declared.method.as_str().to_ascii_lowercase();
        let mut operation = document["paths"][&declared.path][&method].take();
        complete(declared, &mut operation);
        share(&mut operation, &mut document["components"]);
        document["paths"][&declared.path][&method] = operation;
    }
    document
}

/// Moves header parameters, headers and error responses, which many operations have in common, to the components.
fn share(operation: &mut Value, components: &mut Value) {
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
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
            let code = response["description"].as_str().unwrap_or_default().split('`').nth(1);
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
                let Some(Value::Array(choices)) = fields.get_mut(list) else { continue };
                choices.retain(|choice| choice != "null" && choice["type"] != "null");
                let [only] = choices.as_mut_slice() else { continue };
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
    parameters.iter_mut().for_each(|parameter| forbid_null(&mut parameter["schema"]));
    let in_path = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
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
        let text =
            "Repeating a request with the same key has no further effect and returns the same response.";
        let key = json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]{1,255}$" });
        parameters.push(header_parameter("Idempotency-Key", text, key));
    }
    // An end user may use the operation only until too many codes were invalid.
    let too_many = operation["responses"]["429"]["description"].as_str();
    if too_many.is_some_and(|description| description.contains("`too-many-invalid-codes`")) {
        let text = "The end user for whom codes are tried, if the key is one of `guessing.trusted_keys`. For other keys, or without it, the \
            limit on invalid codes counts those of the network address.";
        parameters.push(header_parameter("X-Client-Id", text, json!({ "type": "string" })));
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
    }
}

/// Returns the problems that follow from the declaration of an operation's route, by status.
fn general_problems(declared: &Operation) -> impl Iterator<Item = (&'static str, &'static str)> {
    let (path, takes_body) = (declared.path.as_str(), declared.takes_body);
    let is_of = |name: &str| path.contains(name);
    let effect = declared.access.map(|access| access.effect);
    let (is_read, is_once) = (declared.is_read(), effect == Some(Effect::WritesOnce));
    let is_put = declared.method == Method::PUT;
    let is_api = effect.is_some();
    let is_write = is_api && !is_read;
    let is_upload = takes_body && effect == Some(Effect::Writes);
    let problems = [
        (!is_write, "503", "`recovering`"),
        (is_read && takes_body, "503", "`overloaded`"),
        (is_read, "503", "`too-far-behind`, `no-quorum`: this node can't meet the condition; another may"),
        (is_write, "503", "`recovering`, `draining`, `overloaded`"),
        (is_write, "503", "`storage-failed`: the outcome of a write is unknown"),
        (is_write, "503", "`clock-unsure`: no writes until the machine's clock is right"),
        (is_write, "507", "`memory-limit`, `disk-full`, `log-full`"),
        (
            true,
            "403",
            "`foreign-origin`: without keys, for another `Host`, or a write from a page of another site",
        ),
        (is_api, "400", "`malformed-request`"),
        (is_api, "401", "`unauthenticated`"),
        (is_api, "403", "`forbidden`"),
        (is_api, "429", "`rate-limited`"),
        (is_api, "500", "`internal`"),
        (is_of("/redemptions/{id}"), "404", "`redemption-not-found`"),
        (is_of("/imports/{id}"), "404", "`import-not-found`"),
        (is_of("{line_up}") && !is_put, "404", "`line-up-not-found`"),
        (is_of("{campaign}") && !is_put, "404", "`campaign-not-found`"),
        (is_of("{coupon}") && !is_put, "404", "`coupon-not-found`"),
        (is_put && (path.ends_with("{campaign}") || path.ends_with("{coupon}")), "507", "`too-many-filters`"),
        (is_put && path.ends_with("{line_up}"), "507", "`too-many-line-ups`"),
        (takes_body && !is_upload, "400", "`malformed-json`"),
        (takes_body, "408", "`request-timeout`: the body did not arrive in time"),
        (takes_body && !is_upload, "413", "`body-too-large`: the detail states the limit"),
        (
            is_upload && path.ends_with("/imports"),
            "413",
            "`body-too-large`: the compressed body expands too much",
        ),
        (takes_body, "415", "`unsupported-media-type`"),
        (is_api, "422", "`invalid-request`, with a pointer to each fault"),
        (is_once, "429", "`idempotency-full`"),
        (is_once, "422", "`idempotency-key-reused`"),
    ];
    let is_probe = matches!(path, "/livez" | "/readyz");
    problems
        .into_iter()
        .filter(move |(holds, ..)| *holds && !is_probe)
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
        "line_up" => ("The name of the line-up", "^[a-z0-9][a-z0-9._-]{0,127}$"),
        _ => ("The name of the campaign or coupon", "^[a-z0-9][a-z0-9._-]{0,127}$"),
    };
    let schema = json!({ "type": "string", "pattern": pattern });
    json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema })
}

/// Adds the headers that go with a status, and the problem document of every failure.
fn finish(effect: Option<Effect>, status: &str, response: &mut Value) {
    let is_api = effect.is_some();
    let is_once = effect == Some(Effect::WritesOnce) && !matches!(status, "401" | "403" | "503");
    let (text, number) = (json!({ "type": "string" }), json!({ "type": "integer", "minimum": 1 }));
    let position = json!({ "type": "integer", "format": "int64", "minimum": 0 });
    let id = "The request's id if it has 1 to 128 letters, digits and `-_.:/+=@`; otherwise a generated one";
    let wait = "Seconds to wait before the next attempt; absent with `storage-failed`";
    for (holds, name, description, schema) in [
        (true, "X-Request-Id", id, text.clone()),
        (is_once, "Idempotency-Replayed", "`true` if this is the response to an earlier request", text),
        (is_api, "X-Cuckood-Position", "The position of the log that the response reflects", position),
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
