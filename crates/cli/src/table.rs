//! Tables on a terminal, as wide as it is.

use std::io::IsTerminal;

use terminal_size::{Width, terminal_size_of};

/// Between two columns.
const GAP: usize = 2;
/// A column is made no narrower than this.
const NARROWEST: usize = 6;

/// Prints a table. On a terminal, what does not fit is cut; everywhere else, nothing is.
pub(crate) fn print<const N: usize>(head: [&str; N], rows: &[[String; N]]) {
    let width = std::io::stdout()
        .is_terminal()
        .then(|| terminal_size_of(std::io::stdout()))
        .flatten()
        .map(|(Width(width), _)| usize::from(width));
    for line in lines(head, rows, width) {
        say!("{line}");
    }
}

fn lines<const N: usize>(head: [&str; N], rows: &[[String; N]], width: Option<usize>) -> Vec<String> {
    let mut widths = head.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    if let Some(width) = width {
        narrow(&mut widths, width.saturating_sub(GAP * (N - 1)));
    }
    let line = |cells: [&str; N]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{:<width$}", cut(cell, width))).collect();
        padded.join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    let rows = rows.iter().map(|row| line(std::array::from_fn(|n| row[n].as_str())));
    std::iter::once(line(head)).chain(rows).collect()
}

/// Takes from the widest column, again and again, until all of them fit.
fn narrow(widths: &mut [usize], room: usize) {
    loop {
        let all: usize = widths.iter().sum();
        let Some(widest) = widths.iter_mut().max() else { return };
        if all <= room || *widest <= NARROWEST {
            return;
        }
        *widest -= 1;
    }
}

/// A text on one line, at most this wide; `…` stands for what is cut.
fn cut(text: &str, width: usize) -> String {
    let printable = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    match text.chars().count() > width {
        true => printable.take(width.saturating_sub(1)).chain(['…']).collect(),
        false => printable.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 3]) -> [String; 3] {
        cells.map(str::to_owned)
    }

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [row(["a", "pending", "-"]), row(["bcd", "x", "é"])];
        assert_eq!(
            lines(["ID", "STATE", "N"], &rows, None),
            ["ID   STATE    N", "a    pending  -", "bcd  x        é"]
        );
    }

    #[test]
    fn the_widest_columns_give_way_on_a_narrow_terminal() {
        let rows =
            [row(["an-id-that-is-rather-long", "running", "a\nreason that is even longer than the id"])];
        for width in [120, 80, 40, 30, 24] {
            let lines = lines(["ID", "STATE", "REASON"], &rows, Some(width));
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:#?}");
            assert!(lines[1].contains("run"), "{width}: {lines:#?}");
        }
        assert_eq!(lines(["ID", "STATE", "REASON"], &rows, Some(30))[1], "an-id-tha…  running  a reason…");
    }
}
