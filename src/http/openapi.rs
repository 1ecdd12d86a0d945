//! The OpenAPI document: generated from the routes, and completed with what holds for all of them.

use super::answer::problem::{Document, Fault};
use super::events::EventAnswer;
use super::imports::routes::FormatName;
use super::router::{self, SECURITY_SCHEME};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use utoipa::OpenApi;

/// The general part of the document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "cuckood",
        description = "Which users may still see which campaign, and which codes may still be used.\n\nAn item (a user \
            id or a code) is a string of 1 to 512 bytes. A command either answers 2xx with outcomes, or refuses as a \
            whole and changes nothing. Absent fields are omitted, never null; unknown fields are refused.\n\nRequests may be \
            compressed with gzip (of any number of members) or zstd (with windows of up to 8 MiB, as in RFC 9659); bytes \
            after the end are an error. Answers are compressed if the client accepts it.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers((url = "/", description = "This service")),
    components(schemas(Document<'_>, Fault, FormatName, EventAnswer)),
    tags(
        (name = "campaigns", description = "Sets of users who may see an ad"),
        (name = "users", description = "The users of a campaign"),
        (name = "eligibility", description = "Which of several campaigns a user may see"),
        (name = "line-ups", description = "What eligibility requests ask, kept by name"),
        (name = "coupons", description = "Pools of codes that can each be redeemed once"),
        (name = "codes", description = "The codes of a coupon"),
        (name = "redemptions", description = "Redeeming codes, exactly once"),
        (name = "imports", description = "Uploads of millions of items"),
        (name = "operations", description = "Running the service")
    )
)]
struct General;

/// The document as text: indented, with a final newline.
pub fn pretty() -> String {
    text(document())
}

/// The document as text, for a service that requires keys or for one that doesn't. Without keys, every operation is marked as
/// usable without one.
pub(super) fn served(asks_for_keys: bool) -> &'static str {
    static WITH_KEYS: LazyLock<String> = LazyLock::new(pretty);
    static WITHOUT: LazyLock<String> = LazyLock::new(|| text(without_keys()));
    if asks_for_keys { &WITH_KEYS } else { &WITHOUT }
}

fn text(document: Value) -> String {
    format!("{document:#}\n")
}

fn without_keys() -> Value {
    let mut document = document();
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (_, operation) in paths.flat_map(|(_, item)| item.as_object_mut().into_iter().flatten()) {
        if let Some(choices) = operation.get_mut("security").and_then(Value::as_array_mut) {
            choices.insert(0, json!({}));
        }
    }
    document
}

/// The document.
pub fn document() -> Value {
    let mut general = General::openapi();
    general.merge(router::routes().into_openapi());
    let mut document = serde_json::to_value(general).expect("a document is plain data");
    document["components"]["securitySchemes"] = json!({ SECURITY_SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key from the configuration. If none is configured, no key is required.",
    }});
    document["components"]["headers"] = json!({ POSITION: {
        "description": "Of one of several nodes: the position of the log that the answer reflects",
        "schema": { "type": "integer", "format": "int64", "minimum": 0 },
    }});
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        for (name, schema) in schemas {
            // In a merge-patch, null clears a field. Anywhere else null is refused, and never sent.
            if !name.ends_with("Patch") {
                forbid_null(schema);
            }
        }
    }
    if let Some(paths) = document["paths"].as_object_mut() {
        for (path, item) in paths {
            for (method, operation) in item.as_object_mut().into_iter().flatten() {
                complete(path, method, operation);
            }
        }
    }
    document
}

/// Replaces `T or null` with `T`.
fn forbid_null(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Array(types)) = fields.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    fields.insert("type".into(), only);
                }
            }
            if let Some(Value::Array(choices)) = fields.get_mut("oneOf") {
                choices.retain(|choice| choice["type"] != "null");
                if let [Value::Object(only)] = choices.as_slice() {
                    let only = only.clone();
                    fields.remove("oneOf");
                    fields.extend(only);
                }
            }
            fields.values_mut().for_each(forbid_null);
        }
        Value::Array(values) => values.iter_mut().for_each(forbid_null),
        _ => {}
    }
}

/// Adds the parameters and responses that follow from an operation's kind.
fn complete(path: &str, method: &str, operation: &mut Value) {
    let is_upload = is_upload(path, method);
    let scope = operation["security"][0][SECURITY_SCHEME][0].as_str().unwrap_or_default().to_owned();
    let takes_key = is_write(path, method, &scope)
        && path.contains('{')
        && !is_upload
        && !path.starts_with("/v1/imports/");

    // Not by index, which would insert a null where there are none.
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        forbid_null(&mut parameter["schema"]);
    }
    for name in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
        push(&mut operation["parameters"], path_parameter(path, name));
    }
    if path.starts_with("/v1/") && !is_write(path, method, &scope) {
        position_parameters().into_iter().for_each(|parameter| push(&mut operation["parameters"], parameter));
    }
    if takes_key {
        push(
            &mut operation["parameters"],
            json!({
                "name": "Idempotency-Key",
                "in": "header",
                "required": false,
                "description": "Repeating a request with the same key has no further effect and returns the same answer.",
                "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]{1,255}$" },
            }),
        );
    }

    if limits_guesses(operation) {
        push(&mut operation["parameters"], client_parameter());
    }

    for (status, description) in general_problems(path, method, &scope, takes_key, operation) {
        promise(&mut operation["responses"], status, description);
    }
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        finish(path, status, takes_key, response);
    }
}

/// Whether an end user may use an operation only until too many codes were invalid.
fn limits_guesses(operation: &Value) -> bool {
    let description = operation["responses"]["429"]["description"].as_str();
    description.is_some_and(|description| description.contains("`too-many-invalid-codes`"))
}

/// For whom codes are tried.
fn client_parameter() -> Value {
    json!({
        "name": "X-Client-Id",
        "in": "header",
        "required": false,
        "description": "The end user for whom codes are tried, if the key is one of `guessing.trusted_keys`. For other keys, or without it, \
            the limit on invalid codes counts those of the network address.",
        "schema": { "type": "string" },
    })
}

/// What a read may ask of one of several nodes.
fn position_parameters() -> [Value; 2] {
    let min = json!({
        "name": "X-Cuckood-Min-Position",
        "in": "header",
        "required": false,
        "description": "Wait until this node has applied this position of the log, as another answer's X-Cuckood-Position told it.",
        "schema": { "type": "integer", "format": "int64", "minimum": 0 },
    });
    let strong = json!({
        "name": "X-Cuckood-Consistency",
        "in": "header",
        "required": false,
        "description": "With `strong`, nothing is missing from the answer that any node has acknowledged before.",
        "schema": { "type": "string", "enum": ["strong"] },
    });
    [min, strong]
}

/// Whether an operation may change something. Every one does that is no GET and requires more than the scope `read`, except for looking
/// up codes.
pub(super) fn is_write(path: &str, method: &str, scope: &str) -> bool {
    let is_get = method.eq_ignore_ascii_case("get");
    matches!(scope, "write" | "redeem" | "admin") && !is_get && !path.ends_with("/codes/lookup")
}

/// The header of an answer with the position of the log that it reflects.
const POSITION: &str = "X-Cuckood-Position";

/// What a read of one of several nodes may be answered.
const OF_SEVERAL_NODES: &str = "`too-far-behind`, `no-quorum`: this node can't answer as asked; another may";

/// The problems that follow from an operation's kind, by status.
fn general_problems(
    path: &str,
    method: &str,
    scope: &str,
    takes_key: bool,
    operation: &Value,
) -> Vec<(&'static str, &'static str)> {
    let takes_body = operation.get("requestBody").is_some();
    let mut problems = match path {
        "/livez" | "/readyz" => Vec::new(),
        _ if !is_write(path, method, scope) => read_problems(path, takes_body),
        _ => vec![
            ("503", "`recovering`, `draining`, `overloaded`"),
            ("503", "`storage-failed`: the outcome of a write is unknown"),
            ("503", "`clock-unsure`: no writes until the machine's clock is right"),
            ("507", "`memory-limit`, `disk-full`"),
        ],
    };
    if !matches!(path, "/livez" | "/readyz") {
        problems.push((
            "403",
            "`foreign-origin`: without keys, for another `Host`, or a write from a page of another site",
        ));
    }
    if !path.starts_with("/v1/") {
        return problems;
    }
    match path.rsplit('/').next() {
        Some("{campaign}" | "{coupon}") if method == "put" => problems.push(("507", "`too-many-filters`")),
        Some("{line_up}") if method == "put" => problems.push(("507", "`too-many-line-ups`")),
        _ => {}
    }
    problems.extend([
        ("400", "`malformed-request`"),
        ("401", "`unauthenticated`"),
        ("403", "`forbidden`"),
        ("429", "`rate-limited`"),
        ("500", "`internal`"),
    ]);
    if takes_body {
        problems.extend(body_problems(is_upload(path, method)));
    }
    // An invalid import id is answered as an unknown one, with 404.
    let takes_name = ["{campaign}", "{coupon}", "{line_up}"].iter().any(|name| path.contains(name));
    if takes_name || takes_body || operation_has_query(operation) {
        problems.push(("422", "`invalid-request`, with a pointer to each fault"));
    }
    if takes_key {
        problems.push(("429", "`idempotency-full`"));
    }
    // A deletion is fully described by its path, so two different ones can't have one key.
    if takes_key && method != "delete" {
        problems.push(("422", "`idempotency-key-reused`"));
    }
    problems
}

/// The problems of an operation that changes nothing.
fn read_problems(path: &str, takes_body: bool) -> Vec<(&'static str, &'static str)> {
    let busy = if takes_body { "`recovering`, `overloaded`" } else { "`recovering`" };
    let of_several_nodes = path.starts_with("/v1/").then_some(("503", OF_SEVERAL_NODES));
    [("503", busy)].into_iter().chain(of_several_nodes).collect()
}

/// Whether an operation takes a body that is not JSON, and can have any length.
fn is_upload(path: &str, method: &str) -> bool {
    matches!((path.rsplit('/').next(), method), (Some("imports"), "post") | (Some("image"), "put"))
}

/// The problems of a body.
fn body_problems(is_upload: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_all =
        [("408", "`request-timeout`: the body did not arrive in time"), ("415", "`unsupported-media-type`")];
    let of_json = [("400", "`malformed-json`"), ("413", "`body-too-large`: the detail states the limit")];
    of_all.into_iter().chain(of_json.into_iter().filter(move |_| !is_upload))
}

/// Adds a meaning to a status.
fn promise(responses: &mut Value, status: &str, description: &str) {
    let known = responses[status]["description"].as_str();
    let description = known.map_or(description.to_owned(), |known| format!("{known}; {description}"));
    responses[status] = json!({ "description": description });
}

fn operation_has_query(operation: &Value) -> bool {
    operation["parameters"].as_array().into_iter().flatten().any(|parameter| parameter["in"] == "query")
}

/// A path parameter with its pattern.
fn path_parameter(path: &str, name: &str) -> Value {
    let (description, pattern) = match name {
        "id" if path.contains("/redemptions/") => ("The redemption's id", "^[0-9a-f]{32}$"),
        "id" => ("The import's id", "^[A-Za-z0-9._-]{1,128}$"),
        "line_up" => ("The name of the line-up", "^[a-z0-9][a-z0-9._-]{0,127}$"),
        _ => ("The name of the campaign or coupon", "^[a-z0-9][a-z0-9._-]{0,127}$"),
    };
    json!({
        "name": name,
        "in": "path",
        "required": true,
        "description": description,
        "schema": { "type": "string", "pattern": pattern },
    })
}

/// Adds the headers that go with a status, and the problem document of every failure.
fn finish(path: &str, status: &str, takes_key: bool, response: &mut Value) {
    let mut headers = response["headers"].as_object().cloned().unwrap_or_default();
    let text = |description: &str| json!({ "description": description, "schema": { "type": "string" } });
    headers.insert("X-Request-Id".into(), text("The request's id, or a generated one"));
    if takes_key && !matches!(status, "401" | "403" | "503") {
        headers.insert(
            "Idempotency-Replayed".into(),
            text("`true` if this is the answer to an earlier request"),
        );
    }
    if path.starts_with("/v1/") {
        headers.insert(POSITION.into(), json!({ "$ref": format!("#/components/headers/{POSITION}") }));
    }
    if matches!(status, "429" | "503") {
        let seconds = json!({ "type": "integer", "minimum": 1 });
        let description = "Seconds to wait before trying again; absent with `storage-failed`";
        headers.insert("Retry-After".into(), json!({ "description": description, "schema": seconds }));
    }
    if status >= "400" {
        response["content"] =
            json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } });
    }
    response["headers"] = Value::Object(headers);
}

fn push(list: &mut Value, value: Value) {
    match list {
        Value::Array(values) => values.push(value),
        other => *other = json!([value]),
    }
}

/// Lists every route with its method and the scope that it requires, if any.
pub(super) fn scopes(document: &Value) -> Vec<(String, String, Option<String>)> {
    let scope = |operation: &Value| operation["security"][0][SECURITY_SCHEME][0].as_str().map(str::to_owned);
    operations(document, scope)
}

/// Lists every route with its method and the name of the operation.
pub(super) fn names(document: &Value) -> Vec<(String, String, String)> {
    operations(document, |operation| operation["operationId"].as_str().unwrap_or_default().to_owned())
}

/// Lists every route with its method and the group of its latency histogram: its tag and the scope that it requires.
pub(super) fn groups(document: &Value) -> Vec<(String, String, String)> {
    operations(document, |operation| {
        let tag = operation["tags"][0].as_str().unwrap_or_default();
        match operation["security"][0][SECURITY_SCHEME][0].as_str() {
            Some(scope) => format!("{tag}-{scope}"),
            None => tag.to_owned(),
        }
    })
}

/// Lists every route with its method, and what `of` takes from its operation.
fn operations<T>(document: &Value, of: impl Fn(&Value) -> T) -> Vec<(String, String, T)> {
    let none = Map::new();
    let paths = document["paths"].as_object().unwrap_or(&none);
    let operations = paths.iter().flat_map(|(path, item)| {
        item.as_object().into_iter().flatten().map(move |(method, operation)| (path, method, operation))
    });
    operations
        .map(|(path, method, operation)| (path.clone(), method.to_ascii_uppercase(), of(operation)))
        .collect()
}
