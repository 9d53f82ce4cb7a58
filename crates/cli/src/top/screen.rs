//! A terminal that is drawn line by line. Only lines that have changed are written, so that nothing flickers. The terminal is restored
//! however the process ends, except by SIGKILL.

use std::io::{self, Write, stdout};
use std::sync::Once;
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
    EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use tokio::sync::mpsc;

use super::view::{Line, Size, Style};

/// The capacity of the channel for keys.
const KEYS: usize = 16;
/// How soon the thread that reads keys notices that the view is closed.
const POLL: Duration = Duration::from_millis(250);

/// The terminal in raw mode; dropping this restores it.
pub(super) struct Screen {
    drawn: Vec<Line>,
}

impl Screen {
    pub fn open() -> io::Result<Screen> {
        restore_on_panic();
        terminal::enable_raw_mode()?;
        // From here on, dropping the screen restores the terminal.
        let screen = Screen { drawn: Vec::new() };
        execute!(stdout(), EnterAlternateScreen, Hide, DisableLineWrap, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// The size of the terminal; 80 × 24 if the terminal does not report one.
    pub fn size() -> Size {
        let (width, height) = terminal::size().unwrap_or_default();
        let or = |cells: u16, otherwise| if cells == 0 { otherwise } else { usize::from(cells) };
        Size { width: or(width, 80), height: or(height, 24) }
    }

    /// Clears the screen and forgets what is drawn, because the terminal's size has changed.
    pub fn clear(&mut self) -> io::Result<()> {
        self.drawn.clear();
        execute!(stdout(), Clear(ClearType::All))
    }

    /// Draws lines from the top. The caller passes no more lines than fit, each already cut to the width.
    pub fn draw(&mut self, mut lines: Vec<Line>, size: Size) -> io::Result<()> {
        lines.resize_with(size.height, Line::default);
        let mut out = io::BufWriter::new(stdout().lock());
        queue!(out, BeginSynchronizedUpdate)?;
        for (n, line) in lines.iter().enumerate() {
            if self.drawn.get(n) == Some(line) {
                continue;
            }
            let attribute = match line.style {
                Style::Plain => Attribute::Reset,
                Style::Head => Attribute::Reverse,
                Style::Bold => Attribute::Bold,
                Style::Dim => Attribute::Dim,
            };
            let row = u16::try_from(n).unwrap_or(u16::MAX);
            queue!(out, MoveTo(0, row), SetAttribute(Attribute::Reset), SetAttribute(attribute))?;
            // The attribute is reset before the rest of the line is cleared, so a head's bar is as long as its text.
            queue!(out, Print(&line.text), SetAttribute(Attribute::Reset), Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()?;
        self.drawn = lines;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. Harmless if it was not changed.
fn restore() {
    let _ = execute!(stdout(), EnableLineWrap, Show, LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

/// Restores the terminal on a panic, so that the panic's message is readable and the shell usable.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}

/// Keys, and changes of the terminal's size. Reading them blocks, so a separate thread does it.
pub(super) fn events() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(KEYS);
    std::thread::spawn(move || {
        // After an error, the terminal is gone. Dropping the sender ends the view.
        while !sender.is_closed()
            && let Ok(is_there) = event::poll(POLL)
        {
            if is_there && !event::read().is_ok_and(|event| sender.blocking_send(event).is_ok()) {
                return;
            }
        }
    });
    receiver
}
