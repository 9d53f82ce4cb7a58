//! Requests that are valid or invalid, and that the schema agrees.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use turnwise_protocol::names::{JobId, JobType, Name};
use turnwise_protocol::*;
use utoipa::PartialSchema;

fn schema<T: PartialSchema>() -> Value {
    serde_json::to_value(T::schema()).unwrap()
}

#[test]
fn the_schema_has_the_bounds_of_the_code() {
    let bound = |schema: &Value, path: &str| schema.pointer(path).unwrap().as_u64().unwrap();
    assert_eq!(bound(&schema::<JobType>(), "/maxLength"), names::MAX_TYPE_BYTES as u64);
    assert_eq!(bound(&schema::<JobId>(), "/maxLength"), names::MAX_ID_BYTES as u64);
    assert_eq!(bound(&schema::<Name>(), "/maxLength"), names::MAX_NAME_BYTES as u64);
    for job in [schema::<AddJob>(), schema::<NewJob>()] {
        assert_eq!(bound(&job, "/properties/delay_ms/maximum"), MAX_DELAY_MS);
        assert_eq!(bound(&job, "/properties/not_before_us/maximum"), MAX_TIME_US as u64);
        assert_eq!(bound(&job, "/properties/max_attempts/maximum"), u64::from(MAX_ATTEMPTS));
        assert_eq!(bound(&job, "/properties/timeout_ms/maximum"), MAX_TIMEOUT_MS);
        assert_eq!(bound(&job, "/properties/heartbeat_timeout_ms/maximum"), MAX_TIMEOUT_MS);
        assert_eq!(bound(&job, "/properties/after/maxItems"), MAX_AFTER as u64);
        assert_eq!(job["additionalProperties"], json!(false));
    }
    assert_eq!(bound(&schema::<AddJobs>(), "/properties/jobs/maxItems"), MAX_ADDED as u64);
    let register = schema::<Register>();
    assert_eq!(bound(&register, "/properties/slots/maximum"), MAX_SLOTS as u64);
    assert_eq!(bound(&register, "/properties/name/maxLength"), names::MAX_WORKER_NAME_BYTES as u64);
    let accept = schema::<Accept>();
    assert_eq!(bound(&accept, "/properties/received/maximum"), MAX_CLAIM);
    assert_eq!(bound(&accept, "/properties/limit/maximum"), MAX_SLOTS as u64);
    assert_eq!(bound(&accept, "/properties/wait_ms/maximum"), MAX_WAIT_MS);
    assert_eq!(bound(&schema::<Fail>(), "/properties/reason/maxLength"), MAX_REASON_BYTES as u64);
}

#[test]
fn the_two_ways_to_name_a_new_job_differ_in_its_type_alone() {
    let (add, mut new) = (schema::<AddJob>(), schema::<NewJob>());
    // Only a job of many is named within its request.
    for own in ["type", "name"] {
        assert!(new["properties"].as_object_mut().unwrap().remove(own).is_some(), "{own}");
    }
    assert_eq!(add["properties"], new["properties"]);
    let add: AddJob = serde_json::from_value(json!({
        "id": "i", "tenant": "t", "user": "u", "options": {"o": 1}, "summary": {}, "delay_ms": 1, "max_attempts": 2,
        "timeout_ms": 3, "heartbeat_timeout_ms": 4, "after": [{"type": "mail", "id": "a", "accepted": ["completed", "failed"], "otherwise": "free"}], "reason": ["r"],
        "if_exists": "again"
    }))
    .unwrap();
    let mut expected = serde_json::to_value(&add).unwrap();
    expected["type"] = json!("mail");
    assert_eq!(serde_json::to_value(NewJob::new("mail", add)).unwrap(), expected);
}

#[test]
fn a_request_takes_what_it_leaves_out_from_another_one() {
    let read = |request: Value| serde_json::from_value::<AddJob>(request).unwrap();
    let own = json!({"id": "i", "tenant": "t", "max_attempts": 2, "after": [{"type": "mail", "id": "a"}]});
    let others = json!({"tenant": "o", "user": "u", "timeout_ms": 3, "after": [{"type": "mail", "id": "b"}],
        "reason": ["r"], "priority": 0, "if_exists": "again"});
    let expected = json!({"id": "i", "tenant": "t", "max_attempts": 2, "after": [{"type": "mail", "id": "a"}],
        "user": "u", "timeout_ms": 3, "reason": ["r"], "priority": 0, "if_exists": "again"});
    let text = |request: AddJob| serde_json::to_value(request).unwrap();
    assert_eq!(text(read(own.clone()).or(read(others))), text(read(expected)));
    assert_eq!(text(read(own.clone()).or(AddJob::default())), text(read(own)));
}

#[test]
fn what_is_unknown_or_shaped_otherwise_is_refused() {
    fn refused<T: for<'de> serde::Deserialize<'de>>(text: &str) -> String {
        match serde_json::from_str::<Object<T>>(text) {
            Ok(_) => panic!("taken: {text}"),
            Err(error) => error.to_string(),
        }
    }
    assert!(refused::<AddJob>(r#"{"ID": "x"}"#).contains("unknown field `ID`"));
    assert!(refused::<Release>("[4]").contains("expected an object"));
    assert!(refused::<AddJobs>(r#"{"jobs": [["mail"]]}"#).contains("expected an object"));
    assert!(refused::<AddJobs>(r#"{"jobs": [{"type": "mail", "x": 1}]}"#).contains("unknown field `x`"));
    refused::<AddJob>(r#"{"if_exists": {"keep": null}}"#);
    refused::<AddJob>(r#"{"if_exists": "Keep"}"#);
    refused::<AddJob>(r#"{"after": [["mail", "a"]]}"#);
    refused::<AddJob>(r#"{"after": [{"id": "a", "accepted": ["pending"]}]}"#);
    refused::<AddJob>(r#"{"after": [{"id": "a", "otherwise": "wait"}]}"#);
    refused::<AddJob>(r#"{"delay_ms": -1}"#);
    refused::<AddJob>(r#"{"delay_ms": "1"}"#);
    refused::<AddJob>(r#"{"max_attempts": 4294967296}"#);
    refused::<Accept>(r#"{"received": 18446744073709551616}"#);
    refused::<Finish>(r#"{"claim": true}"#);
    refused::<Update>(r#"{"info": 1}"#);
}

#[test]
fn whole_numbers_are_taken_however_they_are_written() {
    let accept =
        |text: &str| serde_json::from_str::<Accept>(text).map(|accept| (accept.received, accept.limit));
    assert_eq!(accept(r#"{"received": 4.0, "limit": 1e2}"#).unwrap(), (4, 100));
    assert_eq!(accept(r#"{"received": 9007199254740991}"#).unwrap(), (MAX_CLAIM, 1));
    for wrong in ["0.5", "-1", "-1.0", "1e300", "18446744073709551616", "null", "\"4\"", "[4]", "true"] {
        assert!(accept(&format!("{{\"received\": {wrong}}}")).is_err(), "{wrong}");
    }
    let job: AddJob = serde_json::from_str(r#"{"delay_ms": 1.0, "not_before_us": null}"#).unwrap();
    assert_eq!((job.delay_ms, job.not_before_us), (Some(1), None));
}

#[test]
fn what_a_job_carries_is_passed_on_as_it_was_written() {
    let Object(jobs) = serde_json::from_str::<Object<AddJobs>>(
        r#"{"jobs": [{"type": "mail", "options": {"b": 1.0, "a": [1e2]}, "summary": null}]}"#,
    )
    .unwrap();
    assert_eq!(jobs.jobs[0].options.as_ref().unwrap().get(), r#"{"b": 1.0, "a": [1e2]}"#);
    assert!(jobs.jobs[0].summary.is_none());
}
