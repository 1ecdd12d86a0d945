//! Reading query strings: unknown, repeated and odd parameters are refused, with a pointer.

use crate::http::answer::problem::Problem;
use axum::extract::{Query, Request};
use serde::de::DeserializeOwned;

/// The query's parameters.
///
/// # Errors
/// 422, with a pointer to the parameter where it is known.
pub(crate) fn parse<T: DeserializeOwned>(request: &Request) -> Result<T, Problem> {
    match Query::try_from_uri(request.uri()) {
        Ok(Query(parameters)) => Ok(parameters),
        Err(rejection) => Err(fault(&rejection.body_text())),
    }
}

/// The rejection's text is `…: parameter: what is wrong`, or names the parameter as a field.
fn fault(text: &str) -> Problem {
    let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    if let Some((parameter, detail)) = text.split_once(": ")
        && parameter.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    {
        return Problem::invalid_at(&format!("/{parameter}"), detail.to_owned());
    }
    // Serde's own words: duplicate field `limit`, unknown field `other`, missing field `reference`.
    let named = text.split_once(" field `").and_then(|(_, rest)| rest.split('`').next());
    let pointer = named.filter(|name| name.len() <= 64).map(|name| format!("/{name}")).unwrap_or_default();
    Problem::invalid_at(&pointer, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use serde::Deserialize;

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Parameters {
        limit: Option<u32>,
    }

    #[test]
    fn a_fault_names_its_parameter() {
        let parse = |query: &str| {
            let request = Request::get(format!("/x?{query}")).body(Body::empty()).unwrap();
            parse::<Parameters>(&request)
                .map(|parameters| parameters.limit)
                .map_err(|problem| problem.faults[0].pointer.clone())
        };
        assert_eq!(parse("limit=3"), Ok(Some(3)));
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("limit=x"), Err("/limit".into()));
        assert_eq!(parse("limit=1&limit=2").unwrap_err(), "/limit");
        assert!(parse("other=1").is_err());
    }
}
