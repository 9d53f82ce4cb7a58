//! `turnwise top`: a live view of tenants, and of the jobs that are next.

mod screen;
mod view;

use std::io::IsTerminal;
use std::pin::Pin;
use std::time::Duration;

use anyhow::anyhow;
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::time::{Instant, MissedTickBehavior};
use turnwise_client::{Client, Error, ListTenants, Queue, Tenants};

use self::screen::Screen;
use self::view::{Size, View};
use crate::Failure;
use crate::remote::ServerArgs;
use crate::tenants::ORDERS;
use crate::units::parse_duration;

/// The shortest time between two requests to the server.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
/// How often the screen is redrawn without a new answer, so that the ages on it grow.
const REDRAW: Duration = Duration::from_secs(1);
/// The number of rows to request before the size of a screen is known, or without a screen.
const ROWS: usize = 50;

#[derive(clap::Args)]
#[command(after_help = "\
DEFICIT is the run time by which the tenant is below its share; a negative value is a surplus. USED is the tenant's recent run time, \
and SERVED its total run time. OLDEST is how long its oldest pending job has waited. A replication has the name of its document. \
`turnwise why TYPE ID`, or `turnwise why --document TENANT/JOB`, shows more about a job.

Keys: s sorts by deficit, used, served, running, name in turn; q quits.")]
pub(crate) struct Args {
    /// Only jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// How often to query the server: 500ms, 2s, 1m
    #[arg(long, value_parser = parse_duration, value_name = "TIME", default_value = "2s")]
    interval: Duration,
    /// Print the current state once and exit; this is the default if stdout is not a terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl Args {
    /// Whether the command draws on a terminal. The log must then be off.
    pub(crate) fn is_live(&self) -> bool {
        !self.once && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.server.client()?;
    let live = args.is_live();
    let asked = Asked { job_type: args.job_type, sort: 0, rows: ROWS };
    // If the first request fails, the command reports it as every other command does.
    let first = asked.clone().fetch(client.clone()).await?;
    if live {
        let interval = args.interval.max(SHORTEST_INTERVAL);
        let top = Top { client, asked, snapshot: first, interval, trouble: None, asking: None };
        return top.run().await;
    }
    let view = View {
        server: &client.server(),
        snapshot: &first,
        sort: asked.sort,
        age: Duration::ZERO,
        trouble: None,
        live: false,
    };
    for line in view.lines(Size { width: usize::MAX, height: usize::MAX }) {
        say!("{}", line.text);
    }
    Ok(())
}

/// The server's answers, and when they came.
struct Snapshot {
    tenants: Tenants,
    queue: Queue,
    at: Instant,
}

/// What to request from the server.
#[derive(Clone)]
struct Asked {
    job_type: Option<String>,
    /// The place in [`ORDERS`] of the order of tenants.
    sort: usize,
    rows: usize,
}

impl Asked {
    async fn fetch(self, client: Client) -> Result<Snapshot, Error> {
        let Asked { job_type, sort, rows } = self;
        let which = ListTenants { job_type: job_type.clone(), order: ORDERS[sort].1, page: Some(rows) };
        let tenants = client.first_tenants(which).await?;
        let queue = client.queue(job_type.as_deref(), rows).await?;
        Ok(Snapshot { tenants, queue, at: Instant::now() })
    }
}

/// The live view.
struct Top {
    client: Client,
    asked: Asked,
    snapshot: Snapshot,
    interval: Duration,
    /// Why the latest request failed, if it did.
    trouble: Option<String>,
    /// The request in flight.
    asking: Option<Asking>,
}

type Asking = Pin<Box<dyn Future<Output = Result<Snapshot, Error>>>>;

/// What a key does.
enum Key {
    Quit,
    Sort,
    Nothing,
}

impl Top {
    async fn run(mut self) -> Result<(), Failure> {
        let no_terminal = |error| Failure::Failed(anyhow!("cannot draw on this terminal: {error}"));
        let mut screen = Screen::open().map_err(no_terminal)?;
        let mut events = screen::events();
        let mut signals = crate::StopSignals::listen();
        let mut redraw = tokio::time::interval(REDRAW);
        redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next = Instant::now() + self.interval;
        loop {
            self.draw(&mut screen).map_err(no_terminal)?;
            tokio::select! {
                () = signals.next() => break,
                event = events.recv() => match event {
                    None => break,
                    Some(Event::Resize(..)) => {
                        screen.clear().map_err(no_terminal)?;
                        self.ask();
                    }
                    Some(event) => match key(&event) {
                        Key::Quit => break,
                        Key::Sort => {
                            self.asked.sort = (self.asked.sort + 1) % ORDERS.len();
                            self.ask();
                        }
                        Key::Nothing => {}
                    },
                },
                answer = answered(&mut self.asking) => {
                    self.asking = None;
                    next = Instant::now() + self.interval;
                    self.take(answer);
                }
                () = tokio::time::sleep_until(next), if self.asking.is_none() => self.ask(),
                _ = redraw.tick() => {}
            }
        }
        Ok(())
    }

    fn draw(&mut self, screen: &mut Screen) -> std::io::Result<()> {
        let size = Screen::size();
        self.asked.rows = size.height.clamp(10, ROWS.max(200));
        let view = View {
            server: &self.client.server(),
            snapshot: &self.snapshot,
            sort: self.asked.sort,
            age: self.snapshot.at.elapsed().saturating_sub(self.interval),
            trouble: self.trouble.as_deref(),
            live: true,
        };
        screen.draw(view.lines(size), size)
    }

    /// Sends a new request, and drops the one in flight.
    fn ask(&mut self) {
        self.asking = Some(Box::pin(self.asked.clone().fetch(self.client.clone())));
    }

    fn take(&mut self, answer: Result<Snapshot, Error>) {
        match answer {
            Ok(snapshot) => (self.snapshot, self.trouble) = (snapshot, None),
            Err(error) => {
                let (Failure::Usage(told) | Failure::Failed(told) | Failure::Code(_, told)) =
                    Failure::from(error);
                // The second line is a hint, which has no room here.
                self.trouble = told.to_string().lines().next().map(str::to_owned);
            }
        }
    }
}

/// The answer to the request in flight; never completes without one.
async fn answered(asking: &mut Option<Asking>) -> Result<Snapshot, Error> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

fn key(event: &Event) -> Key {
    let Event::Key(key) = event else { return Key::Nothing };
    if key.kind == KeyEventKind::Release {
        return Key::Nothing;
    }
    match key.code {
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('s' | 'S') => Key::Sort,
        _ => Key::Nothing,
    }
}
