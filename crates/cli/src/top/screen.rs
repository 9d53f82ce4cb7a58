//! A terminal that is drawn on line by line: only lines that have changed are written, so that nothing flickers. It is given back as
//! it was, however the process ends, short of SIGKILL.

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

/// Keys that may wait to be looked at.
const KEYS: usize = 16;
/// How soon the thread that reads keys notices that nobody wants them any more.
const POLL: Duration = Duration::from_millis(250);

/// The terminal, until this is dropped.
pub(super) struct Screen {
    drawn: Vec<Line>,
}

impl Screen {
    pub fn open() -> io::Result<Screen> {
        restore_on_panic();
        terminal::enable_raw_mode()?;
        // From here on dropping it gives the terminal back.
        let screen = Screen { drawn: Vec::new() };
        execute!(stdout(), EnterAlternateScreen, Hide, DisableLineWrap, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// How large it is; 80 × 24 where the terminal does not say.
    pub fn size() -> Size {
        let (width, height) = terminal::size().unwrap_or_default();
        let or = |cells: u16, otherwise| if cells == 0 { otherwise } else { usize::from(cells) };
        Size { width: or(width, 80), height: or(height, 24) }
    }

    /// Forgets what is drawn: the terminal has another size.
    pub fn clear(&mut self) -> io::Result<()> {
        self.drawn.clear();
        execute!(stdout(), Clear(ClearType::All))
    }

    /// Draws lines from the top; no more than fit, and each cut to the width already.
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
            // What follows the text is cleared after the attribute is gone: the bar of a head is as long as its text.
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

/// Gives the terminal back. Harmless if it was never taken.
fn restore() {
    let _ = execute!(stdout(), EnableLineWrap, Show, LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

/// What a panic says is to be read, and the shell after it to be used.
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

/// Keys, and changes of the terminal's size. Reading them blocks, so a thread does it.
pub(super) fn events() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(KEYS);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            match event::poll(POLL) {
                Ok(false) => {}
                Ok(true) => match event::read() {
                    Ok(event) => {
                        if sender.blocking_send(event).is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                },
                // The terminal is gone: dropping the sender ends the view.
                Err(_) => return,
            }
        }
    });
    receiver
}
