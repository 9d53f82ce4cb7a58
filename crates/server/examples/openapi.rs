//! Prints the description of the `/v1` API: `cargo run -p turnwise-server --example openapi > docs/openapi.json`.

fn main() {
    print!("{}", turnwise_server::openapi());
}
