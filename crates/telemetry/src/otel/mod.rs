//! Exports spans of traced jobs to a collector, with OTLP over gRPC.
//!
//! ```text
//!   add, run, take back ──▶ queue of at most 4,096 spans ──▶ batches ──▶ collector
//!                            full: the span is dropped        failed: tried again, then dropped
//! ```
//!
//! The server never waits for the collector. The log says once in a minute at most that spans were dropped, and why.

mod request;
mod settings;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::uri::PathAndQuery;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::client::Grpc;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use turnwise_worker::{Span, SpanSink, Spans};

use self::request::{ExportRequest, Origin};
pub use self::settings::{OtelSettings, Target, endpoint, headers};

/// The method of a collector.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Maximum number of spans that wait for their export, about 4 MB.
const QUEUE: usize = 4_096;
/// Maximum number of spans in one request.
const BATCH: usize = 512;
/// How long a span waits for others that share its request.
const LINGER: Duration = Duration::from_secs(1);
/// How often a batch is sent before it is dropped.
const ATTEMPTS: u32 = 4;
/// The pause after a first failed attempt; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server that stops tries to export its last spans.
const LAST_EXPORT: Duration = Duration::from_secs(2);
/// The interval between two lines about spans that were dropped.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// The longest part of a collector's error that is logged, in characters.
const MAX_ERROR_CHARS: usize = 300;

/// Takes spans for the export.
pub struct Queue {
    spans: mpsc::Sender<Span>,
    /// The bits of the sample ratio.
    ratio: AtomicU64,
    /// How many spans were dropped since the start.
    dropped: AtomicU64,
}

impl Queue {
    /// Applies `[otel] sample_ratio`.
    pub fn set_sample_ratio(&self, ratio: f64) {
        self.ratio.store(ratio.to_bits(), Relaxed);
    }

    fn drop_spans(&self, count: usize) {
        self.dropped.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Relaxed);
    }
}

impl SpanSink for Queue {
    fn record(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.drop_spans(1);
        }
    }

    fn sample_ratio(&self) -> f64 {
        f64::from_bits(self.ratio.load(Relaxed))
    }
}

/// The export of a running server. Dropping it ends it immediately.
pub struct Exporter {
    /// Takes the spans.
    pub queue: Arc<Queue>,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Exporter {
    /// Starts to export to `target`. Connects when there is something to export.
    ///
    /// # Errors
    /// Why the target cannot be used.
    pub fn start(target: &Target, node: &str, sample_ratio: f64) -> Result<Exporter, String> {
        let unusable = |error: tonic::transport::Error| {
            format!("[otel] endpoint {} cannot be used: {}", target.endpoint, innermost(&error))
        };
        let mut address = Endpoint::from_shared(target.endpoint.clone())
            .map_err(unusable)?
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(EXPORT_TIMEOUT);
        if target.endpoint.starts_with("https://") {
            address = address.tls_config(ClientTlsConfig::new().with_enabled_roots()).map_err(unusable)?;
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let queue = Arc::new(Queue {
            spans: sender,
            ratio: AtomicU64::new(sample_ratio.to_bits()),
            dropped: AtomicU64::new(0),
        });
        let stop = CancellationToken::new();
        let export = Export {
            collector: Grpc::new(address.connect_lazy()),
            origin: Origin::new(&target.service_name, node),
            target: target.clone(),
            queue: queue.clone(),
            reported: None,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(export.run(receiver, stop.clone())));
        tracing::info!("traces are exported to {}", target.endpoint);
        Ok(Exporter { queue, stop, task })
    }

    /// Where the spans of jobs go.
    pub fn spans(&self) -> Spans {
        Spans::to(self.queue.clone())
    }

    /// Exports what waits, within 2 s, and ends.
    pub async fn finish(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the export of traces has panicked");
        }
    }
}

/// The task that exports.
struct Export {
    collector: Grpc<Channel>,
    origin: Origin,
    target: Target,
    queue: Arc<Queue>,
    /// When it was last logged that spans were dropped, and how many there were.
    reported: Option<(Instant, u64)>,
}

impl Export {
    async fn run(mut self, mut spans: mpsc::Receiver<Span>, stop: CancellationToken) {
        let mut batch = Vec::new();
        loop {
            if stop.run_until_cancelled(spans.recv_many(&mut batch, BATCH)).await.is_none() {
                break;
            }
            let more = async {
                while batch.len() < BATCH {
                    let room = BATCH - batch.len();
                    spans.recv_many(&mut batch, room).await;
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(LINGER) => {}
                () = more => {}
            }
            let full = std::mem::take(&mut batch);
            let count = full.len();
            if stop.run_until_cancelled(self.export(full)).await.is_none() {
                self.queue.drop_spans(count);
            }
        }
        let last = async {
            while let Ok(span) = spans.try_recv() {
                batch.push(span);
                if batch.len() == BATCH {
                    self.export(std::mem::take(&mut batch)).await;
                }
            }
            self.export(std::mem::take(&mut batch)).await;
        };
        let _ = tokio::time::timeout(LAST_EXPORT, last).await;
    }

    /// Sends a batch, and drops it if that fails for good.
    async fn export(&mut self, spans: Vec<Span>) {
        let count = spans.len();
        if count == 0 {
            return;
        }
        let message = self.origin.request(spans);
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS {
            let error = match self.send(message.clone()).await {
                Ok(()) => return self.report(None),
                Err(error) => error,
            };
            if attempt == ATTEMPTS || !may_pass(error.code()) {
                self.queue.drop_spans(count);
                return self.report(Some(&error));
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    async fn send(&mut self, message: ExportRequest) -> Result<(), Status> {
        let mut request = Request::new(message);
        for (name, value) in &self.target.headers {
            request.metadata_mut().insert(name.clone(), value.clone());
        }
        self.collector.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = ProstCodec::<ExportRequest, ExportTraceServiceResponse>::default();
        self.collector.unary(request, PathAndQuery::from_static(EXPORT), codec).await.map(drop)
    }

    /// Logs that spans were dropped since the last line, but not in each case.
    fn report(&mut self, error: Option<&Status>) {
        let dropped = self.queue.dropped.load(Relaxed);
        let (last, known) = self.reported.map_or((None, 0), |(at, known)| (Some(at), known));
        if dropped == known || last.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return;
        }
        let endpoint = &self.target.endpoint;
        let why = match error {
            Some(error) => format!("traces cannot be exported: {}", shown(error)),
            None => "the collector was too slow".to_owned(),
        };
        tracing::warn!(endpoint, dropped, "spans were dropped, because {why}");
        self.reported = Some((Instant::now(), dropped));
    }
}

/// Whether a later attempt may succeed, as OTLP states it.
fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted
    )
}

/// An error in a line.
fn shown(error: &Status) -> String {
    let text = match std::error::Error::source(error) {
        Some(source) => format!("{} ({})", error.message(), innermost(source)),
        None => error.message().to_owned(),
    };
    let text: String = text.chars().take(MAX_ERROR_CHARS).collect();
    format!("{:?}: {text}", error.code())
}

/// The cause behind all others.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use turnwise_queue::trace::TraceContext;
    use turnwise_worker::SpanKind;

    use super::*;

    fn span(n: u64) -> Span {
        Span {
            context: TraceContext::root(|| n),
            parent: None,
            name: "run t".to_owned(),
            kind: SpanKind::Consumer,
            start_us: 1,
            end_us: 2,
            attributes: Vec::new(),
            error: None,
        }
    }

    /// What the log has.
    #[derive(Clone, Default)]
    struct Written(Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn spans_that_cannot_be_exported_are_dropped_from_a_bounded_queue_and_the_log_says_so_once() {
        let written = Written::default();
        let writer = {
            let written = written.clone();
            move || written.clone()
        };
        let _log = tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(writer).finish());
        // No collector listens at a port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let endpoint = format!("http://127.0.0.1:{port}");
        let settings = OtelSettings { endpoint: Some(endpoint.clone()), ..OtelSettings::default() };
        let target = Target::new(&settings, |_| None).unwrap().unwrap();
        let exporter = Exporter::start(&target, "a", 1.0).unwrap();
        let spans = QUEUE as u64 + 100;
        (0..spans).for_each(|n| exporter.queue.record(span(n)));
        assert_eq!(exporter.queue.dropped.load(Relaxed), 100);
        let log = || String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        while !log().contains("spans were dropped") {
            tokio::time::sleep(FIRST_PAUSE / 10).await;
        }
        assert!(exporter.queue.dropped.load(Relaxed) >= 100 + BATCH as u64);
        let lines = log();
        let lines: Vec<&str> = lines.lines().filter(|line| line.contains("spans were dropped")).collect();
        assert!(
            lines.len() == 1 && lines[0].contains(&endpoint) && lines[0].contains("refused"),
            "{lines:?}"
        );
        exporter.finish().await;
    }
}
