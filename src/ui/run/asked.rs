//! What the trainer was asked for and has not answered yet: several requests can wait for the same step's end.

use crate::event::Command;

/// Requests that wait for an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked(Vec<Command>);

impl Asked {
    /// Adds a request. Resuming takes a pause back that has not come yet; a stop stands, however much is asked after it.
    pub fn add(&mut self, command: Command, paused: bool) {
        match command {
            Command::Resume if !paused => self.answered(Command::Pause),
            _ if self.0.contains(&command) => {}
            _ => self.0.push(command),
        }
    }

    /// The trainer has answered a request.
    pub fn answered(&mut self, command: Command) {
        self.0.retain(|c| *c != command);
    }

    /// Whether a request waits.
    #[must_use]
    pub fn has(&self, command: Command) -> bool {
        self.0.contains(&command)
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The strongest stop that was asked for.
    #[must_use]
    pub fn stop(&self) -> Option<Command> {
        self.0.iter().copied().filter(|c| *c >= Command::StopAndSave).max()
    }

    /// What is shown of them, and whether it happens at the end of the step: a stop hides the rest, since it comes first.
    #[must_use]
    pub fn words(&self) -> Option<(String, bool)> {
        match self.stop() {
            Some(Command::StopAndSave) => return Some(("stopping".into(), true)),
            Some(Command::DropStep) => return Some(("dropping this step, saving the one before".into(), false)),
            Some(_) => return Some(("stopping without saving".into(), false)),
            None => {}
        }
        if self.has(Command::Resume) {
            return Some(("resuming".into(), false));
        }
        let waits = [(Command::SaveNow, "saving"), (Command::Pause, "pausing")];
        let words: Vec<&str> = waits.into_iter().filter(|(c, _)| self.has(*c)).map(|(_, word)| word).collect();
        (!words.is_empty()).then(|| (words.join(", then "), true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(commands: &[Command]) -> Option<String> {
        let mut asked = Asked::default();
        commands.iter().for_each(|c| asked.add(*c, false));
        asked.words().map(|(w, _)| w)
    }

    #[test]
    fn case_fo_61_a_save_does_not_hide_the_pause_that_waits_beside_it() {
        use Command as C;
        for both in [[C::Pause, C::SaveNow], [C::SaveNow, C::Pause]] {
            assert_eq!(words(&both).as_deref(), Some("saving, then pausing"));
        }
        let mut asked = Asked::default();
        asked.add(C::Pause, false);
        asked.add(C::SaveNow, false);
        asked.answered(C::SaveNow);
        assert_eq!(asked.words(), Some(("pausing".into(), true)), "the pause still waits");
        assert_eq!(words(&[C::Pause, C::Resume]), None, "a pause that is taken back never comes");
        assert_eq!(words(&[C::StopAndSave, C::Pause]).as_deref(), Some("stopping"));
    }
}
