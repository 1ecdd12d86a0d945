//! The responses that the OpenAPI document promises for each operation, for comparison with the service.

use crate::schema;
use http::Method;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// The committed document.
pub static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    schema::resolved(&serde_json::from_str(&cuckood::http::openapi::served(true)).unwrap())
});

/// All operations.
pub static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().iter();
        methods.map(move |(method, operation)| Operation::new(path, method, operation))
    });
    operations.collect()
});

/// One operation.
#[derive(Debug)]
pub struct Operation {
    pub id: String,
    pub method: Method,
    /// With parameters in braces.
    pub path: String,
    pub takes_body: bool,
    /// The documented statuses, each with its problem codes.
    pub responses: BTreeMap<u16, BTreeSet<String>>,
    /// The JSON schema of each status, problems included.
    schemas: BTreeMap<u16, &'static Value>,
}

impl Operation {
    fn new(path: &str, method: &str, operation: &'static Value) -> Self {
        let responses = operation["responses"].as_object().unwrap().iter();
        let schemas = responses.clone().filter_map(|(status, response)| {
            let content = response.get("content")?.as_object()?;
            let (_, content) = content
                .iter()
                .find(|(media_type, _)| media_type.ends_with("json"))?;
            Some((status.parse().unwrap(), &content["schema"]))
        });
        Self {
            id: operation["operationId"].as_str().unwrap().to_owned(),
            method: method.to_ascii_uppercase().parse().unwrap(),
            path: path.to_owned(),
            takes_body: operation.get("requestBody").is_some(),
            responses: responses
                .map(|(status, response)| {
                    (
                        status.parse().unwrap(),
                        codes(response["description"].as_str().unwrap()),
                    )
                })
                .collect(),
            schemas: schemas.collect(),
        }
    }

    /// Returns the deviation of a response's JSON from its schema, if any.
    pub fn fault(&self, status: u16, body: &[u8]) -> Option<String> {
        let schema = self.schemas.get(&status)?;
        schema::fault(&serde_json::from_slice(body).unwrap(), schema, &DOCUMENT)
    }

    /// The operation that this request is for, if it is for one.
    pub fn of(method: &Method, path: &str) -> Option<&'static Operation> {
        let path: Vec<&str> = path.split('/').collect();
        OPERATIONS.iter().find(|operation| {
            let template: Vec<&str> = operation.path.split('/').collect();
            let same =
                |(template, part): (&&str, &&str)| template == part || template.starts_with('{');
            operation.method == *method
                && template.len() == path.len()
                && template.iter().zip(&path).all(same)
        })
    }

    /// Every problem that is promised, with its status.
    pub fn problems(&self) -> impl Iterator<Item = (u16, &str)> {
        self.responses
            .iter()
            .flat_map(|(status, codes)| codes.iter().map(|code| (*status, code.as_str())))
    }
}

/// The codes in a description: they are in backticks, as other words are.
fn codes(description: &str) -> BTreeSet<String> {
    let known = DOCUMENT["components"]["schemas"]["ProblemCode"]["enum"]
        .as_array()
        .unwrap();
    let quoted = description.split('`').skip(1).step_by(2);
    quoted
        .filter(|text| known.iter().any(|code| code == text))
        .map(str::to_owned)
        .collect()
}
