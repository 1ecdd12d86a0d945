//! A start tells how far it is, without a line for each of many filters.

use crate::program;
use crate::service::Service;
use serde_json::json;

#[test]
fn a_start_with_many_filters_tells_little() {
    const CAMPAIGNS: usize = 300;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    for number in 0..CAMPAIGNS {
        let path = format!("/v1/campaigns/campaign-{number}");
        assert_eq!(client.put(&path, &json!({ "capacity": 100 })).unwrap().status, 201);
    }
    assert_eq!(service.terminate().code(), Some(0));

    let service = Service::start_ready(program(), &data, &[]);
    let output = service.output().clone();
    assert_eq!(service.terminate().code(), Some(0));
    let told = output.whole().iter().filter(|line| line.contains("recovering")).count();
    assert!(told > 0, "nothing was told");
    assert!(told < CAMPAIGNS / 3, "{told} lines of progress");
}
