//! A collector of traces: it receives OTLP over gRPC, as OpenTelemetry's own collector does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Far more than an export takes on a busy machine: only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A span that was received.
#[derive(Debug, Clone)]
pub struct Collected {
    /// The id of its trace, in hexadecimal digits.
    pub trace_id: String,
    /// Its own id.
    pub span_id: String,
    /// Its parent's id; empty if it has none.
    pub parent: String,
    /// Its name.
    pub name: String,
    /// The kind's number in OTLP: 1 internal, 3 client, 4 producer, 5 consumer.
    pub kind: i32,
    /// Its attributes.
    pub attributes: BTreeMap<String, Value>,
    /// The message of its status, if that is an error.
    pub error: Option<String>,
    /// From its start to its end.
    pub nanos: std::ops::RangeInclusive<u64>,
    /// `service.instance.id`: the node that exported it.
    pub instance: String,
    /// The value of the header `api-key` of its export.
    pub api_key: Option<String>,
}

/// A running collector. It ends when it is dropped.
pub struct Collector {
    address: SocketAddr,
    spans: watch::Receiver<Vec<Collected>>,
    task: JoinHandle<()>,
}

impl Collector {
    /// Starts one on a free port.
    pub async fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, spans) = watch::channel(Vec::new());
        let service = TraceServiceServer::new(Receiver(Arc::new(sender)));
        let serving = Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener));
        let task = tokio::spawn(async move { serving.await.expect("the collector serves") });
        Collector { address, spans, task }
    }

    /// Its URL, for `[otel] endpoint`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans that it has received.
    pub fn spans(&self) -> Vec<Collected> {
        self.spans.borrow().clone()
    }

    /// Waits until the received spans satisfy the condition, and returns them.
    pub async fn until(&self, condition: impl Fn(&[Collected]) -> bool) -> Vec<Collected> {
        let mut spans = self.spans.clone();
        let found = tokio::time::timeout(PATIENCE, spans.wait_for(|spans| condition(spans))).await;
        match found {
            Ok(found) => found.expect("the collector runs").clone(),
            Err(_) => panic!("the spans never came; there are {:#?}", self.spans()),
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A collector for benchmarks: it counts the spans that it receives, and keeps none. It ends when it is dropped.
pub struct CountingCollector {
    address: SocketAddr,
    received: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl CountingCollector {
    /// Starts one on a free port.
    pub async fn start() -> CountingCollector {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let received = Arc::<AtomicU64>::default();
        let service = TraceServiceServer::new(Counter(received.clone()));
        let serving = Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener));
        let task = tokio::spawn(async move { serving.await.expect("the collector serves") });
        CountingCollector { address, received, task }
    }

    /// Its URL, for `[otel] endpoint`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many spans it has received.
    pub fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }
}

impl Drop for CountingCollector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Counter(Arc<AtomicU64>);

#[tonic::async_trait]
impl TraceService for Counter {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let of_resources = &request.get_ref().resource_spans;
        let spans = of_resources.iter().flat_map(|of_resource| &of_resource.scope_spans);
        let count: usize = spans.map(|of_scope| of_scope.spans.len()).sum();
        self.0.fetch_add(count as u64, Relaxed);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

struct Receiver(Arc<watch::Sender<Vec<Collected>>>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let api_key = request.metadata().get("api-key").and_then(|key| key.to_str().ok().map(str::to_owned));
        let mut new = Vec::new();
        for of_resource in request.into_inner().resource_spans {
            let resource =
                of_resource.resource.map(|resource| attributes(resource.attributes)).unwrap_or_default();
            let instance = resource.get("service.instance.id").and_then(Value::as_str).unwrap_or_default();
            let spans = of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans);
            new.extend(spans.map(|span| collected(span, instance, api_key.clone())));
        }
        self.0.send_modify(|spans| spans.extend(new));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(all: Vec<KeyValue>) -> BTreeMap<String, Value> {
    let value = |attribute: KeyValue| {
        let value = match attribute.value.and_then(|value| value.value) {
            Some(Any::StringValue(text)) => text.into(),
            Some(Any::IntValue(number)) => number.into(),
            other => panic!("no test knows this attribute: {} {other:?}", attribute.key),
        };
        (attribute.key, value)
    };
    all.into_iter().map(value).collect()
}

fn collected(span: Span, instance: &str, api_key: Option<String>) -> Collected {
    Collected {
        trace_id: hex(&span.trace_id),
        span_id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        name: span.name,
        kind: span.kind,
        attributes: attributes(span.attributes),
        error: span.status.filter(|status| status.code == 2).map(|status| status.message),
        nanos: span.start_time_unix_nano..=span.end_time_unix_nano,
        instance: instance.to_owned(),
        api_key,
    }
}
