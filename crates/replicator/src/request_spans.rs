//! Spans of a traced run's requests.

use std::sync::Arc;

use turnwise_outbound::{Ended, Exchange, observed};
use turnwise_worker::{RunSpans, SpanKind, SpanValue};

/// Runs a replication whose requests become spans below `run`, if it is traced.
pub(crate) async fn traced<T>(run: Option<&RunSpans>, replication: impl Future<Output = T>) -> T {
    let observer = run.cloned().map(|run| {
        let began = move || {
            let span = run.child(SpanKind::Client)?;
            let ended = move |Exchange { method, about, status, failed }: Exchange| {
                let mut attributes = vec![("http.request.method", SpanValue::copied(method.as_str()))];
                if let Some(status) = status {
                    attributes.push(("http.response.status_code", SpanValue::Number(status.into())));
                }
                // A target that has no checkpoint is no failure, and the log shows the texts of errors.
                let error = match status {
                    None if failed => Some("no response".to_owned()),
                    Some(status) if failed && status != 404 => Some(status.to_string()),
                    _ => None,
                };
                span.end(format!("{method} {about}"), attributes, error);
            };
            Some(Box::new(ended) as Ended)
        };
        Arc::new(began) as turnwise_outbound::Observer
    });
    observed(observer, replication).await
}
