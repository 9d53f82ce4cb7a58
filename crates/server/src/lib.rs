//! The composition of all parts: one process.
//!
//! [`Server::start`] composes one process from the store, a worker with the replication handler, the doc processor and
//! the HTTP listener:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use turnwise_server::{Config, Server, ServerConfig};
//!
//! let config = ServerConfig {
//!     store: "embedded:./turnwise-data".parse()?,
//!     listen: "127.0.0.1:7984".parse()?,
//!     name: None,
//!     advertise: None,
//!     config: Config::default(),
//!     guard: None,
//!     insecure_no_auth: false,
//!     seal: turnwise_server::seal(None)?,
//! };
//! let server = Server::start(config).await?;
//! println!("http://{}", server.listen());
//! server.shutdown().await;
//! # Ok(()) }
//! ```

mod bulk;
mod checked;
mod common;
mod descriptors;
mod history;
mod http;
mod job_types;
mod live;
mod node;
pub mod offline;
mod open;
mod scaling;
mod server;
mod services;
mod start;

pub use node::{check_advertised as check_advertised_url, check_name as check_node_name};
pub use turnwise_command::Guard;
pub use turnwise_config::small_file::check_secret;
pub use turnwise_config::{self as config, Config};
pub use turnwise_queue::sealing::seal;
pub use turnwise_store::{InvalidUrl, Seal, StoreUrl};
pub use turnwise_telemetry::log;
/// The description of the `/v1` API as OpenAPI 3.1: the response of `/v1/openapi.json`, and the text of `docs/openapi.json`.
pub fn openapi() -> String {
    String::from_utf8_lossy(&turnwise_api::description()).into_owned()
}

pub use server::{RunningServer, Server, ServerConfig};
pub use start::{Refused, StartError};
