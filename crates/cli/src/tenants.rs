//! `turnwise tenants`: the tenants, their shares and their run time.

use indicatif::HumanCount;
use turnwise_client::{ListTenants, Tenant, TenantOrder};

use crate::Failure;
use crate::table::PagesArgs;
use crate::units::ago;

#[derive(clap::Args)]
#[command(after_help = "\
DEFICIT is the run time by which the tenant is below its share; a negative value is a surplus. USED is the tenant's recent run time. \
SERVED is its total run time since the server last removed the tenant's record. OLDEST is how long its oldest pending job has waited.

Examples:
  turnwise tenants --type mail --sort deficit --limit 10
  turnwise tenants --json | jq -r '.[] | select(.pending > 1000) | .tenant'")]
pub(crate) struct Args {
    /// Only tenants with jobs of this type, and only those jobs
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Sort by name, deficit, used, served or running. Every order except name shows at most 1,000 tenants
    #[arg(long, value_name = "BY", value_parser = parse_order, default_value = "name")]
    sort: TenantOrder,
    #[command(flatten)]
    rows: PagesArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let Args { job_type, sort, rows } = args;
    let tenants = rows.server.client()?.tenants(ListTenants { job_type, order: sort, page: rows.page() });
    let more = "There may be more tenants: raise --limit, or select with --type.";
    rows.print(tenants, "tenants", HEAD, row, more).await
}

/// The columns of a table of tenants.
pub(crate) const HEAD: [&str; 9] =
    ["TYPE", "TENANT", "SHARES", "DEFICIT", "USED", "SERVED", "RUNNING", "WAITING", "OLDEST"];

/// The row of a tenant, with the columns of [`HEAD`].
pub(crate) fn row(tenant: &Tenant) -> [String; 9] {
    [
        tenant.job_type.clone(),
        tenant.tenant.clone(),
        tenant.shares.to_string(),
        tenant.deficit_us.map_or_else(|| "-".to_owned(), signed_time),
        run_time(tenant.usage_us),
        run_time(tenant.service_us),
        tenant.running.to_string(),
        HumanCount(tenant.pending).to_string(),
        tenant.oldest_claimable_us.map_or_else(|| "-".to_owned(), ago),
    ]
}

/// A deficit; a surplus is negative.
pub(crate) fn signed_time(us: i64) -> String {
    format!("{}{}", if us < 0 { "-" } else { "" }, run_time(us.unsigned_abs()))
}

/// A run time with about three digits: `12ms`, `1.5s`, `59s`, `12m`, `4.2h`, `17d`.
pub(crate) fn run_time(us: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
    let seconds = us as f64 / 1e6;
    let short = |number: f64, unit: &str| match number {
        // A number that rounds to 10.0 is shown as 10.
        0.0..9.95 => format!("{number:.1}{unit}"),
        _ => format!("{number:.0}{unit}"),
    };
    match us {
        0 => "0s".to_owned(),
        1..=999_499 => format!("{}ms", us.div_ceil(1_000)),
        999_500..=119_499_999 => short(seconds, "s"),
        119_500_000..=7_199_999_999 => short(seconds / 60.0, "m"),
        7_200_000_000..=172_799_999_999 => short(seconds / 3_600.0, "h"),
        _ => short(seconds / 86_400.0, "d"),
    }
}

/// `1 worker`, `2 workers`.
pub(crate) fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// The orders by their names here: those of the columns.
pub(crate) const ORDERS: [(&str, TenantOrder); 5] = [
    ("deficit", TenantOrder::Deficit),
    ("used", TenantOrder::Usage),
    ("served", TenantOrder::Service),
    ("running", TenantOrder::Running),
    ("name", TenantOrder::Name),
];

/// Parses an order, by its name here or in the API.
fn parse_order(text: &str) -> Result<TenantOrder, String> {
    let found = ORDERS.into_iter().find(|(name, order)| *name == text || order.as_str() == text);
    let (_, order) = found.ok_or("expected name, deficit, used, served or running")?;
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_times_are_short() {
        let shown: Vec<String> = [
            0,
            1,
            12_000,
            999_499,
            999_500,
            1_500_000,
            9_949_999,
            9_950_000,
            119_499_999,
            119_500_000,
            7_199_999_999,
            7_200_000_000,
            172_800_000_000,
            u64::MAX,
        ]
        .map(run_time)
        .into();
        assert_eq!(
            shown,
            [
                "0s",
                "1ms",
                "12ms",
                "1000ms",
                "1.0s",
                "1.5s",
                "9.9s",
                "10s",
                "119s",
                "2.0m",
                "120m",
                "2.0h",
                "2.0d",
                "213503982d"
            ]
        );
        assert_eq!(
            (signed_time(-1_500_000), signed_time(2_000_000)),
            ("-1.5s".to_owned(), "2.0s".to_owned())
        );
    }
}
