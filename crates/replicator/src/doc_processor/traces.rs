//! The traces of jobs that a write of documents adds. Whether a document needs a job is known deep inside the transaction, so the trace of the
//! request is in the task.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task_local;
use turnwise_queue::NewJob;
use turnwise_queue::trace::{TraceContext, Traceparent};
use turnwise_store::Runtime;
use turnwise_worker::{Producer, Spans};

use crate::spec::JOB_TYPE;

task_local! {
    static REQUEST: Arc<Request>;
}

/// A request that may add jobs.
struct Request {
    spans: Spans,
    sent: Traceparent,
    runtime: Arc<dyn Runtime>,
    /// The jobs that it adds, with their tenants: at most one for each document.
    added: Mutex<BTreeMap<String, (Producer, String)>>,
}

/// Runs transactions that may add replication jobs. Jobs that they add are traced as `sent` and the settings say.
pub async fn traced<T, E>(
    spans: &Spans,
    sent: Traceparent,
    runtime: &Arc<dyn Runtime>,
    write: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    if !spans.may_trace(sent) {
        return write.await;
    }
    let (spans, runtime) = (spans.clone(), runtime.clone());
    let request = Arc::new(Request { spans, sent, runtime, added: Mutex::default() });
    let written = REQUEST.scope(request.clone(), write).await?;
    let end_us = request.runtime.now_us();
    for (id, (producer, tenant)) in &*request.added.lock().unwrap_or_else(PoisonError::into_inner) {
        request.spans.added(producer, (JOB_TYPE, id, Some(tenant)), end_us);
    }
    Ok(written)
}

/// The context of a job that is being added. A transaction that runs again finds the one that it has chosen.
pub(super) fn of(new: &NewJob) -> Option<TraceContext> {
    let of_request = |request: &Arc<Request>| {
        let mut added = request.added.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((producer, _)) = added.get(&new.id) {
            return Some(producer.context);
        }
        let producer = request.spans.begin(request.sent, &*request.runtime)?;
        added.insert(new.id.clone(), (producer, new.tenant.clone()));
        Some(producer.context)
    };
    REQUEST.try_with(of_request).ok().flatten()
}
