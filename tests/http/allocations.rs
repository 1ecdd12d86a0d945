//! Allocations of a request.

use crate::counting::allocations;
use crate::service::{Service, json};
use http::Method;

/// Allocations of a check of one user, between the parsed head and the response's head.
const CHECK_ALLOCATIONS_MAX: u64 = 17;

#[tokio::test]
async fn check_makes_few_allocations() {
    let service = Service::start().await;
    service
        .put(
            "/v1/campaigns/spring",
            serde_json::json!({"capacity": 1_000}),
        )
        .await
        .json(201);
    let body = serde_json::json!({"users": ["u1"]});
    let mut made = 0;
    // The first check fills what later ones reuse.
    for _ in 0..3 {
        let check = json(
            Method::POST,
            "/v1/campaigns/spring/users/check",
            &[("host", "localhost")],
            &body,
        );
        let before = allocations();
        let response = service.begin(check).await;
        made = allocations() - before;
        assert_eq!(response.status(), 200);
    }
    assert!(made <= CHECK_ALLOCATIONS_MAX, "{made} allocations");
}
