//! Spans of requests, in traced runs. A run is one task, so its requests find the run's spans in the task.

use http::Method;
use tokio::task_local;
use turnwise_worker::{RunSpans, SpanKind};

use super::Answer;
use crate::error::Error;

task_local! {
    /// The spans below the run that this task is.
    static RUN: RunSpans;
}

/// Runs a replication whose requests become spans below `run`, if it is traced.
pub(crate) async fn traced<T>(run: Option<&RunSpans>, replication: impl Future<Output = T>) -> T {
    match run {
        None => replication.await,
        Some(run) => RUN.scope(run.clone(), replication).await,
    }
}

/// Sends a request, and records its span from its beginning to the head of its response.
pub(super) async fn of_request(
    method: &Method,
    path: &str,
    request: impl Future<Output = Result<Answer, Error>>,
) -> Result<Answer, Error> {
    let Some(span) = RUN.try_with(|run| run.child(SpanKind::Client)).ok().flatten() else {
        return request.await;
    };
    let answer = request.await;
    let status = match &answer {
        Ok(answer) => Some(answer.response.status().as_u16()),
        Err(error) => error.status(),
    };
    let mut attributes = vec![("http.request.method", turnwise_worker::SpanValue::copied(method.as_str()))];
    if let Some(status) = status {
        attributes.push(("http.response.status_code", turnwise_worker::SpanValue::Number(status.into())));
    }
    // A target that has no checkpoint is no failure, and the log shows the texts of errors.
    let error = match (&answer, status) {
        (Err(_), None) => Some("no response".to_owned()),
        (Err(_), Some(status)) if status != 404 => Some(status.to_string()),
        _ => None,
    };
    span.end(format!("{method} {}", name(path)), attributes, error);
    answer
}

/// What a request is about, without ids and parameters, which may be secret: `_changes`, `_bulk_docs`, or `document`.
fn name(path: &str) -> &str {
    let first = path.split(['?', '/']).next().unwrap_or_default();
    match first {
        "" => "database",
        first if first.starts_with('_') => first,
        _ => "document",
    }
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn the_name_of_a_span_has_no_id_and_no_parameter() {
        for (path, expected) in [
            ("", "database"),
            ("?a=secret", "database"),
            ("_changes?feed=longpoll&filter=secret", "_changes"),
            ("_local/4711", "_local"),
            ("a%20secret?revs=true", "document"),
            ("doc/attachment", "document"),
        ] {
            assert_eq!(name(path), expected, "{path}");
        }
    }
}
