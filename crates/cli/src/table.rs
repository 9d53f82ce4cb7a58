//! Tables, cut to the width of the terminal.

use std::io::IsTerminal;

use serde::Serialize;
use serde::de::DeserializeOwned;
use terminal_size::{Width, terminal_size_of};
use turnwise_client::Pages;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::Failure;
use crate::printable::steers;
use crate::remote::ServerArgs;

/// The space between two columns.
const GAP: usize = 2;
/// The minimum width of a column that is narrowed.
const NARROWEST: usize = 6;

/// The maximum number of rows in one request.
const PAGE: usize = 1_000;

/// The options of a command that prints a list.
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Print a JSON array, with all fields
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The options of a command that prints a list page by page.
#[derive(clap::Args)]
pub(crate) struct PagesArgs {
    /// Show at most this many; 0 for all
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Print a JSON array, with all fields
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

impl PagesArgs {
    fn limit(&self) -> usize {
        if self.limit == 0 { usize::MAX } else { self.limit }
    }

    /// The number of rows to request at once.
    pub fn page(&self) -> Option<usize> {
        Some(self.limit().min(PAGE))
    }

    /// The rows to print, and whether there may be more.
    pub async fn collect<P: DeserializeOwned, T>(
        &self,
        pages: Pages<P, T>,
    ) -> Result<(Vec<T>, bool), Failure> {
        Ok(pages.collect(self.limit()).await?)
    }

    /// Prints the rows as [`list`] does. If there may be more, a message says how to see them.
    pub async fn print<P: DeserializeOwned, T: Serialize, const N: usize>(
        &self,
        pages: Pages<P, T>,
        things: &str,
        head: [&str; N],
        row: impl Fn(&T) -> [String; N],
        message: &str,
    ) -> Result<(), Failure> {
        let (rows, more) = self.collect(pages).await?;
        list(&rows, self.json, things, head, row)?;
        if more && !self.json {
            tell!("{message}");
        }
        Ok(())
    }
}

/// Prints a list: as a JSON array, as a table, or as a message that there are no such `things`.
pub(crate) fn list<T: Serialize, const N: usize>(
    items: &[T],
    json: bool,
    things: &str,
    head: [&str; N],
    row: impl Fn(&T) -> [String; N],
) -> Result<(), Failure> {
    if json {
        return crate::say_json(&items);
    }
    if items.is_empty() {
        say!("No {things}.");
        return Ok(());
    }
    print(head, &items.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// Prints a table. On a terminal, cells that do not fit are cut; elsewhere they are not.
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
    let head = head.map(str::to_owned);
    let cells: Vec<&[String]> =
        std::iter::once(&head[..]).chain(rows.iter().map(<[String; N]>::as_slice)).collect();
    columns(&cells, &[Align::Left; N], width)
}

/// The alignment of a cell in its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Rows of cells as lines. Columns are as wide as their cells need, or narrower to fit into `width`.
pub(crate) fn columns<R: AsRef<[String]>>(rows: &[R], align: &[Align], width: Option<usize>) -> Vec<String> {
    let mut widths = vec![0; align.len()];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = (*width).max(cell.width());
        }
    }
    if let Some(width) = width {
        narrow(&mut widths, width.saturating_sub(GAP * (align.len().saturating_sub(1))));
    }
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(&widths).zip(align);
        let padded: Vec<String> = cells
            .map(|((cell, width), align)| {
                let cell = cut(cell, *width);
                let pad = " ".repeat(width.saturating_sub(cell.width()));
                match align {
                    Align::Left => format!("{cell}{pad}"),
                    Align::Right => format!("{pad}{cell}"),
                }
            })
            .collect();
        padded.join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Narrows the widest column repeatedly until all columns fit.
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

/// A text on one line, at most this wide; `…` replaces what is cut.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let printable = text.chars().map(|char| if char.is_control() || steers(char) { ' ' } else { char });
    if text.width() <= width {
        return printable.collect();
    }
    let mut left = width.saturating_sub(1);
    let fitting = printable.take_while(|char| {
        let wide = char.width().unwrap_or(0);
        let fits = wide <= left;
        left = left.saturating_sub(wide);
        fits
    });
    fitting.chain(['…']).collect()
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
    fn a_cell_takes_the_room_that_its_characters_take() {
        let rows = [row(["漢字", "x", "y"]), row(["abcd", "z", "é"])];
        assert_eq!(lines(["ID", "S", "N"], &rows, None), ["ID    S  N", "漢字  x  y", "abcd  z  é"]);
        assert_eq!((cut("漢字漢字", 6), cut("漢字漢字", 5)), ("漢字…".to_owned(), "漢字…".to_owned()));
        let rows = [["N".to_owned()], ["100".to_owned()]];
        assert_eq!(columns(&rows, &[Align::Right], None), ["  N", "100"]);
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
