//! Settings that have no effect because of another setting. Each causes a warning, and none is rejected.

use turnwise_outbound::AuthPlugin;
use turnwise_policy::fair_share::Fairness;

use super::{Config, cors};

/// The settings of the fairness `rfc`.
const OF_RFC: [&str; 5] =
    ["usage_coeff", "priority_coeff", "usage_interval", "priority_interval", "charge_interval"];

/// Why a setting of the file has no effect; `None` if it has one.
pub(super) fn missing(config: &Config, section: &str, key: &str) -> Option<String> {
    let replication = &config.replication;
    let why = match (section, key) {
        ("replicator", key) if OF_RFC.contains(&key) => (config.fair_share.fairness != Fairness::Rfc)
            .then_some("fairness is virtual_time, and only rfc uses it"),
        ("replicator", "checkpoint_interval") => {
            (!replication.use_checkpoints).then_some("use_checkpoints is false")
        }
        ("replicator", "session_refresh_interval_sec") => {
            (!replication.peers.auth_plugins.contains(&AuthPlugin::Session))
                .then_some("auth_plugins has no session")
        }
        ("replicator", "ssl_trusted_certificates_file" | "ssl_certificate_max_depth") => {
            (!config.connections.tls.verify).then_some("verify_ssl_certificates is false")
        }
        ("cors", _) if !config.cors.enabled => Some("[chttpd] enable_cors is false"),
        ("cors", "credentials") => (config.cors.credentials
            && config.cors.origins.iter().all(|origin| origin == cors::ANY))
        .then_some("origins names none, and * never has credentials"),
        ("prometheus", "bind_address" | "port") => {
            (!config.prometheus.additional_port).then_some("additional_port is false")
        }
        ("command", "max_jobs" | "max_output_bytes" | "user" | "allow_root") => {
            (!config.command.enabled).then_some("[command] enabled is false")
        }
        _ => None,
    };
    why.map(|why| format!("[{section}] {key} has no effect: {why}"))
}
