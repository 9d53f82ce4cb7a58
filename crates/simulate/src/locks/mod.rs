//! Simulates jobs that lock, and compares schemes that choose among the same jobs.
//!
//! A [`Scenario`] describes a cluster, tasks with their locks and run times, and the arrivals of jobs. [`run`]
//! lets each [`Scheme`] decide. It measures how long jobs waited, and computes bounds that no schedule can beat.
//! `predictive` is the policy of the product, called as the workers call it.
//!
//! The simulation leaves out: several workers, crashes, tenants, priorities, filters, and the time that a start
//! takes.
//!
//! ```
//! use turnwise_simulate::locks::{Scenario, Scheme, run};
//!
//! let scenario = Scenario::parse(
//!     "name = 'one after the other'\nslots = 4\narrivals = [{ count = 10 }]\n\
//!      [cluster]\ngroups = 1\nnodes = 2\ninstances = 1\n\
//!      [[tasks]]\nname = 'reboot'\nweight = 1\nrun_ms = 1000\n\
//!      locks = { instance = { exclusive = ['{instance}'] } }\n",
//! )?;
//! let compared = run(&scenario, &[Scheme::Predictive])?;
//! assert_eq!(compared.outcomes[0].makespan_s, 10.0);
//! assert_eq!(compared.bound.makespan_s, 10.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bound;
mod measure;
pub mod plot;
mod population;
pub mod report;
mod results;
pub mod scenario;
mod scheme;
mod table;
pub mod template;
mod world;

pub use results::{Bounds, Compared, OfTask, SchemeResults};
pub use scenario::Scenario;

use crate::policy::named;
use measure::Measure;
use population::Population;
use scheme::{Chooser, Fifo, List, PlainAging, Predictive};
use world::{Start, World};

named! {
    /// The scheme that decides.
    pub enum Scheme ("there is no scheme `{}`; for jobs with locks there are {}") {
        /// First in, first out, as in Ganeti: a job starts whatever it locks, and waits for its locks in its slot.
        Fifo = "fifo",
        /// First in, first out, without jobs whose locks are not free. Aged-out jobs reserve their locks.
        Aging = "aging",
        /// The predictive queue.
        Predictive = "predictive",
        /// The schedule with the shortest mean wait, of several that know all run times and locks.
        BestWait = "best_wait",
        /// Of those schedules, the one that ends first.
        BestMakespan = "best_makespan",
    }
}

/// Simulates a scenario with each of the schemes, to the end of its last job.
///
/// # Errors
/// A job would want more units of a resource than the resource has, or too many resources.
pub fn run(scenario: &Scenario, schemes: &[Scheme]) -> Result<Compared, crate::scenario::Error> {
    let population = Population::new(scenario)?;
    let go =
        |scheme, how, chooser: Box<dyn Chooser>| World::new(scenario, &population, how, chooser).run(scheme);
    let mut lists: Option<Vec<Measure>> = None;
    let mut best = |scheme, than: fn(&Measure) -> i64| {
        let lists = lists.get_or_insert_with(|| {
            clairvoyant(&population)
                .into_iter()
                .map(|list| go(scheme, Start::Clairvoyant, Box::new(list)))
                .collect()
        });
        lists.iter().min_by_key(|measure| than(measure)).cloned().unwrap_or_default()
    };
    let mut outcomes = Vec::new();
    for scheme in schemes {
        let measure = match *scheme {
            Scheme::Fifo => go(*scheme, Start::Inside, Box::new(Fifo)),
            Scheme::Aging => go(*scheme, Start::AtOnce, Box::new(PlainAging)),
            Scheme::Predictive => go(*scheme, Start::AtOnce, Box::new(Predictive)),
            Scheme::BestWait => best(*scheme, |measure| measure.waits.iter().map(|(_, wait)| wait).sum()),
            Scheme::BestMakespan => best(*scheme, |measure| measure.makespan_us),
        };
        outcomes.push(SchemeResults::new(*scheme, scenario, &population, measure));
    }
    Ok(Compared {
        jobs: population.jobs.len(),
        slots: scenario.slots.usize(),
        bound: Bounds::new(&population, scenario),
        outcomes,
    })
}

/// Orders of jobs for schemes that know all run times and locks.
fn clairvoyant(population: &Population) -> Vec<List> {
    let job = |id: u32| &population.jobs[id as usize];
    // The work for each scope, of the jobs that lock it exclusively.
    let mut load = vec![0.0; population.scopes.len()];
    for job in &population.jobs {
        let alone = job.real.iter().filter(|want| want.exclusive);
        alone.for_each(|want| load[want.scope as usize] += job.run_us as f64);
    }
    let busiest = |id: u32| {
        let loads = job(id).real.iter().map(|want| load[want.scope as usize]);
        loads.fold(0.0, f64::max)
    };
    let locks = |id: u32| job(id).real.len() as f64;
    vec![
        List::by(population, |id| id),
        List::by(population, |id| job(id).run_us),
        List::by(population, |id| -job(id).run_us),
        List::by(population, |id| job(id).run_us as f64 * (1.0 + locks(id))),
        List::by(population, |id| (-busiest(id), -job(id).run_us)),
        List::by(population, |id| (-busiest(id), job(id).run_us)),
        List::by(population, |id| -(busiest(id) + job(id).run_us as f64)),
    ]
}
