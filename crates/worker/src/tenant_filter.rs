//! Which tenants' jobs a worker may run.

use std::sync::Arc;

/// The tenants whose jobs a worker may run.
#[derive(Clone)]
pub struct TenantFilter {
    /// Workers with the same name have the same tenants.
    pub(crate) name: Arc<str>,
    permits: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

impl TenantFilter {
    /// The tenants for which `permits` is true. `name` must differ from the name of every other filter.
    pub fn new(name: &str, permits: impl Fn(&str) -> bool + Send + Sync + 'static) -> TenantFilter {
        TenantFilter { name: name.into(), permits: Arc::new(permits) }
    }

    pub(crate) fn permits(&self, tenant: &str) -> bool {
        (self.permits)(tenant)
    }
}
