//! Which jobs may run at all, in worlds where not all may: what jobs wait for.
//!
//! Any job may be waited for, whosever it is, so that ends, removals and new ones meet. Some that are named are gone, or would close a circle:
//! these requests are refused.

use turnwise_policy::eligibility::dependencies::{Otherwise, Outcome};
use turnwise_queue::After;

use crate::dice::Dice;
use crate::ledger::JobKey;

/// Jobs that one job waits for at most: with six jobs in a request there is room for them in a small transaction.
const MOST_AFTER: u64 = 3;

/// The ends that jobs accept.
const ENDS: [Outcome; 3] = [Outcome::Completed, Outcome::Failed, Outcome::Cancelled];

/// Which jobs may run in a world.
#[derive(Debug, Clone)]
pub struct EligibilityPlan {
    /// Jobs that wait for others, in permille.
    waits: u64,
    /// Of what they wait for, jobs of the same request, in permille: chains and bundles.
    together: u64,
    /// Of many jobs that are added at once all wait for the first one, if they wait.
    pub hub: bool,
}

impl EligibilityPlan {
    /// A plan of any kind.
    pub fn new(dice: &Dice) -> Self {
        EligibilityPlan {
            waits: *dice.choose(&[200, 500, 800]),
            together: *dice.choose(&[100, 500]),
            hub: dice.chance(500),
        }
    }

    /// What a job waits for: of `others`, and of those that are added before it in the same request.
    pub fn after(&self, dice: &Dice, own: &JobKey, before: &[JobKey], others: &[JobKey]) -> Vec<After> {
        let mut after: Vec<After> = Vec::new();
        if !dice.chance(self.waits) {
            return after;
        }
        for _ in 0..dice.between(1, MOST_AFTER) {
            let from = if dice.chance(self.together) { before } else { others };
            if from.is_empty() {
                continue;
            }
            let (job_type, id) = dice.choose(from).clone();
            let is_named = after.iter().any(|one| (&one.job_type, &one.id) == (&job_type, &id));
            if is_named || *own == (job_type.clone(), id.clone()) {
                continue;
            }
            let mut accepted: Vec<Outcome> = ENDS.into_iter().filter(|_| dice.chance(500)).collect();
            if accepted.is_empty() {
                accepted.push(Outcome::Completed);
            }
            let otherwise = *dice.choose(&[Otherwise::Cancel, Otherwise::Free]);
            after.push(After { job_type, id, accepted, otherwise });
        }
        after
    }
}
