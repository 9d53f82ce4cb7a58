//! Spans of traces: what a job went through, from its adding to the end of its last run.
//!
//! ```text
//!   add a job ──┬── a run, whose worker died: ended by the process that took the job back
//!               └── the next run ──┬── a request of the run
//!                                  └── the transaction that records its end
//! ```
//!
//! A span is recorded when it has ended, as a value. A [`SpanSink`] takes it; without a sink, nothing is recorded, and jobs only keep the
//! context that their client sent. Only jobs with a sampled context have spans.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use turnwise_queue::claims::Ending;
use turnwise_queue::trace::{TraceContext, Traceparent};
use turnwise_queue::workers::RunSummary;
use turnwise_queue::{Claim, Job};
use turnwise_store::Runtime;

use crate::metrics::RunResult;

/// The maximum number of spans below one run. A continuous replication sends requests for years.
pub const MAX_CHILDREN: u32 = 128;
/// The maximum length of the reason in a span, in bytes.
pub const MAX_REASON_BYTES: usize = 1_000;

/// What a span describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A step of this process.
    Internal,
    /// A request to another server.
    Client,
    /// A job was added.
    Producer,
    /// A job ran.
    Consumer,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpanValue {
    /// A text. Most are constants, which are not copied: a job may have hundreds of bytes of attributes.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

impl SpanValue {
    /// A copy of a text.
    pub fn copied(text: &str) -> SpanValue {
        SpanValue::Text(Cow::Owned(text.to_owned()))
    }
}

impl From<&'static str> for SpanValue {
    fn from(text: &'static str) -> Self {
        SpanValue::Text(Cow::Borrowed(text))
    }
}

impl From<String> for SpanValue {
    fn from(text: String) -> Self {
        SpanValue::Text(Cow::Owned(text))
    }
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Its trace and its id.
    pub context: TraceContext,
    /// The id of the span that caused it.
    pub parent: Option<[u8; 8]>,
    /// What happened, in a few words.
    pub name: String,
    /// What it describes.
    pub kind: SpanKind,
    /// When it began, in µs.
    pub start_us: i64,
    /// When it ended, in µs.
    pub end_us: i64,
    /// What it was about.
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// Why it failed, if it did: at most [`MAX_REASON_BYTES`], and without secrets.
    pub error: Option<String>,
}

/// Takes the spans that have ended.
pub trait SpanSink: Send + Sync {
    /// Takes a span. Must not wait.
    fn record(&self, span: Span);

    /// Which part of the jobs whose client sends no context is traced, from 0 to 1.
    fn sample_ratio(&self) -> f64;
}

/// Where spans go; by default nowhere. Cheap to clone.
#[derive(Clone, Default)]
pub struct Spans(Option<Arc<dyn SpanSink>>);

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "on" } else { "off" })
    }
}

impl Spans {
    /// Records spans there.
    pub fn to(sink: Arc<dyn SpanSink>) -> Spans {
        Spans(Some(sink))
    }

    /// Whether [`begin`](Self::begin) may decide to trace a job.
    pub fn may_trace(&self, sent: Traceparent) -> bool {
        match sent {
            Traceparent::Sampled(_) => true,
            Traceparent::NotSampled => false,
            Traceparent::Unknown => self.0.is_some(),
        }
    }

    /// Decides whether a job that is added now is traced. `sent` is the context of the request that adds it.
    pub fn begin(&self, sent: Traceparent, runtime: &dyn Runtime) -> Option<Producer> {
        let random = || runtime.random();
        let (context, parent) = match (&self.0, sent) {
            (_, Traceparent::NotSampled) | (None, Traceparent::Unknown) => return None,
            // Spans of the job's worker belong to the client's own span, since there is none in between.
            (None, Traceparent::Sampled(parent)) => (parent, None),
            (Some(_), Traceparent::Sampled(parent)) => (parent.with_span(random()), Some(parent.span_id)),
            (Some(sink), Traceparent::Unknown) => {
                // The upper 53 bits of a random number, as a number from 0 to 1.
                let drawn = (random() >> 11) as f64 / (1_u64 << 53) as f64;
                if drawn >= sink.sample_ratio() {
                    return None;
                }
                (TraceContext::root(random), None)
            }
        };
        Some(Producer { context, parent, start_us: runtime.now_us() })
    }

    /// Records that a job was added: its type, its id, and its tenant if that is known.
    pub fn added(
        &self,
        producer: &Producer,
        (job_type, id, tenant): (&str, &str, Option<&str>),
        end_us: i64,
    ) {
        let Some(sink) = &self.0 else { return };
        let Producer { context, parent, start_us } = *producer;
        let mut attributes = about(job_type, id);
        attributes.extend(tenant.map(|tenant| ("turnwise.tenant", SpanValue::copied(tenant))));
        attributes.push(("messaging.operation.name", "add".into()));
        attributes.push(("messaging.operation.type", "send".into()));
        let name = format!("add {job_type}");
        let kind = SpanKind::Producer;
        sink.record(Span { context, parent, name, kind, start_us, end_us, attributes, error: None });
    }

    /// The context that the worker of a claimed job gets: its run's, or without a sink the one that the job has.
    pub fn of_run(&self, job: &Job) -> Option<TraceContext> {
        let context = job.trace?;
        match (&self.0, job.claim()) {
            (Some(_), Some(claim)) => Some(context.of_run(claim)),
            _ => Some(context),
        }
    }

    /// The spans below a run of this job, if it is traced.
    pub(crate) fn run(&self, job: &Job, runtime: &Arc<dyn Runtime>) -> Option<RunSpans> {
        let (context, claim) = (self.of_run(job)?, job.claim()?);
        let run = RunSummary::of(job, claim, runtime.now_us());
        let (spans, runtime, worker) = (self.clone(), runtime.clone(), claim.worker.clone());
        Some(RunSpans(Arc::new(Inner { spans, runtime, context, worker, run, children: AtomicU32::new(0) })))
    }

    /// Records that a worker's run has ended, if it is traced.
    pub(crate) fn ended(
        &self,
        (job_type, worker): (&str, &str),
        run: &RunSummary,
        ended: &RunOutcome,
        end_us: i64,
        lost_children: u32,
    ) {
        let (Some(sink), Some(added)) = (&self.0, run.trace) else { return };
        let mut attributes = about(job_type, &run.id);
        attributes.extend([
            ("turnwise.tenant", SpanValue::copied(&run.tenant)),
            ("messaging.operation.name", "run".into()),
            ("messaging.operation.type", "process".into()),
            ("turnwise.worker", SpanValue::copied(worker)),
            ("turnwise.attempt", SpanValue::Number(run.attempt.into())),
            ("turnwise.outcome", ended.name.into()),
        ]);
        if lost_children > 0 {
            attributes.push(("turnwise.spans_left_out", SpanValue::Number(lost_children.into())));
        }
        sink.record(Span {
            context: added.of_run(&Claim { worker: worker.to_owned(), number: run.claim }),
            parent: Some(added.span_id),
            name: format!("run {job_type}"),
            kind: SpanKind::Consumer,
            start_us: run.started_us,
            end_us,
            attributes,
            error: ended.error.as_deref().map(bounded),
        });
    }

    /// Records the runs of a worker that this process has ended, because it removed the worker or took a job back.
    pub(crate) fn given_back(
        &self,
        job_type: &str,
        worker: &str,
        runs: &[RunSummary],
        ended: &RunOutcome,
        end_us: i64,
    ) {
        for run in runs {
            self.ended((job_type, worker), run, ended, end_us, 0);
        }
    }
}

/// The beginning of a text, up to [`MAX_REASON_BYTES`].
fn bounded(text: &str) -> String {
    let mut end = text.len().min(MAX_REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// The most attributes of a span about a job.
const MAX_ATTRIBUTES: usize = 11;

/// The attributes of every span about a job, by the semantic conventions for messaging where they fit.
fn about(job_type: &str, id: &str) -> Vec<(&'static str, SpanValue)> {
    let mut attributes = Vec::with_capacity(MAX_ATTRIBUTES);
    attributes.extend([
        ("messaging.system", "turnwise".into()),
        ("messaging.destination.name", SpanValue::copied(job_type)),
        ("messaging.message.id", SpanValue::copied(id)),
        ("turnwise.job.type", SpanValue::copied(job_type)),
    ]);
    attributes
}

/// The span of a job that is being added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Producer {
    /// What the job keeps.
    pub context: TraceContext,
    parent: Option<[u8; 8]>,
    start_us: i64,
}

/// How a run ended, in a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunOutcome {
    pub name: &'static str,
    pub error: Option<String>,
}

impl RunOutcome {
    pub const STOPPED: RunOutcome = RunOutcome { name: "stopped", error: None };

    /// Its worker is dead.
    pub fn lost(worker: &str) -> RunOutcome {
        RunOutcome { name: "lost", error: Some(format!("its worker {worker} was lost")) }
    }

    /// It has exceeded a timeout, and its worker lives.
    pub fn expired(over: &impl fmt::Display) -> RunOutcome {
        RunOutcome { name: "timed_out", error: Some(over.to_string()) }
    }

    /// Of a run whose handler ended it like this, with this result.
    pub fn of(ending: &Ending, result: RunResult) -> RunOutcome {
        let error = match ending {
            Ending::Failed(error) | Ending::Crashed { error, .. } => Some(error.to_string()),
            _ => None,
        };
        RunOutcome { name: result.name(), error }
    }
}

/// The spans below a run. Cheap to clone.
#[derive(Clone)]
pub struct RunSpans(Arc<Inner>);

struct Inner {
    spans: Spans,
    runtime: Arc<dyn Runtime>,
    context: TraceContext,
    worker: String,
    run: RunSummary,
    /// How many spans below it have begun.
    children: AtomicU32,
}

impl RunSpans {
    /// The context of the run, for what it calls.
    pub fn context(&self) -> TraceContext {
        self.0.context
    }

    /// Begins a span below the run; `None` if nothing records it, or if the run has [`MAX_CHILDREN`] already.
    pub fn child(&self, kind: SpanKind) -> Option<ChildSpan> {
        self.0.spans.0.as_ref()?;
        let n = self.0.children.fetch_update(Relaxed, Relaxed, |n| n.checked_add(1)).ok()?;
        (n < MAX_CHILDREN).then(|| ChildSpan {
            of: self.clone(),
            context: self.0.context.child(n),
            kind,
            start_us: self.0.runtime.now_us(),
        })
    }

    /// Records the end of the run.
    pub(crate) fn ended(&self, job_type: &str, ended: &RunOutcome) {
        let Inner { spans, runtime, worker, run, children, .. } = &*self.0;
        let left_out = children.load(Relaxed).saturating_sub(MAX_CHILDREN);
        spans.ended((job_type, worker.as_str()), run, ended, runtime.now_us(), left_out);
    }
}

/// A span below a run that has not ended. One that is dropped is not recorded.
pub struct ChildSpan {
    of: RunSpans,
    context: TraceContext,
    kind: SpanKind,
    start_us: i64,
}

impl ChildSpan {
    /// Ends the span, and records it. Neither the name nor the attributes nor the error may have a secret.
    pub fn end(self, name: String, attributes: Vec<(&'static str, SpanValue)>, error: Option<String>) {
        let ChildSpan { of, context, kind, start_us } = self;
        let Inner { spans: Spans(sink), runtime, context: run, .. } = &*of.0;
        let Some(sink) = sink else { return };
        let error = error.as_deref().map(bounded);
        let (parent, end_us) = (Some(run.span_id), runtime.now_us());
        sink.record(Span { context, parent, name, kind, start_us, end_us, attributes, error });
    }
}
