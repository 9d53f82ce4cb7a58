//! What a server checks and opens before its store.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use turnwise_catalogue::Catalogue;
use turnwise_command::Sandbox;
use turnwise_config::{Config, Prometheus};
use turnwise_telemetry::otel::Target;
use turnwise_web::access::{Audit, Jwt};
use turnwise_web::listener::serve;
use turnwise_web::names::Names;
use turnwise_web::tls::Tls;

use crate::common::Common;
use crate::http::Http;
use crate::job_types::command;
use crate::node;
use crate::server::ServerConfig;
use crate::services::Services;
use crate::start::{StartError, check_files};

/// Connections to the additional port of the metrics: one or two scrapers have one each.
const METRICS_CONNECTIONS: usize = 16;

/// Files that were read, and ports that were opened.
pub(crate) struct Checked {
    /// For commands, if this server runs them.
    pub sandbox: Option<Sandbox>,
    pub catalogue: Arc<Catalogue>,
    pub tls: Option<Tls>,
    pub audit: Option<Arc<Audit>>,
    pub jwt: Option<Arc<Jwt>>,
    /// Where traces go.
    pub traces: Option<Target>,
    /// The address of the listener.
    pub listen: SocketAddr,
    listener: Option<TcpListener>,
    metrics_listener: Option<TcpListener>,
}

impl Checked {
    /// Checks the settings, reads the files that they name, and opens the ports.
    pub async fn new(server: &ServerConfig) -> Result<Checked, StartError> {
        let ServerConfig { listen, name, advertise, config, guard, .. } = server;
        if let Some(name) = name {
            node::check_name(name).map_err(StartError::setting("the node's name "))?;
        }
        if let Some(url) = advertise {
            node::check_advertised(url).map_err(StartError::setting("the node's URL: "))?;
        }
        let sandbox = command::sandbox(&config.command, guard.as_ref()).map_err(StartError::Usage)?;
        let catalogue =
            turnwise_api::read_catalogue(config.queue.catalogue.as_deref()).map_err(StartError::Setting)?;
        check_files(config)?;
        let tls = Tls::new(config.tls.clone()).map_err(StartError::setting("TLS: "))?;
        let audit = audit(config)?;
        let jwt = Jwt::new(&config.jwt).map_err(StartError::setting("JSON Web Tokens: "))?.map(Arc::new);
        let traces = Target::new(&config.otel, |name| std::env::var(name).ok()).map_err(StartError::Usage)?;
        let no_listener = |cause| StartError::listen(*listen, &cause);
        let listener = TcpListener::bind(listen).await.map_err(no_listener)?;
        let listen = listener.local_addr().map_err(no_listener)?;
        let metrics_listener = metrics_listener(&config.prometheus).await?;
        Ok(Checked {
            sandbox,
            catalogue: Arc::new(catalogue),
            tls,
            audit,
            jwt,
            traces,
            listen,
            listener: Some(listener),
            metrics_listener,
        })
    }

    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Starts to answer requests.
    pub fn serve(
        &mut self,
        http: &Http,
        common: &Common,
        advertised: &str,
        services: &mut Services,
    ) -> Result<(), StartError> {
        if let Some(listener) = self.metrics_listener.take() {
            let no_listener = |cause| StartError::listen(self.listen, &cause);
            let listen = listener.local_addr().map_err(no_listener)?;
            let names = Names::new(listen, advertised, &common.config.listener_names);
            let (router, stop) =
                (turnwise_couch::metrics_router(http.couch.clone(), names), services.stop().clone());
            services.once("metrics port", serve(listener, None, METRICS_CONNECTIONS, router, stop));
        }
        if let Some(listener) = self.listener.take() {
            let (tls, stop) = (self.tls.clone(), services.stop().clone());
            let listening = serve(listener, tls, common.incoming, http.router(), stop);
            services.once("listener", listening);
        }
        if let Some(tls) = self.tls.clone() {
            services.add("certificate", tls, Tls::follow);
        }
        Ok(())
    }
}

fn audit(config: &Config) -> Result<Option<Arc<Audit>>, StartError> {
    let Some(file) = &config.audit_file else { return Ok(None) };
    let no_audit = |cause| StartError::Setting(format!("[audit] file {}: {cause}", file.display()));
    Ok(Some(Arc::new(Audit::open(file).map_err(no_audit)?)))
}

/// The additional port of the metrics, if there is one.
async fn metrics_listener(prometheus: &Prometheus) -> Result<Option<TcpListener>, StartError> {
    if !prometheus.additional_port {
        return Ok(None);
    }
    let listen = SocketAddr::new(prometheus.bind_address, prometheus.port);
    let listener = TcpListener::bind(listen).await.map_err(|cause| StartError::listen(listen, &cause))?;
    tracing::info!("metrics without authentication on http://{listen}");
    Ok(Some(listener))
}
