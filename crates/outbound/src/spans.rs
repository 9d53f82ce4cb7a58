//! The observer of a job's requests, for traces. A run is one task, so its requests find the observer in the task.

use std::sync::Arc;

use http::Method;
use tokio::task_local;

use crate::answer::Answer;
use crate::error::Error;

/// A request, from its beginning to the head of its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The method.
    pub method: Method,
    /// What the request is about, without ids and parameters, which may be secret: `_changes`, `_bulk_docs`, or `document`.
    pub about: String,
    /// The status of the response, if there was one.
    pub status: Option<u16>,
    /// Whether it failed, with a status or without.
    pub failed: bool,
}

/// Called when a request has ended.
pub type Ended = Box<dyn FnOnce(Exchange) + Send>;
/// Called when a request begins. `None`: nobody wants to know its end.
pub type Observer = Arc<dyn Fn() -> Option<Ended> + Send + Sync>;

task_local! {
    static OBSERVER: Observer;
}

/// Runs a job, and calls `observer` for each of its requests.
pub async fn observed<T>(observer: Option<Observer>, job: impl Future<Output = T>) -> T {
    match observer {
        None => job.await,
        Some(observer) => OBSERVER.scope(observer, job).await,
    }
}

/// Sends a request, and calls the observer.
pub(crate) async fn of_request(
    method: &Method,
    path: &str,
    request: impl Future<Output = Result<Answer, Error>>,
) -> Result<Answer, Error> {
    let Some(ended) = OBSERVER.try_with(|began| began()).ok().flatten() else {
        return request.await;
    };
    let answer = request.await;
    let status = match &answer {
        Ok(answer) => Some(answer.response.status().as_u16()),
        Err(error) => error.status(),
    };
    ended(Exchange {
        method: method.clone(),
        about: about(path).to_owned(),
        status,
        failed: answer.is_err(),
    });
    answer
}

/// See [`Exchange::about`].
fn about(path: &str) -> &str {
    let first = path.split(['?', '/']).next().unwrap_or_default();
    match first {
        "" => "database",
        first if first.starts_with('_') => first,
        _ => "document",
    }
}

#[cfg(test)]
mod tests {
    use super::about;

    #[test]
    fn what_an_observer_is_told_has_no_id_and_no_parameter() {
        for (path, expected) in [
            ("", "database"),
            ("?a=secret", "database"),
            ("_changes?feed=longpoll&filter=secret", "_changes"),
            ("_local/4711", "_local"),
            ("a%20secret?revs=true", "document"),
            ("doc/attachment", "document"),
        ] {
            assert_eq!(about(path), expected, "{path}");
        }
    }
}
